// SPDX-License-Identifier: MIT
// ranges.cpp - fallocate, seek for data and holes, and copies between open files, done by the
// export's file system, so that no byte crosses the network.
//
// A change runs as the user that opened the file, as WRITE does: quotas are the user's, and the
// kernel clears set-id bits unless that user may keep them. A copy locks its destination for a
// bounded number of bytes at a time; the client asks for the rest, so a killed process waits for
// one such piece at most.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "userland/daemon/change.hpp"
#include "userland/daemon/identity.hpp"

namespace coop::daemon
{

namespace
{

int falloc_mode(std::uint32_t flags)
{
	struct bit {
		std::uint32_t ours;
		int kernel;
	};
	constexpr bit bits[] = {
		{COOP_ST_FA_KEEP_SIZE, FALLOC_FL_KEEP_SIZE},
		{COOP_ST_FA_PUNCH, FALLOC_FL_PUNCH_HOLE},
		{COOP_ST_FA_ZERO, FALLOC_FL_ZERO_RANGE},
		{COOP_ST_FA_COLLAPSE, FALLOC_FL_COLLAPSE_RANGE},
		{COOP_ST_FA_INSERT, FALLOC_FL_INSERT_RANGE},
		{COOP_ST_FA_UNSHARE, FALLOC_FL_UNSHARE_RANGE},
	};
	int mode = 0;
	for (const bit &b : bits)
		if (flags & b.ours)
			mode |= b.kernel;
	return mode;
}

bool fits(std::uint64_t offset, std::uint64_t length)
{
	return offset <= INT64_MAX && length <= INT64_MAX - offset;
}

// Copies from the start of the range; 0 if anything was copied, or if there was nothing to copy.
int copy_some(int from, off_t from_at, int to, off_t to_at, std::uint64_t length,
	      std::uint64_t &done)
{
	done = 0;
	while (done < length) {
		const ssize_t n = ::copy_file_range(from, &from_at, to, &to_at, length - done, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return done ? 0 : -errno;
		if (!n)
			break;
		done += static_cast<std::uint64_t>(n);
	}
	return 0;
}

int clone(int from, std::uint64_t from_at, int to, std::uint64_t to_at, std::uint64_t length)
{
	struct file_clone_range range = {from, from_at, length, to_at};
	return ::ioctl(to, FICLONERANGE, &range) ? (errno == ENOTTY ? -EOPNOTSUPP : -errno) : 0;
}

} // namespace

int service::fallocate(const exported &in, session &s, call r, reply &out)
{
	std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f || !(f->flags & COOP_ST_O_WRITE))
		return -EBADF;
	if (r.body.flags & ~COOP_ST_FA_ALL)
		return -EOPNOTSUPP;
	if (!r.body.length || !fits(r.body.offset, 0))
		return -EINVAL;
	if (!fits(r.body.offset, r.body.length))
		return -EFBIG;
	const bool shifts = r.body.flags & (COOP_ST_FA_COLLAPSE | COOP_ST_FA_INSERT);
	coop_st_cred cred;
	f->who.fill(cred);
	inode &n = *f->node;
	std::unique_lock lock(n.mutex);
	names_once attempt = shifts ? once(in, s, r, n) : names_once({}, 0, 0, false);
	if (const auto known = attempt.answer()) {
		lock.unlock();
		return made_before(in, n, *known, out);
	}
	out.body.verifier =
		stable.verifier(in.fs(), n.file); // taken before the change, as in WRITE
	const auto allocate = [&](int fd) {
		return as(cred, [&] {
			int err;
			do
				err = ::fallocate(fd, falloc_mode(r.body.flags),
						  static_cast<off_t>(r.body.offset),
						  static_cast<off_t>(r.body.length))
					      ? -errno
					      : 0;
			while (err == -EINTR);
			return err;
		});
	};
	const int err = change_locked(n, out.body, [&](int fd) {
		struct stat st;
		if (!shifts)
			return allocate(fd);
		if (::fstat(fd, &st))
			return -errno;
		const auto size = static_cast<std::uint64_t>(st.st_size);
		if (attempt.shifted(size))
			return attempt.run([] { return 0; });
		attempt.shifts(n.file, size);
		return attempt.run([&] { return allocate(fd); });
	});
	if (attempt.uncertain()) // the version before it is not known
		out.body.before = 0;
	return err;
}

int service::seek(const exported &, session &s, call r, reply &out)
{
	std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f)
		return -EBADF;
	if (r.body.flags != COOP_ST_SEEK_DATA && r.body.flags != COOP_ST_SEEK_HOLE)
		return -EINVAL;
	if (r.body.offset > INT64_MAX)
		return -ENXIO;
	int err;
	const std::shared_ptr<unique_fd> fd = f->node->data(err);
	if (!fd)
		return err;
	// No other code uses the descriptor's position.
	const off_t at = ::lseek(fd->get(), static_cast<off_t>(r.body.offset),
				 r.body.flags == COOP_ST_SEEK_DATA ? SEEK_DATA : SEEK_HOLE);
	if (at < 0)
		return -errno;
	out.body.offset = static_cast<u64>(at);
	return 0;
}

int service::copy(const exported &in, session &s, call r, reply &out)
{
	std::shared_ptr<open_file> from = s.find(r.body.open_id), to = s.find(r.body.open_id2);
	if (!from || !(from->flags & COOP_ST_O_READ) || !to || !(to->flags & COOP_ST_O_WRITE) ||
	    to->flags & COOP_ST_O_APPEND)
		return -EBADF;
	if (r.body.flags & ~COOP_ST_COPY_CLONE || !fits(r.body.offset, r.body.length) ||
	    !fits(r.body.offset2, r.body.length))
		return -EINVAL;
	int err;
	const std::shared_ptr<unique_fd> source = from->node->data(err);
	if (!source)
		return err;
	coop_st_cred cred;
	to->who.fill(cred);
	inode &n = *to->node;
	std::lock_guard lock(n.mutex);
	out.body.verifier = stable.verifier(in.fs(), n.file);
	err = change_locked(n, out.body, [&](int fd) {
		return as(cred, [&] {
			out.body.length = r.body.length;
			if (r.body.flags & COOP_ST_COPY_CLONE)
				return clone(source->get(), r.body.offset, fd, r.body.offset2,
					     r.body.length);
			return copy_some(source->get(), static_cast<off_t>(r.body.offset), fd,
					 static_cast<off_t>(r.body.offset2),
					 std::min<u64>(r.body.length, COOP_ST_COPY_MAX),
					 out.body.length);
		});
	});
	if (!err)
		stats.written_bytes.fetch_add(out.body.length, std::memory_order_relaxed);
	return err;
}

} // namespace coop::daemon
