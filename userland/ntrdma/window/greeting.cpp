// SPDX-License-Identifier: MIT
// greeting.cpp - the sockets by which processes find each other; see greeting.hpp.
#include "userland/ntrdma/window/greeting.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

bool send_greeting(int socket, const greeting &g, std::span<const int> fds)
{
	greeting copy = g;
	iovec data{&copy, sizeof(copy)};
	alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
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
	return sendmsg(socket, &m, MSG_NOSIGNAL) == sizeof(copy);
}

int receive_greeting(int socket, greeting *g, std::vector<unique_fd> *fds)
{
	iovec data{g, sizeof(*g)};
	alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
	msghdr m{};
	m.msg_iov = &data;
	m.msg_iovlen = 1;
	m.msg_control = control;
	m.msg_controllen = sizeof(control);
	ssize_t n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	fds->clear();
	for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (std::size_t i = 0; i < count; i++) {
			int fd;
			std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			fds->emplace_back(fd);
		}
	}
	bool whole = n == sizeof(*g) && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
	if (!whole || g->magic != greeting_magic || g->version != greeting_version ||
	    g->layout != sizeof(half))
		return -1;
	return 1;
}

} // namespace coop::ntrdma
