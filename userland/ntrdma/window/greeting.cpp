// SPDX-License-Identifier: MIT
// greeting.cpp - the sockets by which processes find each other; see greeting.hpp.
#include "userland/ntrdma/window/greeting.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "userland/ntrdma/window/descriptors.hpp"

namespace coop::ntrdma
{

namespace
{

socklen_t fill(sockaddr_un *address, const std::string &name)
{
	*address = {};
	address->sun_family = AF_UNIX;
	std::memcpy(address->sun_path + 1, name.data(), name.size());
	return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

unique_fd new_socket()
{
	return unique_fd{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
}

} // namespace

std::string slot_name(std::uint32_t slot)
{
	return "coop-ntrdma/" + std::to_string(geteuid()) + "/" + std::to_string(slot);
}

unique_fd listen_at(const std::string &name)
{
	sockaddr_un address;
	socklen_t length = fill(&address, name);
	unique_fd fd = new_socket();
	if (!fd || bind(fd.get(), reinterpret_cast<sockaddr *>(&address), length) ||
	    listen(fd.get(), 1024))
		return unique_fd{};
	return fd;
}

unique_fd call(const std::string &name)
{
	sockaddr_un address;
	socklen_t length = fill(&address, name);
	unique_fd fd = new_socket();
	if (!fd || connect(fd.get(), reinterpret_cast<sockaddr *>(&address), length) ||
	    !process_behind(fd.get()))
		return unique_fd{};
	return fd;
}

pid_t process_behind(int socket)
{
	ucred who{};
	socklen_t length = sizeof(who);
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) || who.uid != geteuid())
		return 0;
	return who.pid;
}

greeting new_greeting(greeting_kind kind)
{
	greeting g{};
	g.magic = greeting_magic;
	g.version = greeting_version;
	g.kind = kind;
	g.layout = sizeof(half);
	return g;
}

bool send_greeting(int socket, const greeting &g, std::span<const int> fds)
{
	return send_message(socket, std::as_bytes(std::span{&g, 1}), fds);
}

int receive_greeting(int socket, greeting *g, std::vector<unique_fd> *fds)
{
	*g = {};
	const int rc = take_message(socket, std::as_writable_bytes(std::span{g, 1}), *fds);
	if (!rc || g->magic != greeting_magic)
		return rc > 0 ? -1 : rc;
	// That of another version may have another length, which counts as a failure.
	if (g->version != greeting_version || (rc > 0 && g->layout != sizeof(half)))
		return -EPROTO;
	return rc;
}

} // namespace coop::ntrdma
