// SPDX-License-Identifier: MIT
// greeting.cpp - see greeting.hpp.
#include "greeting.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "userland/ntrdma/window/descriptors.hpp"

namespace coop::net::nt
{

namespace
{

int open_socket(const address &a, sockaddr_un &name, socklen_t &size, rdma::unique_fd &out)
{
	const std::string text = "coop-ntrdma/net/" + format(a);
	name = {};
	name.sun_family = AF_UNIX;
	if (text.size() + 1 > sizeof(name.sun_path))
		return -EINVAL;
	std::memcpy(name.sun_path + 1, text.data(), text.size());
	size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
	out = rdma::unique_fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	return out ? 0 : -errno;
}

} // namespace

int listen_at(const address &a, rdma::unique_fd &out)
{
	sockaddr_un name;
	socklen_t size;
	if (int r = open_socket(a, name, size, out))
		return r;
	if (::bind(out.get(), reinterpret_cast<sockaddr *>(&name), size) ||
	    ::listen(out.get(), 1024))
		return -errno;
	return 0;
}

int call(const address &a, rdma::unique_fd &out)
{
	sockaddr_un name;
	socklen_t size;
	if (int r = open_socket(a, name, size, out))
		return r;
	if (::connect(out.get(), reinterpret_cast<sockaddr *>(&name), size))
		return errno == EINPROGRESS ? -EAGAIN : -errno;
	pid_t pid;
	return is_own_user(out.get(), pid) ? 0 : -EACCES;
}

bool is_own_user(int socket, pid_t &pid)
{
	ucred who{};
	socklen_t length = sizeof(who);
	if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) || who.uid != ::geteuid())
		return false;
	pid = who.pid;
	return true;
}

bool send_greeting(int socket, const greeting &g, std::span<const int> fds)
{
	return rdma::send_message(socket, std::as_bytes(std::span(&g, 1)), fds);
}

int receive_greeting(int socket, greeting &g, std::vector<rdma::unique_fd> &fds)
{
	const int r = rdma::take_message(socket, std::as_writable_bytes(std::span(&g, 1)), fds);
	g.from[sizeof(g.from) - 1] = g.to[sizeof(g.to) - 1] = 0;
	return r > 0 && g.magic != greeting_magic ? -1 : r;
}

} // namespace coop::net::nt
