// SPDX-License-Identifier: MIT
// identity.hpp - file-system calls with the rights of the calling user.
//
// The ids that the kernel checks for file access belong to the thread, so each thread of the pool
// takes the caller's ids for the length of one call. Leaving fsuid 0 drops the file-system
// capabilities, returning to it restores them; the kernel does both. An error on the way in leaves
// the thread unchanged. An error on the way back would leave a thread with another user's rights,
// so it aborts the process.
#pragma once

#include <array>
#include <istream>
#include <optional>
#include <sys/socket.h>
#include <sys/types.h>

#include "rpc/storage/message.h"

namespace coop::daemon
{

// Whether this process can become other users.
[[nodiscard]] bool can_switch_users();

// The user that owns the other end of a TCP connection within this machine, as the kernel knows it.
// None: the peer is on another machine, or has closed the socket.
[[nodiscard]] std::optional<uid_t> peer_owner(int fd);
// The same from the text of /proc/net/tcp or tcp6: the connection from 'from' to 'to'.
[[nodiscard]] std::optional<uid_t> owner_in(std::istream &table, const sockaddr_storage &from,
					    const sockaddr_storage &to);

class as_user
{
public:
	explicit as_user(const coop_st_cred &);
	as_user(const as_user &) = delete;
	as_user &operator=(const as_user &) = delete;
	~as_user();
	// 0, or -errno: the caller must do nothing on the user's behalf.
	[[nodiscard]] int error() const { return error_; }

private:
	int error_ = 0;
	bool switched_ = false;
};

// Drops, for the length of one call, the capabilities that leaving fsuid 0 does not take away: with
// CAP_SYS_ADMIN every user would read and write trusted attributes, with CAP_SETFCAP set file
// capabilities. Use inside of an as_user scope.
class without_capabilities
{
public:
	explicit without_capabilities(const coop_st_cred &);
	without_capabilities(const without_capabilities &) = delete;
	without_capabilities &operator=(const without_capabilities &) = delete;
	~without_capabilities();
	[[nodiscard]] int error() const { return error_; }

private:
	int error_ = 0;
	bool dropped_ = false;
	std::array<std::uint32_t, 6> before_{}; // two capability sets of three words
};

// Sets the calling thread's umask for the length of one call that creates a file. The file system
// applies it as open(2) does, or the directory's default ACL in its place.
class caller_umask
{
public:
	explicit caller_umask(std::uint32_t mode); // as in the request, coop_st_umask()
	caller_umask(const caller_umask &) = delete;
	caller_umask &operator=(const caller_umask &) = delete;
	~caller_umask();
	[[nodiscard]] int error() const { return error_; }

private:
	int error_ = 0;
	mode_t before_ = 0;
};

// Runs a call that the user's rights decide; call() returns 0 or -errno.
template <class act> [[nodiscard]] int as(const coop_st_cred &c, act call)
{
	as_user user(c);
	return user.error() ? user.error() : call();
}

// The same for a call that creates a file of this mode.
template <class act>
[[nodiscard]] int making_as(const coop_st_cred &c, std::uint32_t mode, act call)
{
	const caller_umask mask(mode);
	return mask.error() ? mask.error() : as(c, call);
}

} // namespace coop::daemon
