// SPDX-License-Identifier: MIT
// roce_socket.hpp - the UDP socket under a soft RoCE endpoint, and its abilities in
// this kernel.
//
// It is unconnected and sets DF: so the IPv4 identification of its datagrams is 0,
// 1, 2, ... within a super packet, and the sender can compute the ICRC. For peers
// that do not check the identification there may be a connected socket beside it.
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
	roce_socket(const std::string &ip, std::size_t buffer, std::uint16_t port = roce_port,
		    std::uint8_t traffic_class = 0);
	~roce_socket();
	roce_socket(const roce_socket &) = delete;
	roce_socket &operator=(const roce_socket &) = delete;

	int fd() const { return fd_; }
	std::uint16_t port() const { return ntohs(v6() ? own_.v6.sin6_port : own_.v4.sin_port); }
	bool v6() const { return own_.generic.sa_family == AF_INET6; }
	const std::array<std::uint8_t, 16> &gid() const { return gid_; }
	// Whether the kernel segments (UDP_SEGMENT) and merges (UDP_GRO).
	bool segments() const { return segments_; }
	// The largest of InfiniBand's MTUs whose datagrams the interface carries.
	std::uint32_t interface_mtu() const;
	std::uint32_t interface_mbps() const; // 0: unknown, as of a virtual interface
	// The bytes that the receive buffer holds in datagrams of such a payload, by the kernel's
	// accounting.
	std::size_t receive_window(std::uint32_t payload) const;

	socklen_t address_length() const
	{
		return v6() ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
	}
	// The address at which a peer with this GID listens. False: it is of the other family.
	bool destination(const std::array<std::uint8_t, 16> &gid, std::uint16_t port,
			 any_sockaddr &out) const;
	// The flow of a packet from this address.
	flow from(const any_sockaddr &source) const;
	bool same(const any_sockaddr &, const any_sockaddr &) const;

	// Opens another socket with this address and port, to which the kernel delivers the peer's
	// datagrams. The caller closes it. -1: failed. It may contain datagrams of others that came
	// before it was connected.
	int open_connected(const any_sockaddr &peer);
	// Stops deliveries to such a socket.
	void divert(int fd) const;

private:
	int make() const;

	std::size_t buffer_;
	const std::uint8_t traffic_class_;
	int fd_ = -1;
	bool segments_ = false;
	any_sockaddr own_{};
	std::array<std::uint8_t, 16> gid_{};
};

} // namespace coop::ud
