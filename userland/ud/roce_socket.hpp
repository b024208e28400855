// SPDX-License-Identifier: MIT
// roce_socket.hpp - the UDP socket under a soft RoCE endpoint, and what the
// kernel lets it do.
//
// It is not connected, and sets DF: so the IPv4 identification of what it sends
// is 0, 1, 2, ... within a super packet, and the ICRC can be computed beforehand.
// For peers that do not look at that there can be another one beside it that is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <netinet/in.h>
#include <sys/socket.h>

#include "userland/ud/icrc.hpp"

namespace coop::ud
{

union any_sockaddr {
	sockaddr generic;
	sockaddr_in v4;
	sockaddr_in6 v6;
};

class roce_socket
{
public:
	// Binds (ip, port); port 0: any that is free. Throws std::system_error.
	roce_socket(const std::string &ip, std::size_t buffer, std::uint16_t port = roce_port);
	~roce_socket();
	roce_socket(const roce_socket &) = delete;
	roce_socket &operator=(const roce_socket &) = delete;

	int fd() const { return fd_; }
	std::uint16_t port() const { return ntohs(v6() ? own_.v6.sin6_port : own_.v4.sin_port); }
	bool v6() const { return own_.generic.sa_family == AF_INET6; }
	const std::array<std::uint8_t, 16> &gid() const { return gid_; }
	// Whether the kernel segments (UDP_SEGMENT) and merges (UDP_GRO).
	bool segments() const { return segments_; }
	// Largest payload of a datagram that the interface carries, of the MTUs that InfiniBand
	// knows.
	std::uint32_t interface_mtu() const;
	// Bytes in datagrams of such a payload that the receive buffer holds, by the kernel's
	// way of counting.
	std::size_t receive_window(std::uint32_t payload) const;

	socklen_t address_length() const
	{
		return v6() ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
	}
	// Where a peer with this GID listens. False: it is of the other family.
	bool destination(const std::array<std::uint8_t, 16> &gid, std::uint16_t port,
			 any_sockaddr &out) const;
	// The flow that a packet from there belongs to.
	flow from(const any_sockaddr &source) const;
	bool same(const any_sockaddr &, const any_sockaddr &) const;

	// Another socket of this address and port, to which the kernel gives what comes from the
	// peer. The caller closes it. -1: it cannot be had. What had come from others before it was
	// connected may be in it.
	int open_connected(const any_sockaddr &peer);
	// Of such a socket: nothing more comes to it.
	void divert(int fd) const;

private:
	int make() const;

	std::size_t buffer_;
	int fd_ = -1;
	bool segments_ = false;
	any_sockaddr own_{};
	std::array<std::uint8_t, 16> gid_{};
};

} // namespace coop::ud
