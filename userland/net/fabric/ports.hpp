// SPDX-License-Identifier: MIT
// ports.hpp - the socket addresses of a transfer machine's address.
//
// inet and inet6 addresses contain their port. For a NID, portal and TMID everyone can compute a
// short list of ports: the machine listens on the first free one, and peers try them in order. A
// port may belong to another machine or to a foreign program; the handshake contains both addresses
// in full, so a wrong port is recognised.
#pragma once

#include <array>
#include <netinet/in.h>
#include <span>
#include <string>

#include "coop/net/address.hpp"

namespace coop::net::fabric
{

/// Ports to try for an address, at least one, at most port_list::most.
struct port_list {
	static constexpr unsigned most = 4;

	std::array<std::uint16_t, most> ports{};
	unsigned count = 0;
};

port_list ports_of(const address &);

/// An IPv4 or IPv6 socket address, depending on the address.
struct socket_address {
	sockaddr_storage storage{};
	std::size_t size = 0;
};

socket_address at_port(const address &, std::uint16_t port);

/// The IP address alone, as text.
std::string ip_text(const address &);

/// Whether this is the IP address of `a`, with any port.
bool same_ip(const address &a, const sockaddr &);

} // namespace coop::net::fabric
