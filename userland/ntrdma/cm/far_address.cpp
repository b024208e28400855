// SPDX-License-Identifier: MIT
// far_address.cpp - see far_address.hpp.
#include "userland/ntrdma/cm/far_address.hpp"

#include <cerrno>
#include <cstring>

#include <netinet/in.h>

namespace coop::ntrdma::cm
{

namespace
{

constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

} // namespace

ip_address ip_of(const sockaddr *a)
{
	ip_address ip{};
	if (a->sa_family == AF_INET6) {
		std::memcpy(ip.data(), &reinterpret_cast<const sockaddr_in6 *>(a)->sin6_addr, 16);
	} else {
		std::memcpy(ip.data(), mapped, sizeof(mapped));
		std::memcpy(ip.data() + 12, &reinterpret_cast<const sockaddr_in *>(a)->sin_addr, 4);
	}
	return ip;
}

sockaddr_storage address_of(const ip_address &ip, std::uint16_t port)
{
	sockaddr_storage a{};
	if (!std::memcmp(ip.data(), mapped, sizeof(mapped))) {
		auto *in = reinterpret_cast<sockaddr_in *>(&a);
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		std::memcpy(&in->sin_addr, ip.data() + 12, 4);
	} else {
		auto *in = reinterpret_cast<sockaddr_in6 *>(&a);
		in->sin6_family = AF_INET6;
		in->sin6_port = htons(port);
		std::memcpy(&in->sin6_addr, ip.data(), 16);
	}
	return a;
}

bool is_loopback(const sockaddr *a)
{
	ip_address ip = ip_of(a);
	return a->sa_family == AF_INET6
		       ? IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6 *>(a)->sin6_addr)
		       : ip[12] == 127;
}

bool is_link_local(const sockaddr *a)
{
	return a->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6 *>(a)->sin6_addr);
}

ip_address own_ip(int socket)
{
	sockaddr_storage own{};
	socklen_t size = sizeof(own);
	getsockname(socket, reinterpret_cast<sockaddr *>(&own), &size);
	return ip_of(reinterpret_cast<sockaddr *>(&own));
}

} // namespace coop::ntrdma::cm
