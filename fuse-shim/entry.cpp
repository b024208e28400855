// SPDX-License-Identifier: MIT
// entry.cpp - giving the kernel references to inodes, and the table of FUSE operations.
#include "fuse-shim/caller.hpp"
#include "fuse-shim/shim.hpp"

#include <cerrno>
#include <iterator>
#include <mutex>

namespace coop::shim
{

namespace
{

constexpr std::string_view above = "..";

// An operation that is given up when the calling process is killed.
template <auto op, typename... A> void asked(fuse_req_t req, A... arguments)
{
	const caller_process who(req);
	op(req, arguments...);
}

} // namespace

void context::forget_attributes(client::inode &node)
{
	client::inode_table &inodes = mount.inodes();
	inodes.let_reads_end(node);
	const client::inode_table::notification turn(inodes, node);
	// Attributes only: this takes no page lock, so it may run inside a request.
	fuse_lowlevel_notify_inval_inode(session, number_of(*this, node), -1, 0);
	inodes.announced(node, turn.since);
}

// One at a time: two opens of one version must not both notify, because the first one's reader may
// already wait for the attributes that the second notification makes the kernel ignore.
void context::announce(client::inode &node)
{
	static std::mutex one_at_a_time[64];
	client::inode_table &inodes = mount.inodes();
	inodes.let_reads_end(node);
	const std::lock_guard turn(one_at_a_time[node.id % std::size(one_at_a_time)]);
	std::uint64_t version;
	{
		const std::lock_guard guard(node.lock);
		version = node.version;
	}
	if (!inodes.believes_other(node, version))
		return;
	const client::ticket since = inodes.now();
	forget_attributes(node);
	inodes.announced(node, since, version);
}

fuse_entry_param make_entry(context &c, client::entry &e, const given_name &where,
			    const asking &asked)
{
	client::inode *node = c.mount.inodes().ref(e);
	c.mount.files().show(*node, asked.files, e.attr);
	return entry_of(c, *node, e, where, asked);
}

// Without a lease nobody tells us when the name changes: the kernel asks for it each time. But it
// does not for each directory on a path, nor for what a listing has just named.
fuse_entry_param entry_of(context &c, client::inode &node, const client::entry &e,
			  const given_name &where, const asking &asked)
{
	fuse_entry_param p = entry_of(c, node, e.attr);
	const bool directory = S_ISDIR(e.attr.st.st_mode);
	if (!e.name_leased && !directory && !where.listed)
		p.entry_timeout = 0;
	if (p.entry_timeout > 0 && where.name != above) // the kernel keeps no name for that
		c.names.given(where.dir, where.name, p.ino, e.name_leased || directory,
			      asked.names);
	return p;
}

fuse_entry_param entry_of(context &c, client::inode &node, const client::attributes &attr)
{
	fuse_entry_param p{};
	p.ino = number_of(c, node);
	// The kernel requires generation 0 for the root.
	p.generation = &node == c.root ? 0 : c.mount.inodes().generation();
	p.attr = attr.st;
	p.attr_timeout = p.entry_timeout = lifetime(c);
	return p;
}

void reply_entry(fuse_req_t req, client::entry &e, const given_name &where, const asking &asked)
{
	context &c = context_of(req);
	const fuse_entry_param p = make_entry(c, e, where, asked);
	// For a file handle the kernel opens this parent by itself, and would not look again.
	if (where.name == above)
		c.looks.tell(fuse_req_ctx(req)->pid, p.ino);
	else
		c.looks.looked_up(fuse_req_ctx(req)->pid, p.ino, e.attr.version);
	client::inode &node = inode_of(c, p.ino);
	c.mount.inodes().has_acted(node, fuse_req_ctx(req)->pid);
	after_pages(c, node, [req, p, &c, &node] {
		// The reply failed because the request was interrupted: the kernel has no
		// reference.
		if (fuse_reply_entry(req, &p) != 0)
			c.mount.inodes().forget(&node, 1);
	});
}

void reply_failed(fuse_req_t req, fuse_ino_t dir, int err)
{
	context &c = context_of(req);
	const pid_t thread = fuse_req_ctx(req)->pid;
	if (err == -ENOENT)
		c.looks.looked_up(thread, 0);
	if (err == -ESTALE && c.looks.has_gone(thread, dir) &&
	    c.mount.files().is_removed(caller_of(req), inode_of(c, dir)))
		err = -ENOENT;
	else if (err == -ESTALE)
		c.looks.tell(thread, dir);
	reply_status(req, err);
}

const fuse_lowlevel_ops &operations()
{
	static const fuse_lowlevel_ops ops = [] {
		fuse_lowlevel_ops o{};
		o.lookup = asked<op_lookup>;
		o.forget = op_forget;
		o.forget_multi = op_forget_multi;
		o.getattr = asked<op_getattr>;
		o.bmap = asked<op_statx>;
		o.setattr = asked<op_setattr>;
		o.readlink = asked<op_readlink>;
		o.mkdir = asked<op_mkdir>;
		o.mknod = asked<op_mknod>;
		o.unlink = asked<op_unlink>;
		o.rmdir = asked<op_rmdir>;
		o.symlink = asked<op_symlink>;
		o.rename = asked<op_rename>;
		o.link = asked<op_link>;
		o.open = asked<op_open>;
		o.read = asked<op_read>;
		o.retrieve_reply = op_retrieved;
		o.write = asked<op_write>;
		// A flush from a killed process is completed: it writes what the process wrote.
		o.flush = op_flush;
		o.release = op_release;
		o.fsync = asked<op_fsync>;
		o.opendir = asked<op_opendir>;
		o.readdir = asked<op_readdir>;
		o.readdirplus = asked<op_readdirplus>;
		o.releasedir = asked<op_releasedir>;
		o.fsyncdir = asked<op_fsyncdir>;
		o.getxattr = asked<op_getxattr>;
		o.setxattr = asked<op_setxattr>;
		o.listxattr = asked<op_listxattr>;
		o.removexattr = asked<op_removexattr>;
		o.statfs = asked<op_statfs>;
		o.access = asked<op_access>;
		o.create = asked<op_create>;
		o.getlk = asked<op_getlk>;
		o.setlk = op_setlk;
		o.flock = op_flock;
		o.fallocate = asked<op_fallocate>;
		o.lseek = asked<op_lseek>;
		o.copy_file_range = asked<op_copy_file_range>;
		return o;
	}();
	return ops;
}

} // namespace coop::shim
