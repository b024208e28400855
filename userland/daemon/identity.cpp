// SPDX-License-Identifier: MIT
// identity.cpp - setfsuid, setfsgid and the supplementary groups of a thread.
//
// glibc's setgroups() changes all threads of the process; the raw system call changes the calling
// thread only, as we need it.
#include "userland/daemon/identity.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <linux/capability.h>
#include <netinet/in.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sstream>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace coop::daemon
{

bool can_switch_users()
{
	return ::geteuid() == 0;
}

namespace
{

// The format of /proc/net/tcp and tcp6: the address in words, each in this machine's byte order.
std::string in_table_form(const sockaddr_storage &a)
{
	std::uint32_t words[4];
	unsigned n = 1;
	in_port_t port;
	if (a.ss_family == AF_INET6) {
		const auto &v6 = reinterpret_cast<const sockaddr_in6 &>(a);
		n = 4;
		std::memcpy(words, &v6.sin6_addr, 16);
		port = v6.sin6_port;
	} else {
		const auto &v4 = reinterpret_cast<const sockaddr_in &>(a);
		std::memcpy(words, &v4.sin_addr, 4);
		port = v4.sin_port;
	}
	std::string text;
	for (unsigned i = 0; i < n; i++)
		text += fmt::format("{:08X}", words[i]);
	return text + fmt::format(":{:04X}", ntohs(port));
}

} // namespace

std::optional<uid_t> owner_in(std::istream &table, const sockaddr_storage &from,
			      const sockaddr_storage &to)
{
	// sl local remote state queues timer retransmits uid timeouts inode ...
	constexpr const char *established = "01";
	const std::string ours = in_table_form(from), theirs = in_table_form(to);
	for (std::string line; std::getline(table, line);) {
		std::istringstream words(line);
		std::string sl, local, remote, state, queues, timer, retransmits;
		uid_t uid;
		unsigned long timeouts, inode;
		if (!(words >> sl >> local >> remote >> state >> queues >> timer >> retransmits >>
		      uid >> timeouts >> inode) ||
		    local != ours || remote != theirs)
			continue;
		// A socket that is already closed has no inode, and is listed with uid 0.
		if (state != established || !inode)
			return std::nullopt;
		return uid;
	}
	return std::nullopt;
}

std::optional<uid_t> peer_owner(int fd)
{
	sockaddr_storage here{}, there{};
	socklen_t a = sizeof(here), b = sizeof(there);
	if (::getsockname(fd, reinterpret_cast<sockaddr *>(&here), &a) ||
	    ::getpeername(fd, reinterpret_cast<sockaddr *>(&there), &b))
		return std::nullopt;
	std::ifstream table(here.ss_family == AF_INET6 ? "/proc/net/tcp6" : "/proc/net/tcp");
	return owner_in(table, there, here);
}

as_user::as_user(const coop_st_cred &c)
{
	if (!can_switch_users()) {
		if (c.uid != ::geteuid())
			error_ = -EACCES;
		return;
	}
	// Nothing to switch: the daemon has no groups but its primary one.
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
	// These calls report no error; a call with an impossible id returns the id in force.
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
		spdlog::critical("a thread could not return to its own ids; aborting");
		std::abort();
	}
}

namespace
{

// The umask belongs to the state that CLONE_FS shares: a thread needs its own copy to set it.
int own_umask()
{
	static thread_local const int err = ::unshare(CLONE_FS) ? -errno : 0;
	return err;
}

} // namespace

without_capabilities::without_capabilities(const coop_st_cred &c)
{
	if (!c.uid || !can_switch_users())
		return;
	__user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	__user_cap_data_struct now[2];
	static_assert(sizeof(now) == sizeof(before_));
	if (::syscall(SYS_capget, &head, now)) {
		error_ = -errno;
		return;
	}
	std::memcpy(before_.data(), now, sizeof(now));
	now[0].effective = now[1].effective = 0;
	if (::syscall(SYS_capset, &head, now))
		error_ = -errno;
	else
		dropped_ = true;
}

without_capabilities::~without_capabilities()
{
	if (!dropped_)
		return;
	__user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	if (::syscall(SYS_capset, &head, before_.data())) {
		spdlog::critical("a thread could not return to its own capabilities; aborting");
		std::abort();
	}
}

caller_umask::caller_umask(std::uint32_t mode) : error_(own_umask())
{
	if (!error_)
		before_ = ::umask(coop_st_umask(mode));
}

caller_umask::~caller_umask()
{
	if (!error_)
		::umask(before_);
}

} // namespace coop::daemon
