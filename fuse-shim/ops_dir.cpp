// SPDX-License-Identifier: MIT
// ops_dir.cpp - reading directories.
//
// We keep no state between two reads of a directory: the offset from the kernel is storage's own
// cookie, and entries that did not fit are read again. So the attributes of a readdirplus are never
// older than the request, and a name that was removed in between does not reappear.
#include "fuse-shim/shim.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

namespace coop::shim
{

namespace
{

// Offsets after "." and "..", which storage leaves out. Its cookies are directory offsets of the
// exported file system, which stay far below.
constexpr off_t after_dot = 0x7ffffffffffffff0;
constexpr off_t after_dotdot = 0x7ffffffffffffff1;

// Room for any single entry in a reply of storage.
constexpr std::uint32_t one_entry = 1024;

struct listing {
	fuse_req_t req;
	std::string buffer;
	std::size_t used = 0;
	bool plus;
	std::vector<std::shared_ptr<client::inode>> nodes; // whose attributes it has
	bool waits = false; // has attributes of a file whose old pages the kernel is to drop before

	listing(fuse_req_t r, std::size_t size, bool plus) : req(r), buffer(size, '\0'), plus(plus)
	{
	}

	// False: no room left.
	bool add(const char *name, const fuse_entry_param &e, off_t next)
	{
		auto room = buffer.size() - used;
		auto at = buffer.data() + used;
		auto need = plus ? fuse_add_direntry_plus(req, at, room, name, &e, next)
				 : fuse_add_direntry(req, at, room, name, &e.attr, next);
		if (need > room)
			return false;
		used += need;
		return true;
	}

	// An entry without a reference for the kernel.
	bool add_bare(const char *name, const struct stat &st, off_t next)
	{
		fuse_entry_param e{};
		e.attr = st;
		return add(name, e, next);
	}
};

struct stat directory_stat(ino_t ino)
{
	struct stat st {
	};
	st.st_ino = ino;
	st.st_mode = S_IFDIR;
	return st;
}

// Adds "." and ".." if 'offset' is before them. False: no room.
bool add_dots(listing &l, ino_t self, off_t &offset)
{
	constexpr ino_t unknown = 0xffffffff; // only the kernel knows the parent's number
	if (offset == 0) {
		if (!l.add_bare(".", directory_stat(self), after_dot))
			return false;
		offset = after_dot;
	}
	if (offset == after_dot) {
		if (!l.add_bare("..", directory_stat(unknown), after_dotdot))
			return false;
		offset = after_dotdot;
	}
	if (offset == after_dotdot)
		offset = 0;
	return true;
}

bool add_entry(listing &l, context &c, fuse_ino_t dir, client::dir_entry &e, const asking &asked)
{
	auto next = static_cast<off_t>(e.cookie);
	if (reserved(dir, e.name))
		return true; // hidden by the control directory, which is not listed
	if (!l.plus || e.node.fh.empty())
		return l.add_bare(e.name.c_str(), e.node.attr.st, next);
	fuse_entry_param p = make_entry(c, e.node, {dir, e.name, true}, asked);
	client::inode &node = inode_of(c, p.ino);
	l.nodes.push_back(node.shared_from_this());
	l.waits = l.waits || node.dropping_pages;
	bool fits = l.add(e.name.c_str(), p, next);
	if (!fits)
		c.mount.inodes().forget(&inode_of(c, p.ino), 1);
	return fits;
}

// A directory that was removed has no names; one of which storage has lost the handle may have.
int of_directory(fuse_req_t req, fuse_ino_t dir, int err, int if_removed)
{
	context &c = context_of(req);
	const bool stale = err == -ESTALE;
	return stale && c.mount.files().is_removed(caller_of(req), inode_of(c, dir)) ? if_removed
										     : err;
}

void list(fuse_req_t req, fuse_ino_t dir, std::size_t size, off_t offset, bool plus)
{
	context &c = context_of(req);
	if (control::owns(dir))
		return c.files_of_control.readdir(req, size, offset, plus);
	listing l(req, size, plus);
	bool room = add_dots(l, inode_of(c, dir).number, offset);
	auto who = caller_of(req);
	bool end = false;
	auto cookie = static_cast<std::uint64_t>(offset);
	auto empty = l.used;
	while (room && !end && l.used == empty) {
		const asking asked(c);
		std::vector<client::dir_entry> entries;
		int err = c.mount.storage().readdir(
			who, inode_of(c, dir).fh, cookie,
			std::max<std::uint32_t>(one_entry, size - l.used), entries, end);
		// Entries in the buffer hold references: send them; the next read returns the
		// error.
		if (err && l.used == 0)
			return reply_status(req, of_directory(req, dir, err, -ENOENT));
		if (err || entries.empty())
			break;
		cookie = entries.back().cookie;
		for (client::dir_entry &e : entries) {
			room = add_entry(l, c, dir, e, asked);
			if (!room)
				break;
		}
	}
	l.buffer.resize(l.used);
	const bool waits = l.waits;
	auto told = [&c, l = std::move(l)] {
		std::vector<client::inode_table::telling> turns;
		turns.reserve(l.nodes.size());
		for (const auto &node : l.nodes)
			turns.emplace_back(c.mount.inodes(), *node);
		fuse_reply_buf(l.req, l.buffer.data(), l.used);
	};
	if (waits)
		c.pages_dropped(std::move(told));
	else
		told();
}

std::atomic<std::uint64_t> *losses_of(const fuse_file_info &fi)
{
	return reinterpret_cast<std::atomic<std::uint64_t> *>(fi.fh);
}

} // namespace

// Reading a directory needs storage anyway; this refuses early a caller without permission. One
// that was removed opens if the path leads nowhere else: its names are gone, and reading it says
// so.
void op_opendir(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino)) {
		fuse_reply_open(req, fi);
		return;
	}
	const pid_t thread = fuse_req_ctx(req)->pid;
	const bool second = c.looks.is_second(thread, ino);
	std::vector<client::dir_entry> none;
	bool end;
	int err = -ESTALE;
	const short_wait limit(ino == FUSE_ROOT_ID); // df(1) opens it, and reading is checked again
	if (second || !c.names.doubtful(ino))
		err = c.mount.storage().readdir(caller_of(req), inode_of(c, ino).fh, 0, 0, none,
						end);
	if (err == -EINTR && limit.is_over())
		err = 0;
	if (err == -ESTALE && !second)
		c.looks.tell(thread, ino);
	if (second)
		err = of_directory(req, ino, err, 0);
	if (err)
		return reply_status(req, err);
	// The losses of names that this open directory knows of.
	fi->fh = reinterpret_cast<std::uint64_t>(
		new std::atomic<std::uint64_t>(inode_of(c, ino).name_losses.load()));
	if (fuse_reply_open(req, fi)) // the caller was killed: no releasedir follows
		delete losses_of(*fi);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info *)
{
	list(req, ino, size, offset, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset,
		    fuse_file_info *)
{
	list(req, ino, size, offset, true);
}

// Names are created at storage; this commits them to its disk.
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int, fuse_file_info *fi)
{
	context &c = context_of(req);
	const int err = control::owns(ino)
				? 0
				: c.mount.files().commit_names(inode_of(c, ino), *losses_of(*fi));
	reply_status(req, of_directory(req, ino, err, 0));
}

void op_releasedir(fuse_req_t req, fuse_ino_t, fuse_file_info *fi)
{
	delete losses_of(*fi);
	reply_status(req, 0);
}

} // namespace coop::shim
