// SPDX-License-Identifier: MIT
// ops_lock.cpp - locks: fcntl(2) and flock(2), held at the daemon among all nodes.
//
// A lock's next holder sees what a node wrote under it. Writes have reached storage before they are
// answered; only stores through a shared mapping may still be in the kernel. So before we release a
// write lock, or ask for a read lock in its place, we tell the kernel to drop the pages of its
// range, which first writes them to storage. After a lock was granted we check the file's version,
// and the kernel drops pages of older versions before the request is answered. Both wait for pages
// that a worker may have to fill, so a separate thread does them (background.hpp).
//
// The kernel does not tell us whether a lock belongs to an open file description (F_OFD_SETLK) or
// to a process: a circle among the former also fails with EDEADLK.
#include <cerrno>
#include <optional>
#include <sys/file.h>

#include "fuse-shim/caller.hpp"
#include "fuse-shim/shim.hpp"

namespace coop::shim
{

namespace
{

constexpr std::uint64_t to_the_end = ~0ull;

std::uint32_t type_of(int type)
{
	return type == F_WRLCK   ? COOP_ST_LOCK_WRITE
	       : type == F_RDLCK ? COOP_ST_LOCK_READ
				 : COOP_ST_LOCK_NONE;
}

// The kernel gives ranges relative to the start of the file; length 0 extends to its end.
coop_st_lock range_of(const fuse_file_info *fi, const struct flock &l)
{
	const auto start = static_cast<std::uint64_t>(l.l_start);
	return {fi->lock_owner,
		start,
		l.l_len ? start + static_cast<std::uint64_t>(l.l_len) - 1 : to_the_end,
		COOP_ST_LOCK_POSIX,
		type_of(l.l_type),
		static_cast<std::uint32_t>(l.l_pid)};
}

coop_st_lock whole_file(std::uint64_t owner, std::uint32_t kind, std::uint32_t type)
{
	return {owner, 0, to_the_end, kind, type, 0};
}

// The lock is held: answer once the kernel has no older pages.
void held(context &c, fuse_req_t req, client::open_file &file,
	  const std::optional<coop_st_lock> &undo)
{
	bool drop = false;
	const int err = c.mount.files().refresh(file, undo, drop);
	if (err || !drop)
		return reply_status(req, err);
	c.pages_dropped([req, &c, &file] {
		c.mount.files().dropped(file);
		reply_status(req, 0);
	});
}

void try_cancel(context &c, std::uint64_t id, std::uint64_t cookie)
{
	// If cancelled, no grant will come, and we answer.
	if (!c.mount.storage().cancel_lock(cookie))
		return;
	if (const auto w = c.waits.take(id))
		reply_status(w->req, -EINTR);
}

void on_signal(fuse_req_t req, void *id_of_wait)
{
	context &c = context_of(req);
	const auto id = reinterpret_cast<std::uint64_t>(id_of_wait);
	if (const std::uint64_t cookie = c.waits.interrupt(id))
		try_cancel(c, id, cookie);
}

// Any signal ends a wait for a lock, also while the request travels to the daemon.
struct lock_asker final : client::asker {
	lock_asker(lock_waits &waits, std::uint64_t id) : waits(waits), id(id) {}
	bool gone() override { return waits.interrupted(id); }
	lock_waits &waits;
	const std::uint64_t id;
};

void wait_for(context &c, fuse_req_t req, client::open_file &file, const coop_st_lock &what)
{
	const auto undo = c.mount.files().undo_of(file, what);
	const std::uint64_t id = c.waits.begin(req, file, undo);
	fuse_req_interrupt_func(req, on_signal, reinterpret_cast<void *>(id));
	const lock_asker patience(c.waits, id);
	std::uint64_t cookie = 0;
	const int err = c.mount.files().lock(
		file, what, true,
		[&c, id](int e) {
			// The connection's thread cannot wait for a storage reply that it receives
			// itself.
			c.later.run([&c, id, e] {
				const auto w = c.waits.take(id);
				e ? reply_status(w->req, e) : held(c, w->req, *w->file, w->undo);
			});
		},
		cookie);
	if (err == -EINPROGRESS) {
		// The request may already be answered: only the table knows.
		if (c.waits.queued(id, cookie))
			try_cancel(c, id, cookie);
		return;
	}
	(void)c.waits.take(id);
	err ? reply_status(req, err) : held(c, req, file, undo);
}

void ask(context &c, fuse_req_t req, client::open_file &file, const coop_st_lock &what, bool wait)
{
	if (wait)
		return wait_for(c, req, file, what);
	const caller_process who(req);
	const auto undo = c.mount.files().undo_of(file, what);
	std::uint64_t cookie = 0;
	const int err = c.mount.files().lock(file, what, false, nullptr, cookie);
	err ? reply_status(req, err) : held(c, req, file, undo);
}

// May the kernel have stores in the range that were made under a write lock?
bool has_stores(context &c, const client::open_file &file, const coop_st_lock &what)
{
	coop_st_lock exclusive = what;
	exclusive.type = COOP_ST_LOCK_WRITE;
	// Only an open for reading and writing permits a shared mapping with stores.
	return (file.flags & O_ACCMODE) == O_RDWR && c.mount.files().holds_lock(file, exclusive);
}

// The kernel writes and drops the pages of the range. Only in the thread for that.
void bring_stores(context &c, fuse_ino_t ino, const coop_st_lock &what)
{
	const auto length = what.end == to_the_end ? 0 : what.end - what.start + 1;
	fuse_lowlevel_notify_inval_inode(c.session, ino, static_cast<off_t>(what.start),
					 static_cast<off_t>(length));
}

void lock(fuse_req_t req, const fuse_file_info *fi, fuse_ino_t ino, const coop_st_lock &what,
	  bool wait)
{
	context &c = context_of(req);
	client::open_file &file = file_of(fi);
	if (what.type != COOP_ST_LOCK_READ || !has_stores(c, file, what))
		return ask(c, req, file, what, wait);
	c.later.run([req, &c, &file, ino, what, wait] {
		bring_stores(c, ino, what);
		ask(c, req, file, what, wait);
	});
}

void unlock(fuse_req_t req, const fuse_file_info *fi, fuse_ino_t ino, const coop_st_lock &what,
	    int status)
{
	context &c = context_of(req);
	client::open_file &file = file_of(fi);
	if (!has_stores(c, file, what)) {
		const int err = c.mount.files().unlock(file, what);
		return reply_status(req, status ? status : err);
	}
	c.later.run([req, &c, &file, ino, what, status] {
		bring_stores(c, ino, what);
		const int err = c.mount.files().unlock(file, what);
		reply_status(req, status ? status : err);
	});
}

} // namespace

void op_getlk(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi, struct flock *l)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return reply_status(req, -EOPNOTSUPP);
	const client::open_file &file = file_of(fi);
	coop_st_lock what = range_of(fi, *l);
	if (int err = c.mount.storage().test_lock(file.node->fh, file.open_id, what))
		return reply_status(req, err);
	struct flock out {
	};
	out.l_type = what.type == COOP_ST_LOCK_WRITE  ? F_WRLCK
		     : what.type == COOP_ST_LOCK_READ ? F_RDLCK
						      : F_UNLCK;
	out.l_whence = SEEK_SET;
	out.l_start = static_cast<off_t>(what.start);
	out.l_len = what.end == to_the_end ? 0 : static_cast<off_t>(what.end - what.start + 1);
	out.l_pid = static_cast<pid_t>(what.pid); // 0: held on another node
	fuse_reply_lock(req, &out);
}

void op_setlk(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi, struct flock *l, int sleep)
{
	if (control::owns(ino))
		return reply_status(req, -EOPNOTSUPP);
	const coop_st_lock what = range_of(fi, *l);
	if (what.type == COOP_ST_LOCK_NONE)
		unlock(req, fi, ino, what, 0);
	else
		lock(req, fi, ino, what, sleep);
}

void op_flock(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi, int op)
{
	if (control::owns(ino))
		return reply_status(req, -EOPNOTSUPP);
	const int type = op & ~LOCK_NB;
	const coop_st_lock what = whole_file(fi->lock_owner, COOP_ST_LOCK_FLOCK,
					     type == LOCK_EX   ? COOP_ST_LOCK_WRITE
					     : type == LOCK_SH ? COOP_ST_LOCK_READ
							       : COOP_ST_LOCK_NONE);
	if (what.type == COOP_ST_LOCK_NONE)
		unlock(req, fi, ino, what, 0);
	else
		lock(req, fi, ino, what, !(op & LOCK_NB));
}

void unlock_at_close(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi, int status)
{
	unlock(req, fi, ino, whole_file(fi->lock_owner, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_NONE),
	       status);
}

} // namespace coop::shim
