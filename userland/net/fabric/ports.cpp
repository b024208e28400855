// SPDX-License-Identifier: MIT
// ports.cpp - see ports.hpp.
#include "ports.hpp"

#include <arpa/inet.h>
#include <cstring>

namespace coop::net::fabric
{

namespace
{

// Below the ephemeral ports of systems (32768 and up), above most services.
constexpr std::uint32_t first_port = 10240, port_range = 22000;

bool is_ipv4(const address &a)
{
	static constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	return std::memcmp(a.ip.data(), mapped, sizeof(mapped)) == 0;
}

// Part of the protocol: all machines must compute the same ports.
std::uint64_t mix(std::uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

} // namespace

port_list ports_of(const address &a)
{
	port_list l;
	if (a.kind != address::form::lnet) {
		l.ports[l.count++] = static_cast<std::uint16_t>(a.id);
		return l;
	}
	// Adjacent TMIDs get adjacent first ports, which never collide; the others are spread.
	const std::uint64_t place =
		(static_cast<std::uint64_t>(a.net) << 16 | a.instance) << 6 | a.portal;
	l.ports[l.count++] =
		static_cast<std::uint16_t>(first_port + (mix(place) + a.id) % port_range);
	for (std::uint64_t n = 1; l.count < port_list::most; n++)
		l.ports[l.count++] = static_cast<std::uint16_t>(
			first_port + mix((place << 12 | a.id) + (n << 56)) % port_range);
	return l;
}

socket_address at_port(const address &a, std::uint16_t port)
{
	socket_address s;
	if (is_ipv4(a)) {
		auto *in = reinterpret_cast<sockaddr_in *>(&s.storage);
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		std::memcpy(&in->sin_addr, a.ip.data() + 12, 4);
		s.size = sizeof(*in);
	} else {
		auto *in6 = reinterpret_cast<sockaddr_in6 *>(&s.storage);
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
		std::memcpy(&in6->sin6_addr, a.ip.data(), 16);
		s.size = sizeof(*in6);
	}
	return s;
}

std::string ip_text(const address &a)
{
	char text[INET6_ADDRSTRLEN];
	if (is_ipv4(a))
		::inet_ntop(AF_INET, a.ip.data() + 12, text, sizeof(text));
	else
		::inet_ntop(AF_INET6, a.ip.data(), text, sizeof(text));
	return text;
}

bool same_ip(const address &a, const sockaddr &s)
{
	if (s.sa_family == AF_INET)
		return is_ipv4(a) && std::memcmp(&reinterpret_cast<const sockaddr_in &>(s).sin_addr,
						 a.ip.data() + 12, 4) == 0;
	return s.sa_family == AF_INET6 &&
	       std::memcmp(&reinterpret_cast<const sockaddr_in6 &>(s).sin6_addr, a.ip.data(), 16) ==
		       0;
}

} // namespace coop::net::fabric
