// SPDX-License-Identifier: MIT
// content.cpp - contents of files: open, read, setattr, and the versions that go with them. WRITE
// is in writing.cpp.
//
// A change holds the inode's mutex and, where the kernel grants it, a lease that keeps other
// processes from opening the file for writing. So version before, change and version after are one
// step. Without the lease the version before is reported as 0, and no client carries its cached
// pages over.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "userland/daemon/change.hpp"
#include "userland/daemon/identity.hpp"
#include "userland/daemon/service.hpp"

namespace coop::daemon
{

namespace
{

// 0 if the file's version is 'version' (0: any; it is then filled in).
int verify_locked(inode &n, std::uint64_t &version, std::uint64_t &size)
{
	if (version && !n.constant) {
		struct stat st;
		if (::fstatat(n.path.get(), "", &st, AT_EMPTY_PATH))
			return -errno;
		size = static_cast<u64>(st.st_size);
		if (n.record.matches(version, st))
			return 0;
		if (version & provisional_bit)
			return -ESTALE;
	}
	file_look now;
	std::uint64_t seen;
	if (int err = n.observe_locked(now, seen))
		return err;
	if (version && version != seen)
		return -ESTALE;
	version = seen;
	size = static_cast<u64>(now.st.st_size);
	return 0;
}

bool matches_locked(inode &n, std::uint64_t version)
{
	struct stat st;
	if (n.constant)
		return version == n.constant;
	return !::fstatat(n.path.get(), "", &st, AT_EMPTY_PATH) && n.record.matches(version, st);
}

int access_mode(std::uint32_t flags)
{
	const bool r = flags & COOP_ST_O_READ, w = flags & COOP_ST_O_WRITE;
	return r && w ? O_RDWR : w ? O_WRONLY : O_RDONLY;
}

int openable(const coop_st_body &b)
{
	const bool good = !(b.flags & ~COOP_ST_O_ALL) &&
			  b.flags & (COOP_ST_O_READ | COOP_ST_O_WRITE) && b.open_id;
	const bool program = b.flags & COOP_ST_O_EXEC;
	return good && !(program && b.flags & (COOP_ST_O_WRITE | COOP_ST_O_TRUNC)) ? 0 : -EINVAL;
}

int has_content(const inode &n)
{
	switch (n.type) {
	case S_IFREG:
		return 0;
	case S_IFDIR:
		return -EISDIR;
	case S_IFLNK:
		return -ELOOP;
	default:
		return -ENXIO;
	}
}

// Whether clients see a name of the file.
bool has_name(inode &n)
{
	struct stat st;
	const unsigned ours = n.in.unnamed().has(n.fid) ? 1 : 0;
	return !::fstatat(n.path.get(), "", &st, AT_EMPTY_PATH) && st.st_nlink > ours;
}

// Whether a user opens a file of its own again after a restart. It may have been open with rights
// that the mode did not give, or no longer gives; its owner could give them to itself.
bool reopens_own(const inode &n, const coop_st_body &b)
{
	struct stat st;
	return b.flags & COOP_ST_O_AGAIN && !n.in.spec().read_only &&
	       !::fstatat(n.path.get(), "", &st, AT_EMPTY_PATH) && st.st_uid == b.cred.uid;
}

struct timespec when(const coop_st_time &t, std::uint32_t valid, std::uint32_t set,
		     std::uint32_t now)
{
	if (valid & now)
		return {0, UTIME_NOW};
	if (valid & set)
		return {static_cast<time_t>(t.sec), static_cast<long>(t.nsec)};
	return {0, UTIME_OMIT};
}

} // namespace

bool matches(inode &n, std::uint64_t version)
{
	std::lock_guard lock(n.mutex);
	return matches_locked(n, version);
}

std::uint32_t service::still(const reply &r)
{
	return matches(*r.node, r.version) ? 0 : ESTALE;
}

int service::setattr(const exported &in, session &s, call r, reply &out)
{
	const coop_st_setattr &set = r.body.set;
	inode_ref n;
	if (int err = inodes.get(in, view(r.body.fh), n))
		return err;
	const bool sized = set.valid & COOP_ST_SET_SIZE;
	bool may_write = false;
	if (r.body.open_id) {
		auto f = s.find(r.body.open_id);
		// As for a write: it may have ended because it lost a lock, which others hold now.
		if (sized && !f)
			return -EBADF;
		may_write = f && f->node == n && f->flags & COOP_ST_O_WRITE;
	}
	std::lock_guard lock(n->mutex);
	if (sized) {
		if (n->type != S_IFREG)
			return n->type == S_IFDIR ? -EISDIR : -EINVAL;
	}
	const bool kills = set.valid & COOP_ST_SET_KILL_ID;
	if ((sized || kills) && !may_write) {
		unique_fd probe;
		if (n->type != S_IFREG)
			return -EINVAL;
		if (int err = as(r.body.cred, [&] { return n->reopen(O_WRONLY, probe); }))
			return err;
	}
	if (sized) {
		if (int err = n->want_writable_locked())
			return err;
	}
	const std::string self = "/proc/self/fd/" + std::to_string(n->path.get());
	out.body.verifier = stable.verifier(in.fs(), n->file);
	const int err = change_locked(*n, out.body, [&](int fd) {
		// Change the owner to itself to clear the set-id bits. The daemon's own right
		// suffices, and the kernel checks the file's current mode.
		if (kills && ::fchownat(n->path.get(), "", static_cast<uid_t>(-1),
					static_cast<gid_t>(-1), AT_EMPTY_PATH))
			return -errno;
		if (!(set.valid & ~COOP_ST_SET_KILL_ID))
			return 0;
		as_user user(r.body.cred);
		if (user.error())
			return user.error();
		if (sized && ::ftruncate(fd, static_cast<off_t>(set.size)))
			return -errno;
		if (set.valid & (COOP_ST_SET_UID | COOP_ST_SET_GID) &&
		    ::fchownat(n->path.get(), "", set.valid & COOP_ST_SET_UID ? set.uid : ~0u,
			       set.valid & COOP_ST_SET_GID ? set.gid : ~0u, AT_EMPTY_PATH))
			return -errno;
		if (set.valid & COOP_ST_SET_MODE) {
			if (n->type == S_IFLNK)
				return -EOPNOTSUPP;
			if (::chmod(self.c_str(), set.mode & 07777))
				return -errno;
		}
		const struct timespec t[2] = {
			when(set.atime, set.valid, COOP_ST_SET_ATIME, COOP_ST_SET_ATIME_NOW),
			when(set.mtime, set.valid, COOP_ST_SET_MTIME, COOP_ST_SET_MTIME_NOW)};
		if (t[0].tv_nsec == UTIME_OMIT && t[1].tv_nsec == UTIME_OMIT)
			return 0;
		const bool link = n->type == S_IFLNK;
		return ::utimensat(link ? n->path.get() : AT_FDCWD, link ? "" : self.c_str(), t,
				   link ? AT_EMPTY_PATH : 0)
			       ? -errno
			       : 0;
	});
	n->drop_writable_locked();
	if (!err)
		tell_lease(s, r, *n, out.body.attr);
	return err;
}

int service::opened(session &s, inode_ref n, call r, std::uint32_t want_inline,
		    lease_table::offer lease, reply &out)
{
	const std::uint32_t flags = r.body.flags & ~COOP_ST_O_NAMED;
	const std::uint64_t open_id = r.body.open_id;
	const coop_st_cred &cred = r.body.cred;
	auto f = std::make_shared<open_file>();
	{
		std::lock_guard lock(n->mutex);
		if (flags & COOP_ST_O_WRITE) {
			if (int err = n->want_writable_locked())
				return err;
			n->writers++;
			n->use->writers++;
		}
		n->in.unnamed().opened(n->fid);
		f->node = n; // from here on its destructor undoes both counts
		f->flags = flags;
		f->who = opener::of(cred);
	}
	// A single client cannot use up all inodes.
	int err = s.add(open_id, f, std::min(opens_max, inodes.capacity() / 2),
			flags & COOP_ST_O_AGAIN);
	const bool added = !err;
	if (err == -EEXIST && flags & COOP_ST_O_AGAIN) {
		// The connection was lost while the client restored its files: it begins anew.
		// Or it lost its locks while it was away, and all that it had open with them.
		if (const auto same = s.opened_again(open_id, n, flags)) {
			f = same;
			err = 0;
		}
	}
	if (err)
		return err;
	out.body.verifier = stable.verifier(n->in.fs(), n->file);
	{
		std::lock_guard lock(n->mutex);
		if (flags & COOP_ST_O_TRUNC && flags & COOP_ST_O_WRITE &&
		    !(flags & COOP_ST_O_AGAIN)) {
			err = change_locked(*n, out.body, [&](int fd) {
				return as(cred, [&] { return ::ftruncate(fd, 0) ? -errno : 0; });
			});
		} else if (!lease) {
			file_look now;
			std::uint64_t version;
			err = n->observe_locked(now, version);
			if (!err)
				fill_attr(now, *n, version, out.body.attr);
		}
		if (!err && !n->data_locked(err))
			err = err ? err : -EIO;
	}
	if (err) {
		// A client that does not wait for the reply may be using the open file already: it
		// stays valid until its last user drops it, but without locks. What an earlier
		// request added stays open, because its reply may have said that it is.
		if (added && s.take_back(open_id, *f))
			closed(s, open_id, *f);
		return err;
	}
	s.stays(*f);
	if (!out.body.attr.nlink)
		inodes.discard(n->handle); // when its last holder drops it
	const std::uint64_t version = out.body.attr.version;
	if (added)
		seat(s, *n, out.body.attr, *f);
	// A client that opened the file once may open it again without asking us.
	const bool guarded = lease && leases.guard(n);
	std::vector<std::uint32_t> others;
	openers.opened({n->fid, version}, s.node, others);
	out.body.n_nodes = static_cast<u32>(others.size());
	std::copy(others.begin(), others.end(), out.body.nodes);
	const std::uint64_t length = std::min<std::uint64_t>(
		out.body.attr.size, std::min<std::uint32_t>(want_inline, COOP_ST_INLINE_MAX));
	const bool inlines =
		others.empty() && length && flags & COOP_ST_O_READ && !(flags & COOP_ST_O_AGAIN);
	bool whole = false;
	if (inlines) {
		const std::shared_ptr<unique_fd> fd = n->data(err);
		out.data.resize(length);
		whole = fd && ::pread(fd->get(), out.data.data(), length, 0) ==
				      static_cast<ssize_t>(length);
	}
	// The file may have been written and closed before the guard was set, and such a change
	// recalls nothing. So the lease stands only if the file still has the version that we
	// looked at.
	const bool same = (inlines || lease) && matches(*n, version);
	if (!whole || !same)
		out.data.clear(); // it changed in between; the client will READ
	stats.inline_bytes.fetch_add(out.data.size(), std::memory_order_relaxed);
	note_inline(s, *n, version, out);
	if (lease && !same)
		lease.withdraw();
	tell_offer(lease, *n, out.body.attr);
	if (out.body.attr.has & COOP_ST_HAS_LEASE && !guarded)
		out.body.attr.has |= COOP_ST_HAS_ASK_OPEN;
	return 0;
}

// Small files have no forest, and no other client ever has a provisional version.
void service::seat(session &s, const inode &n, const coop_st_attr &found, open_file &f)
{
	if (!s.takes_roles)
		return;
	if (f.flags & COOP_ST_O_READ && found.size >= COOP_FOREST_UNIT &&
	    !(found.version & provisional_bit))
		f.seat = audiences.join(s.shared_from_this(), {n.fid, found.version});
	else
		audiences.depart(s, {n.fid, found.version});
}

int service::open(const exported &in, session &s, call r, reply &out)
{
	const int access = access_mode(r.body.flags);
	inode_ref n;
	if (int err = openable(r.body))
		return err;
	if (int err = inodes.get(in, view(r.body.fh), n))
		return err;
	if (int err = has_content(*n))
		return err;
	if (r.body.flags & COOP_ST_O_NAMED && !has_name(*n))
		return -ESTALE;
	lease_table::offer lease = offer(s, r, n);
	if (lease)
		if (int err = attributes(*n, out.body.attr))
			return err;
	{
		std::lock_guard lock(
			n->mutex); // otherwise a look at the version takes it for a foreign open
		unique_fd checked;
		const auto program = [&] { return permitted(n->path.get(), X_OK); };
		const auto data = [&] { return n->reopen(access, checked); };
		// A program that its user may execute but not read is read with the daemon's
		// rights.
		const int err = r.body.flags & COOP_ST_O_EXEC ? as(r.body.cred, program)
							      : as(r.body.cred, data);
		if (err && !(err == -EACCES && reopens_own(*n, r.body)))
			return err;
		if (checked && access == O_RDONLY)
			n->offer_locked(std::move(checked), false);
	}
	return opened(s, std::move(n), r, r.body.count, std::move(lease), out);
}

int service::create(const exported &in, session &s, call r, reply &out)
{
	const int access = access_mode(r.body.flags);
	inode_ref dir, n;
	named_file f;
	if (int err = openable(r.body))
		return err;
	if (int err = directory(in, r.body.fh, dir))
		return err;
	if (hidden(in, *dir, view(r.body.name)))
		return -EPERM;
	if (int err = name_file(in, s, r, *dir, access == O_RDONLY ? O_RDONLY : O_RDWR, f))
		return err;
	if (int err = entry(s, r, *dir, view(r.body.name), std::move(f.path), out, &n))
		return err;
	if (int err = has_content(*n))
		return err;
	{
		std::lock_guard lock(n->mutex);
		unique_fd checked;
		// Its mode need not permit the access that its creation gives.
		if (f.made)
			n->offer_locked(std::move(f.made), access != O_RDONLY);
		else if (int err = f.ours ? 0 : as(r.body.cred, [&] {
				 return n->reopen(access, checked);
			 }))
			return err;
	}
	return opened(s, std::move(n), r, 0, {}, out);
}

// A file without a name, until a LINK gives it one; with EXCL no LINK can.
int service::tmpfile(const exported &in, session &s, call r, reply &out)
{
	inode_ref dir, n;
	unique_fd path, made;
	if (int err = openable(r.body))
		return err;
	if (int err = directory(in, r.body.fh, dir))
		return err;
	if (in.by_path()) // a path handle could not find it
		return -EOPNOTSUPP;
	if (int err = making_as(r.body.cred, r.body.mode, [&] {
		    const int excl = r.body.flags & COOP_ST_O_EXCL ? O_EXCL : 0;
		    made = unique_fd(::openat(dir->path.get(), ".",
					      O_TMPFILE | O_RDWR | O_CLOEXEC | excl,
					      r.body.mode & 07777));
		    return made ? 0 : -errno;
	    }))
		return err;
	const std::string self = "/proc/self/fd/" + std::to_string(made.get());
	path = unique_fd(::open(self.c_str(), O_PATH | O_CLOEXEC));
	if (!path)
		return -errno;
	if (int err = entry(s, r, *dir, ".", std::move(path), out, &n))
		return err;
	{
		std::lock_guard lock(n->mutex);
		n->offer_locked(std::move(made), true);
	}
	if (int err = opened(s, n, r, 0, {}, out))
		return err;
	{
		const orphans::guard hold = in.unnamed().hold(n->fid);
		if (int kept = in.unnamed().keep_locked(n->fid, n->path.get()))
			spdlog::debug("export {}: a file without a name is lost if this daemon "
				      "ends: {}",
				      in.name(), std::strerror(-kept));
	}
	return attributes(*n, out.body.attr);
}

int service::close(const exported &, session &s, call r, reply &out)
{
	std::shared_ptr<open_file> f = s.close(r.body.open_id);
	if (!f)
		return -EBADF;
	inode_ref n = f->node;
	closed(s, r.body.open_id, *f);
	const bool wrote = f->flags & COOP_ST_O_WRITE;
	f.reset(); // drop the writable descriptor first: only then is a read lease a proof
	if (int err = leased_attributes(s, r, n, out.body.attr))
		return err;
	out.body.before = out.body.attr.version;
	if (wrote) {
		std::vector<std::uint32_t> others;
		openers.opened({n->fid, out.body.attr.version}, s.node, others);
	}
	if (!out.body.attr.nlink)
		inodes.discard(n->handle);
	return 0;
}

std::uint64_t service_stats::egress_saved_bytes() const
{
	const std::uint64_t insisted = insisted_bytes, all = redirected_bytes;
	return all - std::min(all, insisted);
}

bool service::redirected(session &s, const inode &n, call r, std::uint32_t count, reply &out)
{
	const std::uint64_t offset = r.body.offset, end = offset + count, size = out.body.size;
	const std::uint32_t node = s.role_node();
	// Other nodes have only bytes whose version is proved.
	if (!node || !r.body.version || r.body.version & provisional_bit || !count)
		return false;
	const std::uint64_t all = (end + page_bytes - 1) / page_bytes;
	const bool insists = r.body.flags & COOP_ST_READ_INSIST;
	const holder_table::reading reading = {
		{offset / page_bytes, all},
		{(offset + page_bytes - 1) / page_bytes, end == size ? all : end / page_bytes},
		(r.body.flags & COOP_ST_READ_MAY_REDIRECT) != 0,
		insists,
		r.head.op == COOP_ST_READ_CHAINED};
	if (insists)
		stats.insisted_bytes.fetch_add(count, std::memory_order_relaxed);
	holder_table::answer named;
	if (!holders.redirect(node, {n.fid, r.body.version}, reading, named))
		return false;
	out.body.n_nodes = static_cast<u32>(named.nodes.size());
	std::copy(named.nodes.begin(), named.nodes.end(), out.body.nodes);
	out.body.flags = named.level;
	stats.redirected.fetch_add(1, std::memory_order_relaxed);
	stats.redirected_bytes.fetch_add(count, std::memory_order_relaxed);
	return true;
}

// The bytes that OPEN's reply carries are sent, too.
void service::note_inline(session &s, const inode &n, std::uint64_t version, const reply &out)
{
	const std::uint64_t size = out.data.size();
	if (!s.role_node() || !size || version & provisional_bit)
		return;
	const bool all = size == out.body.attr.size;
	holder_table::answer none;
	const page_range pages = {0,
				  all ? (size + page_bytes - 1) / page_bytes : size / page_bytes};
	(void)holders.redirect(s.role_node(), {n.fid, version}, {pages, pages, false, false, false},
			       none);
}

int service::read(const exported &, session &s, call r, reply &out)
{
	std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f || !(f->flags & COOP_ST_O_READ))
		return -EBADF;
	if (r.body.count > COOP_ST_IO_MAX ||
	    r.body.offset > static_cast<u64>(INT64_MAX) - r.body.count ||
	    r.body.flags & ~COOP_ST_READ_ALL)
		return -EINVAL;
	inode &n = *f->node;
	constexpr unsigned tries = 4; // for READ of any version while another process writes
	for (unsigned i = 0; i < tries; i++) {
		std::shared_ptr<unique_fd> fd;
		std::uint64_t version = r.body.version, size;
		int err;
		std::unique_lock lock(n.mutex);
		fd = n.data_locked(err);
		if (!fd)
			return err;
		err = verify_locked(n, version, size);
		if (err)
			return err;
		// At the last attempt keep the mutex: our own writers wait.
		if (r.body.version || i + 1 < tries)
			lock.unlock();
		const auto count = static_cast<std::uint32_t>(
			r.body.offset < size
				? std::min<std::uint64_t>(r.body.count, size - r.body.offset)
				: 0);
		out.body.version = version;
		out.body.size = size;
		if (redirected(s, n, r, count, out))
			return 0;
		if (count > r.copy_most) {
			out.file = std::move(fd);
			out.node = f->node;
			out.version = version;
			out.offset = r.body.offset;
			out.count = count;
			stats.read_bytes.fetch_add(count, std::memory_order_relaxed);
			return 0;
		}
		out.data.resize(count);
		ssize_t got = 0;
		if (count)
			got = ::pread(fd->get(), out.data.data(), count,
				      static_cast<off_t>(r.body.offset));
		if (got < 0)
			return -errno;
		if (got == static_cast<ssize_t>(count) &&
		    (lock ? matches_locked(n, version) : matches(n, version))) {
			stats.read_bytes.fetch_add(count, std::memory_order_relaxed);
			return 0;
		}
		if (r.body.version)
			break;
	}
	return -ESTALE;
}

int service::check(const exported &, session &s, call r, reply &out)
{
	std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f)
		return -EBADF;
	out.body.version = r.body.version;
	std::lock_guard lock(f->node->mutex);
	if (!r.body.version)
		return -EINVAL;
	return verify_locked(*f->node, out.body.version, out.body.size);
}

} // namespace coop::daemon
