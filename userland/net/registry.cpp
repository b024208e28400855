// SPDX-License-Identifier: MIT
// registry.cpp - the transports of this build, by name.
//
// A table instead of constructors of static objects: the linker drops objects of an archive that
// nothing refers to. CMakeLists.txt defines COOP_NET_<NAME> for each transport directory that it
// builds.
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport.hpp"

namespace coop::net
{

namespace spi
{

namespace
{

std::mutex table_lock;

std::vector<const transport *> &table()
{
	static std::vector<const transport *> known = {
		&mem_transport,
#ifdef COOP_NET_UD
		&ud_transport,
#endif
#ifdef COOP_NET_FABRIC
		&fabric_transport,
#endif
#ifdef COOP_NET_NTRDMA
		&ntrdma_transport,
#endif
#ifdef COOP_NET_KERNEL
		&kernel_transport,
#endif
	};
	return known;
}

} // namespace

const transport *find_transport(std::string_view name)
{
	std::lock_guard guard(table_lock);
	for (const transport *t : table())
		if (name == t->name())
			return t;
	return nullptr;
}

void add_transport(const transport &t)
{
	std::lock_guard guard(table_lock);
	table().push_back(&t);
}

int check_own_ip(const std::array<std::uint8_t, 16> &ip)
{
	in6_addr self;
	std::memcpy(&self, ip.data(), 16);
	const bool v4 = IN6_IS_ADDR_V4MAPPED(&self);
	// These can be bound too, but are no addresses of an interface.
	if (IN6_IS_ADDR_UNSPECIFIED(&self) || IN6_IS_ADDR_MULTICAST(&self) ||
	    (v4 && (ip[12] == 0 || ip[12] >= 224)))
		return -ENOENT;
	// Ask the kernel: any other address can be bound if and only if it is ours.
	const int fd = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0) {
		sockaddr_in6 a{};
		a.sin6_family = AF_INET6;
		a.sin6_addr = self;
		const int off = 0;
		::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
		const int r = ::bind(fd, reinterpret_cast<const sockaddr *>(&a), sizeof(a));
		::close(fd);
		if (r == 0 || !v4)
			return r == 0 ? 0 : -ENOENT;
	} else if (errno != EAFNOSUPPORT || !v4) {
		return errno == EAFNOSUPPORT ? -ENOENT : -errno;
	}
	// No IPv6 in this kernel.
	const int fd4 = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd4 < 0)
		return -errno;
	sockaddr_in a{};
	a.sin_family = AF_INET;
	std::memcpy(&a.sin_addr, ip.data() + 12, 4);
	const int r = ::bind(fd4, reinterpret_cast<const sockaddr *>(&a), sizeof(a));
	::close(fd4);
	return r == 0 ? 0 : -ENOENT;
}

} // namespace spi

std::vector<std::string> domain::transports()
{
	std::lock_guard guard(spi::table_lock);
	std::vector<std::string> names;
	for (const spi::transport *t : spi::table())
		names.push_back(t->name());
	return names;
}

std::string domain::parameters(const std::string &name)
{
	std::string text;
	if (const spi::transport *t = spi::find_transport(name))
		for (const spi::parameter &p : t->parameters())
			text += std::string(p.key) + '=' + p.standard + "  " + p.text +
				(p.sides == spi::sides::agree ? " [both sides]\n" : "\n");
	return text;
}

} // namespace coop::net
