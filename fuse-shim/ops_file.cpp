// SPDX-License-Identifier: MIT
// ops_file.cpp - operations on open files.
//
// The answer to a read is not copied here: the kernel takes it from the page
// store's memory, spliced out of its memfd, or out of the mapping where the read is
// so small that the system calls of a splice cost more than the copy. The blocks
// stay pinned until the reply has returned, when the kernel has its own copy.
#include "fuse-shim/shim.hpp"

#include <cerrno>

namespace coop::shim
{

namespace
{

// Below this a splice costs more than it saves.
constexpr std::size_t splice_from = 64u << 10;

client::open_file &file_of(const fuse_file_info *fi)
{
	return *reinterpret_cast<client::open_file *>(fi->fh);
}

void fill_in(client::files::open_answer &a, fuse_file_info *fi)
{
	fi->keep_cache = a.keep;
	// The daemon chooses where appended bytes go, so the kernel must not keep them where it
	// believes them to be.
	fi->direct_io = (fi->flags & O_APPEND) && (fi->flags & O_ACCMODE) == O_WRONLY;
	fi->noflush = (fi->flags & O_ACCMODE) == O_RDONLY; // nothing to tell a reader at close
	fi->fh = reinterpret_cast<std::uint64_t>(a.file.get());
}

// Runs of the arena, in order: neighbouring pieces become one.
struct run {
	std::uint64_t offset;
	std::size_t length;
};

std::vector<run> runs_of(const std::vector<client::piece> &pieces)
{
	std::vector<run> runs;
	for (const client::piece &p : pieces) {
		if (!runs.empty() && runs.back().offset + runs.back().length == p.arena_offset)
			runs.back().length += p.length;
		else
			runs.push_back({p.arena_offset, p.length});
	}
	return runs;
}

void reply_copied(fuse_req_t req, const std::byte *base, const std::vector<run> &runs)
{
	std::vector<iovec> iov;
	for (const run &r : runs)
		iov.push_back({const_cast<std::byte *>(base) + r.offset, r.length});
	fuse_reply_iov(req, iov.data(), static_cast<int>(iov.size()));
}

void reply_spliced(fuse_req_t req, int memfd, const std::vector<run> &runs)
{
	// A fuse_bufvec ends in an array of one that is meant to be longer.
	auto bytes = sizeof(fuse_bufvec) + runs.size() * sizeof(fuse_buf);
	std::unique_ptr<fuse_bufvec, void (*)(void *)> v(
		static_cast<fuse_bufvec *>(std::calloc(1, bytes)), std::free);
	if (!v)
		return reply_status(req, -ENOMEM);
	v->count = runs.size();
	for (std::size_t i = 0; i < runs.size(); i++) {
		fuse_buf &b = v->buf[i];
		b.size = runs[i].length;
		b.flags = static_cast<fuse_buf_flags>(FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK);
		b.fd = memfd;
		b.pos = static_cast<off_t>(runs[i].offset);
	}
	fuse_reply_data(req, v.get(), static_cast<fuse_buf_copy_flags>(0));
}

void reply_read(fuse_req_t req, context &c, const client::read_answer &a)
{
	if (a.direct) {
		fuse_reply_buf(req, reinterpret_cast<const char *>(a.direct.get()),
			       a.direct_length);
		return;
	}
	auto runs = runs_of(a.pieces);
	std::size_t total = 0;
	for (const run &r : runs)
		total += r.length;
	if (total < splice_from)
		reply_copied(req, c.mount.pages().base(), runs);
	else
		reply_spliced(req, c.mount.pages().memfd(), runs);
}

} // namespace

void op_open(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.open(req, ino, fi);
	client::files::open_answer a;
	int err = c.mount.files().open(caller_of(req), inode_of(c, ino), fi->flags, a);
	if (err)
		return reply_status(req, err);
	fill_in(a, fi);
	// Attributes alone: this takes no lock of a page, so it may be done inside a request.
	if (a.attr_stale)
		fuse_lowlevel_notify_inval_inode(c.session, ino, -1, 0);
	if (fuse_reply_open(req, fi) == 0)
		a.file.release(); // the kernel's, until op_release
	else
		c.mount.files().release(std::move(a.file));
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent))
		return reply_status(req, -EPERM);
	client::files::open_answer a;
	client::entry made;
	client::inode *node = nullptr;
	int err = c.mount.files().create(caller_of(req), inode_of(c, parent).fh, name, fi->flags,
					 mode, made, node, a);
	if (err)
		return reply_status(req, err);
	fuse_entry_param p{};
	p.ino = number_of(c, *node);
	p.attr = made.attr.st;
	p.attr_timeout = p.entry_timeout = cache_seconds;
	fill_in(a, fi);
	if (fuse_reply_create(req, &p, fi) == 0) {
		a.file.release();
	} else {
		c.mount.files().release(std::move(a.file));
		c.mount.inodes().forget(node, 1);
	}
}

void op_read(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.read(req, size, offset, fi);
	client::read_answer a;
	int err = c.mount.files().read(file_of(fi), static_cast<std::uint64_t>(offset),
				       static_cast<std::uint32_t>(size), a);
	if (err)
		return reply_status(req, err);
	reply_read(req, c, a);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, std::size_t size, off_t offset,
	      fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.write(req, ino, {data, size});
	iovec v{const_cast<char *>(data), size};
	int err = c.mount.files().write(file_of(fi), static_cast<std::uint64_t>(offset), {&v, 1},
					size);
	if (err)
		return reply_status(req, err);
	fuse_reply_write(req, size);
}

void op_flush(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi)
{
	reply_status(req,
		     control::owns(ino) ? 0 : context_of(req).mount.files().flush(file_of(fi)));
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int, fuse_file_info *fi)
{
	reply_status(req,
		     control::owns(ino) ? 0 : context_of(req).mount.files().commit(file_of(fi)));
}

void op_release(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.release(req, fi);
	c.mount.files().release(std::unique_ptr<client::open_file>(&file_of(fi)));
	reply_status(req, 0);
}

} // namespace coop::shim
