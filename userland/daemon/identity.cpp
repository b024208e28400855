// SPDX-License-Identifier: MIT
// identity.cpp - setfsuid, setfsgid and the thread's own groups.
//
// glibc's setgroups() changes all threads of the process; the bare system call
// changes this one only, which is what is wanted here.
#include "userland/daemon/identity.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <spdlog/spdlog.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace coop::daemon
{

bool can_switch_users()
{
	return ::geteuid() == 0;
}

as_user::as_user(const coop_st_cred &c)
{
	if (!can_switch_users()) {
		if (c.uid != ::geteuid())
			error_ = -EACCES;
		return;
	}
	// Already ours: the daemon has no groups but its primary one.
	const auto primary = [gid = ::getegid()](std::uint32_t g) { return g == gid; };
	if (c.uid == 0 && primary(c.gid) && std::all_of(c.groups, c.groups + c.n_groups, primary))
		return;
	if (::syscall(SYS_setgroups, c.n_groups, c.groups)) {
		error_ = -errno;
		return;
	}
	switched_ = true;
	::setfsgid(c.gid);
	::setfsuid(c.uid);
	// These calls report no error; asking with an impossible id tells what is in force.
	if (::setfsgid(static_cast<gid_t>(-1)) != static_cast<int>(c.gid) ||
	    ::setfsuid(static_cast<uid_t>(-1)) != static_cast<int>(c.uid))
		error_ = -EPERM;
}

as_user::~as_user()
{
	if (!switched_)
		return;
	::setfsuid(0);
	::setfsgid(::getegid());
	if (::setfsuid(static_cast<uid_t>(-1)) != 0 || ::syscall(SYS_setgroups, 0, nullptr)) {
		spdlog::critical("a thread could not return to its own ids; ending");
		std::abort();
	}
}

} // namespace coop::daemon
