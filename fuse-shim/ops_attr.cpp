// SPDX-License-Identifier: MIT
// ops_attr.cpp - attributes, permissions and the state of the file system.
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

} // namespace

void op_getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info *)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.getattr(req, ino);
	client::attributes attr;
	int err = c.mount.files().getattr(caller_of(req), inode_of(c, ino), attr);
	if (err)
		return reply_status(req, err);
	fuse_reply_attr(req, &attr.st, lifetime(c));
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set, fuse_file_info *)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return c.files_of_control.setattr(req, ino, to_set);
	client::attributes attr;
	int err = c.mount.files().setattr(caller_of(req), inode_of(c, ino), decode(*st, to_set),
					  attr);
	if (err)
		return reply_status(req, err);
	fuse_reply_attr(req, &attr.st, lifetime(c));
}

// Asked only without default_permissions. The mode bits answer; storage enforces.
void op_access(fuse_req_t req, fuse_ino_t ino, int mask)
{
	context &c = context_of(req);
	client::caller who = caller_of(req);
	struct stat st;
	if (control::owns(ino)) {
		st = c.files_of_control.attributes(ino);
	} else {
		client::attributes attr;
		int err = c.mount.files().getattr(who, inode_of(c, ino), attr);
		if (err)
			return reply_status(req, err);
		st = attr.st;
	}
	reply_status(req, permitted(st, who, mask) ? 0 : -EACCES);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	context &c = context_of(req);
	struct statvfs out;
	const auto &fh = control::owns(ino) ? c.root->fh : inode_of(c, ino).fh;
	int err = c.mount.storage().statfs(caller_of(req), fh, out);
	if (err)
		return reply_status(req, err);
	fuse_reply_statfs(req, &out);
}

} // namespace coop::shim
