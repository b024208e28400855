// SPDX-License-Identifier: MIT
// xattr.cpp - extended attributes and ACLs, which the export's file system keeps and checks.
//
// Calls go through /proc/self/fd: the daemon's descriptors are O_PATH, and opening the file would
// have the effects of an open. They run as the caller, without capabilities unless that is root, so
// the kernel decides who may see and set which attribute. Changing an attribute moves the change
// time, so it changes the data version, as chmod does.
#include <cerrno>
#include <sys/xattr.h>

#include "userland/daemon/change.hpp"
#include "userland/daemon/identity.hpp"
#include "userland/daemon/service.hpp"

namespace coop::daemon
{

namespace
{

int checked_name(const coop_st_bytes &name, std::string &out)
{
	out = view(name);
	return out.empty() || out.find('\0') != out.npos ? -EINVAL : 0;
}

template <class act> int as_plain(const coop_st_cred &c, act call)
{
	return as(c, [&] {
		const without_capabilities plain(c);
		return plain.error() ? plain.error() : call();
	});
}

// Runs get(buffer, room) and fills the reply; room 0: the size only.
template <class act> int read_extended(const coop_st_body &asked, reply &out, act get)
{
	const std::size_t room = std::min<std::size_t>(asked.count, COOP_ST_XATTR_MAX);
	out.data.resize(room);
	ssize_t n = -1;
	if (int err = as_plain(asked.cred, [&] {
		    n = get(reinterpret_cast<char *>(out.data.data()), room);
		    return n < 0 ? -errno : 0;
	    }))
		return err;
	out.body.size = static_cast<u64>(n);
	out.data.resize(room ? static_cast<std::size_t>(n) : 0);
	return 0;
}

} // namespace

int service::getxattr(const exported &in, session &, call r, reply &out)
{
	inode_ref n;
	std::string name;
	if (int err = inodes.get(in, view(r.body.fh), n))
		return err;
	if (int err = checked_name(r.body.name, name))
		return err;
	return read_extended(r.body, out, [&](char *to, std::size_t room) {
		return ::getxattr(n->self().c_str(), name.c_str(), to, room);
	});
}

int service::listxattr(const exported &in, session &, call r, reply &out)
{
	inode_ref n;
	if (int err = inodes.get(in, view(r.body.fh), n))
		return err;
	return read_extended(r.body, out, [&](char *to, std::size_t room) {
		return ::listxattr(n->self().c_str(), to, room);
	});
}

template <class act>
int service::change_xattr(const exported &in, session &s, call r, reply &out, act change)
{
	inode_ref n;
	if (int err = inodes.get(in, view(r.body.fh), n))
		return err;
	std::lock_guard lock(n->mutex);
	out.body.verifier = stable.verifier(in.fs(), n->file);
	const int err = change_locked(*n, out.body, [&](int) {
		return as_plain(r.body.cred,
				[&] { return change(n->self().c_str()) ? -errno : 0; });
	});
	if (!err)
		tell_lease(s, r, *n, out.body.attr);
	return err;
}

int service::setxattr(const exported &in, session &s, call r, reply &out)
{
	std::string name;
	if (int err = checked_name(r.body.name, name))
		return err;
	if (r.body.flags & ~(COOP_ST_X_CREATE | COOP_ST_X_REPLACE))
		return -EINVAL;
	const int flags = (r.body.flags & COOP_ST_X_CREATE ? XATTR_CREATE : 0) |
			  (r.body.flags & COOP_ST_X_REPLACE ? XATTR_REPLACE : 0);
	return change_xattr(in, s, r, out, [&](const char *self) {
		return ::setxattr(self, name.c_str(), r.data.data(), r.data.size(), flags);
	});
}

int service::removexattr(const exported &in, session &s, call r, reply &out)
{
	std::string name;
	if (int err = checked_name(r.body.name, name))
		return err;
	return change_xattr(in, s, r, out,
			    [&](const char *self) { return ::removexattr(self, name.c_str()); });
}

} // namespace coop::daemon
