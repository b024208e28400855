// SPDX-License-Identifier: MIT
// sockets.cpp - see sockets.hpp.
#include "userland/ntrdma/stream/sockets.hpp"

#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace coop::ntrdma
{

namespace
{

constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

struct name {
	sockaddr_storage storage{};
	socklen_t size = 0;
	sockaddr *get() { return reinterpret_cast<sockaddr *>(&storage); }
};

name name_of(const ip_address &ip, std::uint16_t port)
{
	name n;
	if (std::memcmp(ip.data(), mapped, sizeof(mapped)) == 0) {
		auto *in = reinterpret_cast<sockaddr_in *>(&n.storage);
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		std::memcpy(&in->sin_addr, ip.data() + 12, 4);
		n.size = sizeof(*in);
	} else {
		auto *in = reinterpret_cast<sockaddr_in6 *>(&n.storage);
		in->sin6_family = AF_INET6;
		in->sin6_port = htons(port);
		std::memcpy(&in->sin6_addr, ip.data(), 16);
		n.size = sizeof(*in);
	}
	return n;
}

int new_socket(int family, unique_fd &out)
{
	out = unique_fd{socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
	return out ? 0 : -errno;
}

// A connection on which nothing is said ends this long after its host has vanished: silence +
// questions * interval, in seconds.
constexpr int silence = 30, interval = 10, questions = 5;

void set(int socket, int level, int name, int value)
{
	setsockopt(socket, level, name, &value, sizeof(value));
}

void set_options(int socket)
{
	// Each frame is complete, so none waits for a later one to fill a segment.
	set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
	set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(socket, IPPROTO_TCP, TCP_KEEPIDLE, silence);
	set(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
	set(socket, IPPROTO_TCP, TCP_KEEPCNT, questions);
}

} // namespace

int listen_tcp(const ip_address &ip, std::uint16_t port, unique_fd &out)
{
	name at = name_of(ip, port);
	if (int r = new_socket(at.storage.ss_family, out))
		return r;
	// Connections of an earlier life may linger in the kernel.
	int on = 1;
	setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (ip == ip_address{}) { // both kinds, whatever the host's standard is
		int off = 0;
		setsockopt(out.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	}
	if (bind(out.get(), at.get(), at.size) || listen(out.get(), 1024)) {
		int error = errno;
		out = unique_fd{};
		return -error;
	}
	return 0;
}

int call_tcp(const ip_address &own, const ip_address &to, std::uint16_t port, unique_fd &out)
{
	name from = name_of(own, 0), there = name_of(to, port);
	if (from.storage.ss_family != there.storage.ss_family)
		return -EAFNOSUPPORT;
	if (int r = new_socket(there.storage.ss_family, out))
		return r;
	int on = 1;
	setsockopt(out.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
	set_options(out.get());
	if (bind(out.get(), from.get(), from.size) ||
	    (connect(out.get(), there.get(), there.size) && errno != EINPROGRESS)) {
		int error = errno;
		out = unique_fd{};
		return -error;
	}
	return 0;
}

int connected(int socket)
{
	pollfd p{socket, POLLOUT, 0};
	if (poll(&p, 1, 0) <= 0)
		return -EAGAIN;
	int error = 0;
	socklen_t size = sizeof(error);
	if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size))
		return -errno;
	return -error;
}

int accept_tcp(int listener, unique_fd &out, ip_address &from)
{
	name peer;
	peer.size = sizeof(peer.storage);
	out = unique_fd{accept4(listener, peer.get(), &peer.size, SOCK_CLOEXEC | SOCK_NONBLOCK)};
	if (!out)
		return -errno;
	set_options(out.get());
	if (peer.storage.ss_family == AF_INET) {
		const auto *in = reinterpret_cast<const sockaddr_in *>(&peer.storage);
		std::memcpy(from.data(), mapped, sizeof(mapped));
		std::memcpy(from.data() + 12, &in->sin_addr, 4);
	} else {
		const auto *in = reinterpret_cast<const sockaddr_in6 *>(&peer.storage);
		std::memcpy(from.data(), &in->sin6_addr, 16);
	}
	return 0;
}

int take_text(int socket, std::span<std::uint8_t> bytes, std::size_t &filled)
{
	const ssize_t n = recv(socket, bytes.data() + filled, bytes.size() - filled, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0)
		return -1;
	filled += static_cast<std::size_t>(n);
	if (filled < bytes.size())
		return 0;
	filled = 0;
	return 1;
}

int send_text(int socket, std::span<const std::uint8_t> bytes)
{
	const ssize_t n = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0)
		return -errno;
	return n == static_cast<ssize_t>(bytes.size()) ? 0 : -ENOBUFS;
}

} // namespace coop::ntrdma
