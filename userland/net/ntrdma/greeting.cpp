// SPDX-License-Identifier: MIT
// greeting.cpp - see greeting.hpp.
#include "greeting.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace coop::net::nt
{

namespace
{

constexpr std::size_t fds_most = 3;

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
	greeting copy = g;
	iovec data{&copy, sizeof(copy)};
	alignas(cmsghdr) char control[CMSG_SPACE(fds_most * sizeof(int))] = {};
	msghdr m{};
	m.msg_iov = &data;
	m.msg_iovlen = 1;
	if (!fds.empty()) {
		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(fds.size_bytes());
		cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(fds.size_bytes());
		std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
	}
	return ::sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(copy);
}

int receive_greeting(int socket, greeting &g, std::vector<rdma::unique_fd> &fds)
{
	iovec data{&g, sizeof(g)};
	alignas(cmsghdr) char control[CMSG_SPACE(fds_most * sizeof(int))];
	msghdr m{};
	m.msg_iov = &data;
	m.msg_iovlen = 1;
	m.msg_control = control;
	m.msg_controllen = sizeof(control);
	const ssize_t n = ::recvmsg(socket, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	fds.clear();
	for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (std::size_t i = 0; i < count; i++) {
			int fd;
			std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			fds.emplace_back(fd);
		}
	}
	g.from[sizeof(g.from) - 1] = g.to[sizeof(g.to) - 1] = 0;
	const bool whole = n == sizeof(g) && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
	return whole && g.magic == greeting_magic ? 1 : -1;
}

} // namespace coop::net::nt
