// SPDX-License-Identifier: MIT
// ports.hpp - where on the network an address of a transfer machine is.
//
// inet and inet6 addresses say their port. A NID, portal and TMID stand for a short list of
// ports that anybody can work out: the machine listens on the first that is free, and others
// try them in order. A port may be another machine's or a foreign program's; the handshake
// names both addresses in full, so a wrong one is told from the right one.
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

/// An IPv4 or IPv6 socket address, whichever the address is.
struct socket_address {
	sockaddr_storage storage{};
	std::size_t size = 0;
};

socket_address at_port(const address &, std::uint16_t port);

/// The IP address alone, as text.
std::string ip_text(const address &);

/// Whether this is the IP address of `a`, whatever the port.
bool same_ip(const address &a, const sockaddr &);

} // namespace coop::net::fabric
