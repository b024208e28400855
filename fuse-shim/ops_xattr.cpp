// SPDX-License-Identifier: MIT
// ops_xattr.cpp - extended attributes, and the ACLs that the kernel stores in them.
//
// The kernel asks for security.capability before each write, and for ACLs when it checks
// permissions. If the file's last attributes say that it has none, we answer here.
#include "fuse-shim/shim.hpp"

#include <cerrno>
#include <fstream>
#include <string>

#include "rpc/storage/message.h"
#include "userland/client/text.hpp"

namespace coop::shim
{

namespace
{

// The flag that reports this attribute; 0: none does.
std::uint32_t bit_of(std::string_view name)
{
	if (name == "security.capability")
		return COOP_ST_HAS_CAPABILITY;
	if (name == "system.posix_acl_access")
		return COOP_ST_HAS_ACL;
	if (name == "system.posix_acl_default")
		return COOP_ST_HAS_DEFAULT_ACL;
	// Every file system may have security.* attributes: if it has no xattr at all, the answer
	// is ENODATA.
	return name.starts_with("security.") ? COOP_ST_HAS_XATTR : 0;
}

// What we know expires; within a lease getattr costs no request.
bool is_without(fuse_req_t req, client::inode &node, std::uint32_t bit)
{
	context &c = context_of(req);
	client::attributes now;
	return c.mount.inodes().without(node, bit) ||
	       (!c.mount.files().getattr(caller_of(req), node, now) &&
		c.mount.inodes().without(node, bit));
}

// Whether the calling thread has CAP_SETFCAP. A thread that has exited has not.
bool may_set_capabilities(fuse_req_t req)
{
	constexpr unsigned cap_setfcap = 31;
	std::ifstream status("/proc/" + std::to_string(fuse_req_ctx(req)->pid) + "/status");
	for (std::string line; std::getline(status, line);)
		if (line.starts_with("CapEff:"))
			return std::stoull(line.substr(7), nullptr, 16) >> cap_setfcap & 1;
	return false;
}

void reply_extended(fuse_req_t req, int err, std::size_t room, const std::string &data,
		    std::size_t size)
{
	if (err)
		reply_status(req, err);
	else if (room)
		fuse_reply_buf(req, data.data(), data.size());
	else
		fuse_reply_xattr(req, size);
}

// Not of storage: `coopfs tree` reads it.
void reply_forest(fuse_req_t req, context &c, client::inode &node, std::size_t room)
{
	client::content_key key;
	{
		const std::lock_guard lock(node.lock);
		key = {node.fid, node.version};
	}
	const std::string text = forest_text(c.mount.membership(), c.mount.node(), key);
	reply_extended(req, room != 0 && room < text.size() ? -ERANGE : 0, room, text, text.size());
}

} // namespace

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, std::size_t room)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return reply_status(req, -ENODATA);
	client::inode &node = inode_of(c, ino);
	if (std::string_view(name) == "coopfs.forest")
		return reply_forest(req, c, node, room);
	const std::uint32_t bit = bit_of(name);
	if (bit && is_without(req, node, bit))
		return reply_status(req, -ENODATA);
	std::string value;
	std::size_t size = 0;
	const int err = c.mount.storage().getxattr(caller_of(req), node.fh, name,
						   static_cast<std::uint32_t>(room), value, size);
	reply_extended(req, err, room, value, size);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, std::size_t room)
{
	context &c = context_of(req);
	std::string names;
	std::size_t size = 0;
	const int err = control::owns(ino)
				? 0
				: c.mount.storage().listxattr(caller_of(req), inode_of(c, ino).fh,
							      static_cast<std::uint32_t>(room),
							      names, size);
	reply_extended(req, err, room, names, size);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
		 std::size_t size, int flags)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return reply_status(req, -EPERM);
	reply_status(req, c.mount.files().setxattr(caller_of(req), inode_of(c, ino), name,
						   {value, size}, flags));
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	context &c = context_of(req);
	if (control::owns(ino))
		return reply_status(req, -EPERM);
	// removexattr(2) requires CAP_SETFCAP. Without it, this comes from the kernel before a
	// write, a truncation or a change of owner, which clears the capability at storage as well.
	if (bit_of(name) == COOP_ST_HAS_CAPABILITY && !may_set_capabilities(req))
		return reply_status(req, 0);
	reply_status(req, c.mount.files().removexattr(caller_of(req), inode_of(c, ino), name));
}

} // namespace coop::shim
