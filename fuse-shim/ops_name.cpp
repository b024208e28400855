// SPDX-License-Identifier: MIT
// ops_name.cpp - operations on names: look up, create, rename and remove.
#include "fuse-shim/shim.hpp"

#include <cerrno>

namespace coop::shim
{

namespace
{

// A name that only the kernel looks up, to open a handle of name_to_handle_at(2)
// (FUSE_CAP_EXPORT_SUPPORT). The kernel may have forgotten that file, and a forged handle may
// contain any number.
constexpr std::string_view itself = ".";

void lookup_itself(fuse_req_t req, fuse_ino_t ino)
{
	context &c = context_of(req);
	const auto known = c.mount.inodes().identify(ino);
	if (!known)
		return reply_status(req, -ESTALE);
	client::ticket asked = c.mount.inodes().now();
	client::entry e{known->fh, {}, false};
	if (int err = c.mount.storage().getattr(caller_of(req), e.fh, e.attr))
		return reply_status(req, err);
	// A path handle may lead to another file by now.
	if (!fid_equal{}(e.attr.fid, known->fid))
		return reply_status(req, -ESTALE);
	client::inode *const node = c.mount.inodes().ref(e);
	c.mount.files().show(*node, asked, e.attr);
	fuse_entry_param p = entry_of(c, *node, e.attr);
	// Its number was evicted in between, and it has got a new one.
	const bool renamed = p.ino != ino;
	if (renamed || fuse_reply_entry(req, &p) != 0)
		c.mount.inodes().forget(&inode_of(c, p.ino), 1);
	if (renamed)
		reply_status(req, -ESTALE);
}

// Replies with the entry of that name, which look(entry) fills.
template <class act>
void reply_with(fuse_req_t req, fuse_ino_t dir, std::string_view name, act look)
{
	const asking asked(context_of(req));
	client::entry e;
	if (int err = look(e))
		return reply_failed(req, dir, err);
	reply_entry(req, e, {dir, name}, asked);
}

} // namespace

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent))
		return c.files_of_control.lookup(req, parent, name);
	if (name == itself)
		return lookup_itself(req, parent);
	reply_with(req, parent, name, [&](client::entry &e) {
		return c.mount.storage().lookup(caller_of(req), inode_of(c, parent).fh, name, e);
	});
}

namespace
{

void forget(context &c, fuse_ino_t ino, std::uint64_t n)
{
	if (client::inode *node = c.mount.inodes().find(ino))
		c.mount.inodes().forget(node, n);
}

} // namespace

void op_forget(fuse_req_t req, fuse_ino_t ino, std::uint64_t n)
{
	forget(context_of(req), ino, n);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, std::size_t count, fuse_forget_data *list)
{
	for (std::size_t i = 0; i < count; i++)
		forget(context_of(req), list[i].ino, list[i].nlookup);
	fuse_reply_none(req);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent))
		return reply_status(req, -EPERM);
	reply_with(req, parent, name, [&](client::entry &e) {
		return c.mount.storage().mkdir(caller_of(req), inode_of(c, parent).fh, name,
					       mode_of(req, mode), e);
	});
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t device)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent))
		return reply_status(req, -EPERM);
	reply_with(req, parent, name, [&](client::entry &e) {
		return c.mount.storage().mknod(caller_of(req), inode_of(c, parent).fh, name,
					       mode_of(req, mode), device, e);
	});
}

namespace
{

void reply_removed(fuse_req_t req, fuse_ino_t dir, const char *name, int err)
{
	if (err)
		return reply_failed(req, dir, err);
	context_of(req).names.removed(dir, name);
	reply_status(req, 0);
}

} // namespace

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent))
		return reply_status(req, -EPERM);
	reply_removed(req, parent, name,
		      c.mount.storage().unlink(caller_of(req), inode_of(c, parent).fh, name));
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent))
		return reply_status(req, -EPERM);
	reply_removed(req, parent, name,
		      c.mount.storage().rmdir(caller_of(req), inode_of(c, parent).fh, name));
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned flags)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent) || reserved(new_parent, new_name) ||
	    control::owns(new_parent))
		return reply_status(req, -EPERM);
	if (int err = c.mount.storage().rename(caller_of(req), inode_of(c, parent).fh, name,
					       inode_of(c, new_parent).fh, new_name, flags))
		return reply_failed(req, parent, err);
	c.names.moved(parent, name, new_parent, new_name, flags & RENAME_EXCHANGE);
	reply_status(req, 0);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name)
{
	context &c = context_of(req);
	if (control::owns(ino) || reserved(new_parent, new_name) || control::owns(new_parent))
		return reply_status(req, -EPERM);
	reply_with(req, new_parent, new_name, [&](client::entry &e) {
		return c.mount.storage().link(caller_of(req), inode_of(c, ino).fh,
					      inode_of(c, new_parent).fh, new_name, e);
	});
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	context &c = context_of(req);
	if (reserved(parent, name) || control::owns(parent))
		return reply_status(req, -EPERM);
	reply_with(req, parent, name, [&](client::entry &e) {
		return c.mount.storage().symlink(caller_of(req), target, inode_of(c, parent).fh,
						 name, e);
	});
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	context &c = context_of(req);
	std::string target;
	int err = control::owns(ino)
			  ? -EINVAL
			  : c.mount.storage().readlink(caller_of(req), inode_of(c, ino).fh, target);
	if (err)
		return reply_status(req, err);
	fuse_reply_readlink(req, target.c_str());
}

} // namespace coop::shim
