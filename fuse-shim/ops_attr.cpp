// SPDX-License-Identifier: MIT
// ops_attr.cpp - attributes, permissions and file system statistics.
#include "fuse-shim/newer_requests.hpp"
#include "fuse-shim/shim.hpp"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

namespace coop::shim
{

namespace
{

using storage = client::storage;

storage::setattr_request decode(const struct stat &st, int to_set)
{
	struct bit {
		int fuse;
		std::uint32_t storage;
	};
	constexpr bit bits[] = {
		{FUSE_SET_ATTR_MODE, storage::set_mode},
		{FUSE_SET_ATTR_UID, storage::set_uid},
		{FUSE_SET_ATTR_GID, storage::set_gid},
		{FUSE_SET_ATTR_SIZE, storage::set_size},
		{FUSE_SET_ATTR_ATIME, storage::set_atime},
		{FUSE_SET_ATTR_MTIME, storage::set_mtime},
		{FUSE_SET_ATTR_ATIME_NOW, storage::set_atime_now},
		{FUSE_SET_ATTR_MTIME_NOW, storage::set_mtime_now},
	};
	storage::setattr_request q{};
	for (const bit &b : bits) {
		if (to_set & b.fuse)
			q.valid |= b.storage;
	}
	q.mode = st.st_mode & 07777;
	q.uid = st.st_uid;
	q.gid = st.st_gid;
	q.size = static_cast<std::uint64_t>(st.st_size);
	q.atime = st.st_atim;
	q.mtime = st.st_mtim;
	return q;
}

bool permitted(const struct stat &st, const client::caller &who, int mask)
{
	if (who.uid == 0)
		return !(mask & X_OK) || S_ISDIR(st.st_mode) || (st.st_mode & 0111);
	bool in_group = st.st_gid == who.gid || std::find(who.groups.begin(), who.groups.end(),
							  st.st_gid) != who.groups.end();
	unsigned shift = st.st_uid == who.uid ? 6 : in_group ? 3 : 0;
	auto granted = static_cast<int>((st.st_mode >> shift) & 7);
	return (granted & mask) == mask;
}

// Calls reply(request, attributes, seconds for which the kernel may believe them).
template <class replying> void look(fuse_req_t req, fuse_ino_t ino, replying reply)
{
	context &c = context_of(req);
	client::attributes attr, last;
	client::inode &node = inode_of(c, ino);
	const short_wait limit(ino == FUSE_ROOT_ID && c.mount.inodes().last_known(node, last));
	int err = c.mount.files().getattr(caller_of(req), node, attr);
	if (err == -EINTR && limit.is_over()) {
		attr = last;
		err = 0;
	}
	if (err)
		return reply_status(req, err);
	// The kernel holds no page lock during this request.
	c.mount.inodes().has_acted(node, fuse_req_ctx(req)->pid);
	after_pages(c, node, [req, attr, reply, last = lifetime(c)] { reply(req, attr, last); });
}

} // namespace

void op_getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info *)
{
	if (control::owns(ino))
		return context_of(req).files_of_control.getattr(req, ino);
	look(req, ino, [](fuse_req_t r, const client::attributes &a, double last) {
		fuse_reply_attr(r, &a.st, last);
	});
}

void op_statx(fuse_req_t req, fuse_ino_t ino, std::size_t, std::uint64_t)
{
	if (!control::owns(ino))
		return look(req, ino, reply_statx);
	client::attributes attr{};
	attr.st = context_of(req).files_of_control.attributes(ino);
	reply_statx(req, attr, 0);
}

// A kernel that leaves set-id bits to us (newer_requests.hpp) reports a write that has to clear
// them by a SETATTR that sets nothing; a chown(2) that changes nothing looks the same. A kernel
// before Linux 5.12 sends, before a write, a truncation or a change of owner, a SETATTR with a mode
// that it has computed, as the writing user. For the latter two, storage clears the bits itself, in
// the file's current mode; for a write we ask it to. With such a kernel a chmod(2) to that mode
// looks the same. True: the SETATTR was turned into such a request.
bool takes_set_id(context &c, client::inode &node, storage::setattr_request &q)
{
	if (storage_takes_set_id()) {
		if (!q.valid && c.mount.inodes().has_set_id(node))
			q.valid = storage::kill_id;
		return false;
	}
	if (!(q.valid & storage::set_mode) || !c.mount.inodes().is_mode_after_write(node, q.mode))
		return false;
	const bool alone = q.valid == storage::set_mode;
	if (alone || q.valid & (storage::set_size | storage::set_uid | storage::set_gid))
		q.valid &= ~storage::set_mode;
	if (alone)
		q.valid |= storage::kill_id;
	return alone;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set, fuse_file_info *fi)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.setattr(req, ino, to_set);
	client::attributes attr;
	client::inode &node = inode_of(c, ino);
	storage::setattr_request q = decode(*st, to_set);
	if (fi && q.valid & storage::set_size) // ftruncate(2)
		q.by = file_of(fi).open_id;
	const bool kills = takes_set_id(c, node, q);
	int err = c.mount.files().setattr(caller_of(req), node, q, attr);
	if (err == -EACCES && q.valid == storage::kill_id && !kills) { // it was such a chown(2)
		q.valid = 0;
		err = c.mount.files().setattr(caller_of(req), node, q, attr);
	}
	if (kills && err == -EACCES) { // the owner's chmod(2) of a file without write permission
		q.valid = storage::set_mode;
		err = c.mount.files().setattr(caller_of(req), node, q, attr);
	}
	if (err)
		return reply_status(req, err);
	fuse_reply_attr(req, &attr.st, lifetime(c));
}

// access(2) and chdir(2), only without default_permissions. Storage answers, because it knows ACLs
// and the user to which the export maps the caller.
void op_access(fuse_req_t req, fuse_ino_t ino, int mask)
{
	context &c = context_of(req);
	client::caller who = caller_of(req);
	const int wanted = mask & (R_OK | W_OK | X_OK);
	if (control::owns(ino)) {
		const struct stat st = c.files_of_control.attributes(ino);
		return reply_status(req, permitted(st, who, mask) ? 0 : -EACCES);
	}
	int allowed = 0;
	client::attributes attr;
	const int err = c.mount.storage().access(who, inode_of(c, ino).fh, wanted, allowed, attr);
	// If the path does not lead elsewhere, it may be a working directory that was removed.
	const pid_t thread = fuse_req_ctx(req)->pid;
	if (err == -ESTALE && c.looks.is_second(thread, ino) &&
	    c.mount.files().is_removed(who, inode_of(c, ino)) &&
	    c.mount.inodes().last_known(inode_of(c, ino), attr))
		return reply_status(req, permitted(attr.st, who, wanted) ? 0 : -EACCES);
	if (err == -ESTALE)
		c.looks.tell(thread, ino);
	reply_status(req, err ? err : (wanted & ~allowed) ? -EACCES : 0);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	context &c = context_of(req);
	struct statvfs out;
	const auto &fh = control::owns(ino) ? c.root->fh : inode_of(c, ino).fh;
	const short_wait limit(c.figures.known());
	int err = c.mount.storage().statfs(caller_of(req), fh, out);
	if (!err)
		c.figures.learn(out);
	if (err == -EINTR && limit.is_over() && c.figures.last(out))
		err = 0;
	if (err)
		return reply_status(req, err);
	fuse_reply_statfs(req, &out);
}

} // namespace coop::shim
