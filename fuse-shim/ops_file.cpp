// SPDX-License-Identifier: MIT
// ops_file.cpp - operations on open files.
//
// The data of a read are not copied here: the kernel copies them directly from the page store's
// mapping. Splicing them out of the memfd would also copy once, but the pipe in between costs
// processor time and limits a read to the 1 MiB that a pipe holds. The blocks stay pinned until the
// reply call has returned; then the kernel has its copy.
#include "fuse-shim/newer_requests.hpp"
#include "fuse-shim/shim.hpp"

#include <cerrno>
#include <memory>
#include <optional>
#include <unistd.h>

namespace coop::shim
{

namespace
{

void fill_in(const context &c, client::files::open_answer &a, fuse_file_info *fi)
{
	fi->keep_cache = a.keep;
	fi->direct_io = a.file->past_cache();
	// A close of a read-only file has only POSIX locks to release; with local ones, it has
	// nothing to do.
	fi->noflush = (fi->flags & O_ACCMODE) == O_RDONLY && c.mount.options().local_posix;
	fi->fh = reinterpret_cast<std::uint64_t>(a.file.get());
}

std::size_t kernel_page()
{
	static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
	return bytes;
}

// True: the kernel has them, as pieces of the store.
bool reply_read(fuse_req_t req, context &c, const client::read_answer &a)
{
	if (a.direct) {
		fuse_reply_buf(req, reinterpret_cast<const char *>(a.direct.get()),
			       a.direct_length);
		return false;
	}
	// In order; adjacent pieces in the store's memory are joined.
	std::byte *const base = c.mount.pages().base();
	std::vector<iovec> iov;
	iov.reserve(a.pieces.size());
	for (const client::piece &p : a.pieces) {
		std::byte *const at = base + p.arena_offset;
		if (!iov.empty() &&
		    static_cast<std::byte *>(iov.back().iov_base) + iov.back().iov_len == at)
			iov.back().iov_len += p.length;
		else
			iov.push_back({at, p.length});
	}
	return fuse_reply_iov(req, iov.data(), static_cast<int>(iov.size())) == 0;
}

// Answers an open so that the kernel walks the path again. The notification comes before, so that
// what is on its way by then does not count: see client/inode.hpp, "The kernel's attributes".
void look_again(fuse_req_t req, context &c, fuse_ino_t ino)
{
	client::inode &node = inode_of(c, ino);
	after_pages(c, node, [req, &c, ino, &node] {
		c.announce(node);
		c.looks.tell(fuse_req_ctx(req)->pid, ino, c.mount.inodes().looks_again(node));
		reply_status(req, -ESTALE);
	});
}

} // namespace

void op_open(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.open(req, ino, fi);
	// The name that led here may be old: then the kernel looks again. See second_looks.hpp.
	// 0: of another pid namespace, as others may be.
	const pid_t thread = fuse_req_ctx(req)->pid;
	client::inode &node = inode_of(c, ino);
	c.mount.inodes().has_acted(node, thread);
	const second_looks::look second = c.looks.second(thread, ino);
	client::files::open_answer a;
	const int how = second ? fi->flags : fi->flags | client::storage::open_named;
	int err = -ESTALE;
	if (second || !c.names.doubtful(ino))
		err = c.mount.files().open(caller_of(req), node, how, a,
					   {!second && thread, second.bumps, second.version});
	if (second)
		c.mount.inodes().has_looked(node);
	if (err == -ESTALE && !second)
		return look_again(req, c, ino);
	if (err == -ESTALE && c.mount.files().is_removed(caller_of(req), node))
		err = -ENOENT;
	if (err)
		return reply_status(req, err);
	fill_in(c, a, fi);
	if (a.attr_stale && fi->flags & O_TRUNC)
		c.forget_attributes(*a.file->node);
	else if (a.attr_stale)
		c.announce(*a.file->node);
	if (fuse_reply_open(req, fi) == 0)
		a.file.release(); // owned by the kernel, until op_release
	else
		c.mount.files().release(std::move(a.file));
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent))
		return reply_status(req, -EPERM);
	const asking asked(c);
	client::files::open_answer a;
	client::entry made;
	client::inode *node = nullptr;
	int err = c.mount.files().create(caller_of(req), inode_of(c, parent).fh,
					 name == nameless ? "" : name, fi->flags,
					 mode_of(req, mode), made, node, a);
	if (err)
		return reply_failed(req, parent, err);
	fuse_entry_param p = name == nameless ? entry_of(c, *node, made.attr)
					      : entry_of(c, *node, made, {parent, name}, asked);
	fill_in(c, a, fi);
	// It may have been there.
	after_pages(c, *node, [req, &c, p, node, how = *fi, file = a.file.release()] {
		if (fuse_reply_create(req, &p, &how) == 0)
			return; // the file is the kernel's, until op_release
		c.mount.files().release(std::unique_ptr<client::open_file>(file));
		c.mount.inodes().forget(node, 1);
	});
}

void op_read(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.read(req, size, offset, fi);
	client::read_answer a;
	const client::inode_table::read_in_hand hand(c.mount.inodes(), file_of(fi).node);
	c.mount.inodes().returns(*file_of(fi).node, fuse_req_ctx(req)->pid,
				 static_cast<std::uint64_t>(offset), size);
	int err = c.mount.files().read(file_of(fi), static_cast<std::uint64_t>(offset),
				       static_cast<std::uint32_t>(size), a);
	if (err)
		return reply_status(req, err);
	const bool caches = !(fi->flags & O_DIRECT);
	// It does not read ahead of the page with its end of the file.
	const bool short_by_pages = a.length + kernel_page() <= size;
	if ((a.falls_short || short_by_pages) && caches && !file_of(fi).past_cache() &&
	    c.mount.inodes().refuses_short(*file_of(fi).node, static_cast<std::uint64_t>(offset),
					   size, a.length, kernel_page(), fuse_req_ctx(req)->pid))
		return reply_status(req, -EINTR);
	// With the reply, the kernel may close the file.
	if (reply_read(req, c, a) && caches)
		c.mount.files().given(std::move(a));
}

// What the kernel had of its cached pages; see client::kernel_loads.
void op_retrieved(fuse_req_t req, void *cookie, fuse_ino_t, off_t, fuse_bufvec *data)
{
	context &c = context_of(req);
	const bool plain = data->count == 1 && !(data->buf[0].flags & FUSE_BUF_IS_FD);
	if (c.mount.kernel_loads())
		c.mount.kernel_loads()->arrived(
			reinterpret_cast<std::uint64_t>(cookie),
			{static_cast<const std::byte *>(plain ? data->buf[0].mem : nullptr),
			 plain ? data->buf[0].size : 0});
	fuse_reply_none(req);
}

void take_set_id(fuse_req_t req, context &c, client::open_file &f)
{
	if (f.opener.uid || !fuse_req_ctx(req)->uid || !c.mount.inodes().has_set_id(*f.node))
		return;
	client::storage::setattr_request q{};
	q.valid = client::storage::kill_id;
	client::attributes attr;
	if (!c.mount.files().setattr(f.opener, *f.node, q, attr))
		c.forget_attributes(*f.node);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, std::size_t size, off_t offset,
	      fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.write(req, ino, {data, size});
	// A mapping's page, from any open file that was mapped, belongs where the kernel has it.
	// For other writes, the request has the flags as fcntl(2) left them.
	const bool appends = !fi->writepage && fi->flags & O_APPEND;
	// The kernel writes it through any open file, also through one that has lost no lock.
	if (fi->writepage && file_of(fi).node->lost_stores)
		return reply_status(req, -EIO);
	iovec v{const_cast<char *>(data), size};
	std::optional<client::files::range> drop;
	int err = c.mount.files().write(file_of(fi), appends, static_cast<std::uint64_t>(offset),
					{&v, 1}, size, drop);
	if (err)
		return reply_status(req, err);
	take_set_id(req, c, file_of(fi));
	if (!drop) {
		fuse_reply_write(req, size);
		return;
	}
	c.later.run([req, &c, ino, drop, size] {
		fuse_lowlevel_notify_inval_inode(c.session, ino, static_cast<off_t>(drop->offset),
						 static_cast<off_t>(drop->length));
		fuse_reply_write(req, size);
	});
}

void op_flush(fuse_req_t req, fuse_ino_t ino, fuse_file_info *fi)
{
	if (control::owns(ino))
		return reply_status(req, 0);
	context_of(req).mount.inodes().has_acted(*file_of(fi).node, fuse_req_ctx(req)->pid);
	unlock_at_close(req, ino, fi, context_of(req).mount.files().flush(file_of(fi)));
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
