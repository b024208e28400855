// SPDX-License-Identifier: MIT
// entry.cpp - giving the kernel a reference to an inode, and the table of
// operations that the kernel may ask for.
#include "fuse-shim/shim.hpp"

namespace coop::shim
{

fuse_entry_param make_entry(context &c, const client::entry &e, client::ticket asked)
{
	client::inode *node = c.mount.inodes().ref(e);
	c.mount.inodes().learn(*node, asked, e.attr, nullptr, true);
	fuse_entry_param p{};
	p.ino = number_of(c, *node);
	p.attr = e.attr.st;
	p.attr_timeout = p.entry_timeout = cache_seconds;
	return p;
}

void reply_entry(fuse_req_t req, const client::entry &e, client::ticket asked)
{
	context &c = context_of(req);
	fuse_entry_param p = make_entry(c, e, asked);
	// The kernel did not take the reference: the request was interrupted.
	if (fuse_reply_entry(req, &p) != 0)
		c.mount.inodes().forget(&inode_of(c, p.ino), 1);
}

const fuse_lowlevel_ops &operations()
{
	static const fuse_lowlevel_ops ops = [] {
		fuse_lowlevel_ops o{};
		o.lookup = op_lookup;
		o.forget = op_forget;
		o.forget_multi = op_forget_multi;
		o.getattr = op_getattr;
		o.setattr = op_setattr;
		o.readlink = op_readlink;
		o.mkdir = op_mkdir;
		o.unlink = op_unlink;
		o.rmdir = op_rmdir;
		o.symlink = op_symlink;
		o.rename = op_rename;
		o.link = op_link;
		o.open = op_open;
		o.read = op_read;
		o.write = op_write;
		o.flush = op_flush;
		o.release = op_release;
		o.fsync = op_fsync;
		o.opendir = op_opendir;
		o.readdir = op_readdir;
		o.readdirplus = op_readdirplus;
		o.releasedir = op_releasedir;
		o.fsyncdir = op_fsyncdir;
		o.statfs = op_statfs;
		o.access = op_access;
		o.create = op_create;
		return o;
	}();
	return ops;
}

} // namespace coop::shim
