// SPDX-License-Identifier: MIT
// writing.cpp - WRITE, and COMMIT, which brings what was written to stable storage.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <span>
#include <sys/uio.h>
#include <unistd.h>

#include "userland/daemon/change.hpp"
#include "userland/daemon/identity.hpp"
#include "userland/daemon/service.hpp"

namespace coop::daemon
{

namespace
{

// How much of the data is there from an earlier process that began to append it. A part counts only
// at the end of the file: it was cut off when that process was killed.
std::size_t appended(int fd, const names_once::made &m, std::uint64_t size,
		     std::span<const std::uint8_t> data)
{
	std::vector<std::uint8_t> there(std::min<std::uint64_t>(data.size(), m.most));
	const ssize_t n = ::pread(fd, there.data(), there.size(), static_cast<off_t>(m.from));
	const std::size_t got = n > 0 ? static_cast<std::size_t>(n) : 0;
	const bool ours = std::equal(
		there.begin(), there.begin() + static_cast<std::ptrdiff_t>(got), data.begin());
	return ours && (got == data.size() || m.from + got == size) ? got : 0;
}

} // namespace

int service::made_before(const exported &in, inode &n, int err, reply &out)
{
	out.body.verifier = stable.verifier(in.fs(), n.file);
	return err ? err : attributes(n, out.body.attr);
}

int service::write(const exported &in, session &s, call r, reply &out)
{
	std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f || !(f->flags & COOP_ST_O_WRITE))
		return -EBADF;
	if (r.body.offset > INT64_MAX - COOP_ST_IO_MAX)
		return -EFBIG;
	if (r.body.flags & ~COOP_ST_WRITE_STABLE)
		return -EINVAL;
	coop_st_cred cred;
	f->who.fill(cred);
	inode &n = *f->node;
	const bool appends = f->flags & COOP_ST_O_APPEND;
	std::unique_lock lock(n.mutex);
	// Under the mutex: once this request has taken what an earlier process noted of it, a
	// change of another client cannot put a bound to that any more.
	names_once attempt = appends ? once(in, s, r, n) : names_once({}, 0, 0, false);
	if (const auto known = attempt.answer()) {
		lock.unlock();
		return made_before(in, n, *known, out);
	}
	// Taken before the write: if writeback fails in between, these bytes may be among the lost.
	out.body.verifier = stable.verifier(in.fs(), n.file);
	int err = change_locked(n, out.body, [&](int fd) {
		as_user user(cred); // so that quotas and set-id bits follow the writer
		if (user.error())
			return user.error();
		std::size_t done = 0;
		const auto put = [&] {
			while (done < r.data.size()) {
				struct iovec v = {const_cast<std::uint8_t *>(r.data.data()) + done,
						  r.data.size() - done};
				const ssize_t got = ::pwritev2(
					fd, &v, 1, static_cast<off_t>(r.body.offset + done),
					appends ? RWF_APPEND : 0);
				if (got < 0 && errno == EINTR)
					continue;
				if (got <= 0)
					return got ? -errno : -EIO;
				done += static_cast<std::size_t>(got);
			}
			return 0;
		};
		if (!appends)
			return put();
		struct stat st;
		if (::fstat(fd, &st))
			return -errno;
		const auto size = static_cast<std::uint64_t>(st.st_size);
		if (const auto made = attempt.appended(size))
			done = appended(fd, *made, size, r.data);
		if (done < r.data.size())
			attempt.appends(n.file, size - done);
		return attempt.run(put);
	});
	if (err)
		return err;
	if (attempt.uncertain()) // the version before it is not known
		out.body.before = 0;
	stats.written_bytes.fetch_add(r.data.size(), std::memory_order_relaxed);
	if (!(r.body.flags & COOP_ST_WRITE_STABLE))
		return 0;
	const std::shared_ptr<unique_fd> fd = n.data_locked(err);
	lock.unlock(); // others read and write during the fsync
	// On failure the client keeps the verifier from before, and its COMMIT reports the loss.
	std::uint64_t now;
	if (fd && !sync(in, n, fd->get(), now) && now == out.body.verifier)
		out.body.flags = COOP_ST_WRITE_STABLE;
	return 0;
}

// COMMIT of a directory: names created, moved and removed.
int service::commit_names(const exported &in, call r, reply &out)
{
	inode_ref dir;
	unique_fd fd;
	if (int err = directory(in, r.body.fh, dir))
		return err == -ENOTDIR ? -EBADF : err;
	if (int err = dir->reopen(O_RDONLY | O_DIRECTORY, fd))
		return err;
	if (int err = sync(in, *dir, fd.get(), out.body.verifier))
		return err;
	return attributes(*dir, out.body.attr);
}

// What of all this fails is reported by the COMMITs of the files and directories, too.
int service::commit_all(const exported &in, call r, reply &out)
{
	inode_ref dir;
	if (int err = directory(in, r.body.fh, dir))
		return err;
	if (::syncfs(in.root()))
		return -errno;
	out.body.verifier = stable.verifier(in.fs(), {});
	return attributes(*dir, out.body.attr);
}

// verifier: covers all changes made before the call.
int service::sync(const exported &in, inode &n, int fd, std::uint64_t &verifier)
{
	std::lock_guard order(n.use->commit_order);
	if (::fsync(fd) && errno != EINVAL) { // a file system without fsync has nothing to write
		const int err = -errno;
		stable.failed(n.file);
		return err;
	}
	verifier = stable.verifier(in.fs(), n.file);
	return 0;
}

int service::commit(const exported &in, session &s, call r, reply &out)
{
	if (!r.body.open_id)
		return commit_names(in, r, out);
	if (r.body.open_id == COOP_ST_COMMIT_ALL)
		return commit_all(in, r, out);
	std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f)
		return -EBADF;
	inode &n = *f->node;
	int err;
	std::shared_ptr<unique_fd> fd = n.data(err);
	if (!fd)
		return err;
	err = sync(in, n, fd->get(), out.body.verifier);
	fd.reset();
	if (!err)
		err = attributes(n, out.body.attr);
	if (err)
		return err;
	out.body.before = out.body.attr.version;
	return 0;
}

} // namespace coop::daemon
