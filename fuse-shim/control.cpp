// SPDX-License-Identifier: MIT
// control.cpp - the files of .coopfs: permissions, contents, and effects of a write.
#include "fuse-shim/control.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "userland/client/text.hpp"

namespace coop::shim
{

namespace
{

struct file {
	std::string_view name;
	bool writable;
};

// Inode number = control::directory + 1 + index in the table.
constexpr file files[] = {
	{"ibaddr", true},    {"peers", false},   {"stats", true},
	{"requests", false}, {"options", false}, {"info", false},
};

enum : fuse_ino_t { ibaddr = control::directory + 1, peers, stats, requests, options, info_file };

// The kernel cannot notice a change of these attributes, so it must ask each time.
constexpr double no_cache = 0;

timespec now()
{
	timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t;
}

} // namespace

control::control(client::mount &mount, std::string mountpoint) :
	mount_(mount),
	mountpoint_(std::move(mountpoint)),
	owner_(getuid()),
	group_(getgid()),
	since_(now())
{
}

bool control::owns(fuse_ino_t ino)
{
	static_assert(directory + std::size(files) < client::inode_numbers::first);
	return ino >= directory && ino <= directory + std::size(files);
}

fuse_ino_t control::find(std::string_view name)
{
	for (std::size_t i = 0; i < std::size(files); i++) {
		if (files[i].name == name)
			return directory + 1 + i;
	}
	return 0;
}

struct stat control::attributes(fuse_ino_t ino) const
{
	struct stat st {
	};
	st.st_ino = ino;
	st.st_uid = owner_;
	st.st_gid = group_;
	st.st_blksize = 4096;
	st.st_atim = st.st_mtim = st.st_ctim = since_;
	if (ino == directory) {
		st.st_mode = S_IFDIR | 0500;
		st.st_nlink = 2;
	} else {
		st.st_mode = S_IFREG | 0600;
		st.st_nlink = 1;
	}
	return st;
}

void control::lookup(fuse_req_t req, fuse_ino_t parent, std::string_view name) const
{
	fuse_entry_param e{};
	// The kernel looks up "." for a file handle.
	e.ino = name == "."           ? parent
		: parent == directory ? find(name)
		: owns(parent)        ? 0
				      : directory;
	if (!e.ino) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	e.generation = mount_.inodes().generation();
	e.attr = attributes(e.ino);
	e.attr_timeout = e.entry_timeout = no_cache;
	fuse_reply_entry(req, &e);
}

void control::getattr(fuse_req_t req, fuse_ino_t ino) const
{
	struct stat st = attributes(ino);
	fuse_reply_attr(req, &st, no_cache);
}

// A shell's '>' truncates before it writes; all other changes are refused.
void control::setattr(fuse_req_t req, fuse_ino_t ino, int to_set) const
{
	constexpr int touch = FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_CTIME | FUSE_SET_ATTR_MTIME |
			      FUSE_SET_ATTR_MTIME_NOW | FUSE_SET_ATTR_ATIME |
			      FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_FILE | FUSE_SET_ATTR_OPEN;
	if (ino == directory || (to_set & ~touch))
		fuse_reply_err(req, EPERM);
	else
		getattr(req, ino);
}

void control::open(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi) const
{
	uid_t uid = fuse_req_ctx(req)->uid;
	bool writes = (fi->flags & O_ACCMODE) != O_RDONLY;
	if ((uid != owner_ && uid != 0) || (writes && !files[ino - directory - 1].writable)) {
		fuse_reply_err(req, EACCES);
		return;
	}
	bool reads = (fi->flags & O_ACCMODE) != O_WRONLY;
	auto text = std::make_unique<std::string>(reads ? render(ino) : "");
	fi->direct_io = 1; // the size is unknown before the text is rendered
	fi->fh = reinterpret_cast<std::uint64_t>(text.get());
	if (fuse_reply_open(req, fi) == 0)
		text.release();
}

void control::read(fuse_req_t req, std::size_t size, off_t offset, fuse_file_info *fi) const
{
	const auto &text = *reinterpret_cast<const std::string *>(fi->fh);
	auto from = std::min(static_cast<std::size_t>(offset), text.size());
	fuse_reply_buf(req, text.data() + from, std::min(size, text.size() - from));
}

void control::write(fuse_req_t req, fuse_ino_t ino, std::string_view text) const
{
	int err = command(ino, text);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_write(req, text.size());
}

void control::release(fuse_req_t req, fuse_file_info *fi) const
{
	delete reinterpret_cast<std::string *>(fi->fh);
	fuse_reply_err(req, 0);
}

void control::readdir(fuse_req_t req, std::size_t size, off_t offset, bool plus) const
{
	std::string buffer(size, '\0');
	std::size_t used = 0;
	auto place = static_cast<std::size_t>(offset);
	for (; place < std::size(files) + 2; place++) {
		const char *name = place == 0   ? "."
				   : place == 1 ? ".."
						: files[place - 2].name.data();
		auto ino = place == 0   ? directory
			   : place == 1 ? FUSE_ROOT_ID
					: directory + place - 1;
		fuse_entry_param e{}; // inode 0: the kernel takes no reference
		e.attr.st_ino = ino;
		e.attr.st_mode = place < 2 ? S_IFDIR : S_IFREG;
		auto at = buffer.data() + used;
		auto room = size - used;
		auto next = static_cast<off_t>(place + 1);
		auto need = plus ? fuse_add_direntry_plus(req, at, room, name, &e, next)
				 : fuse_add_direntry(req, at, room, name, &e.attr, next);
		if (need > room)
			break;
		used += need;
	}
	fuse_reply_buf(req, buffer.data(), used);
}

std::string control::render(fuse_ino_t ino) const
{
	switch (ino) {
	case ibaddr:
		return client::ibaddr_text(mount_.node());
	case peers:
		return client::peers_text(mount_.node(), mount_.membership());
	case stats:
		return client::stats_text(mount_.reader(), mount_.node(), mount_.pages(),
					  mount_.storage(), mount_.membership(),
					  mount_.files().written_again());
	case requests:
		return client::requests_text(mount_.node(), mount_.storage());
	case options:
		return client::format_options(mount_.options());
	case info_file:
		return info();
	default:
		return "";
	}
}

std::string control::info() const
{
	const client::mount_options &o = mount_.options();
	const client::inode_table::figures files = mount_.inodes().count();
	bool v6 = o.server.find(':') != o.server.npos;
	return fmt::format("server {}{}{}:{} {}\nexport {}\nnode {}\npid {}\nendpoint {}\n"
			   "mountpoint {}\nfiles {} forgotten {}\nversion " COOP_VERSION "\n",
			   v6 ? "[" : "", o.server, v6 ? "]" : "", o.port,
			   mount_.storage().stats().connected ? "connected" : "reconnecting",
			   o.export_name, mount_.node_id(), getpid(), mount_.endpoint_name(),
			   mountpoint_, files.held, files.forgotten);
}

int control::command(fuse_ino_t ino, std::string_view text) const
{
	switch (ino) {
	case ibaddr:
		return client::ibaddr_write(mount_.node(), text);
	case stats:
		client::stats_reset(mount_.reader(), mount_.node());
		return 0;
	default:
		return -EACCES;
	}
}

} // namespace coop::shim
