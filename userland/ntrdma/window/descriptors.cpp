// SPDX-License-Identifier: MIT
// descriptors.cpp - see descriptors.hpp.
#include "userland/ntrdma/window/descriptors.hpp"

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace coop::ntrdma
{

namespace
{

/// Moves all descriptors of a message into `fds`, however many. False if there is something else.
bool collect(msghdr &m, std::vector<unique_fd> &fds)
{
	bool alone = true;
	for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
			alone = false;
			continue;
		}
		const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (std::size_t i = 0; i < count; i++) {
			int fd;
			std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			fds.emplace_back(fd);
		}
	}
	return alone;
}

} // namespace

bool send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds)
{
	alignas(cmsghdr) char control[CMSG_SPACE(descriptors_most * sizeof(int))] = {};
	iovec data{const_cast<std::byte *>(bytes.data()), bytes.size()};
	msghdr m{};
	m.msg_iov = &data;
	m.msg_iovlen = 1;
	if (fds.size() > descriptors_most)
		return false;
	if (!fds.empty()) {
		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(fds.size_bytes());
		cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(fds.size_bytes());
		std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
	}
	return sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) ==
	       static_cast<ssize_t>(bytes.size());
}

int take_message(int socket, std::span<std::byte> bytes, std::vector<unique_fd> &fds)
{
	fds.clear();
	// The kernel rounds up: it may have room for one descriptor more than this says.
	alignas(cmsghdr) char control[CMSG_SPACE(descriptors_most * sizeof(int))];
	iovec data{bytes.data(), bytes.size()};
	msghdr m{};
	m.msg_iov = &data;
	m.msg_iovlen = 1;
	m.msg_control = control;
	m.msg_controllen = sizeof(control);
	const ssize_t n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	const bool alone = collect(m, fds);
	if (alone && n == static_cast<ssize_t>(bytes.size()) && fds.size() <= descriptors_most &&
	    !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return 1;
	fds.clear();
	return -1;
}

bool take_bell(const unique_fd &bell)
{
	char name[32];
	const std::string link = "/proc/self/fd/" + std::to_string(bell.get());
	const ssize_t n = readlink(link.c_str(), name, sizeof(name));
	if (n >= 0 && std::string_view{name, static_cast<std::size_t>(n)} != "anon_inode:[eventfd]")
		return false;
	// A peer may have filled the counter of its eventfd.
	const int flags = fcntl(bell.get(), F_GETFL);
	return flags >= 0 && !fcntl(bell.get(), F_SETFL, flags | O_NONBLOCK);
}

} // namespace coop::ntrdma
