// SPDX-License-Identifier: MIT
// roce_socket.cpp - see roce_socket.hpp.
#include "userland/ud/roce_socket.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace coop::ud
{

namespace
{

constexpr std::uint8_t v4_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::uint32_t smallest_mtu = 256, largest_mtu = 4096;
constexpr std::uint32_t header_room = 80; // the part of an interface's MTU that Linux' rxe reserves

[[noreturn]] void fail(int error, const std::string &text)
{
	throw std::system_error(error, std::generic_category(), text);
}

any_sockaddr parse(const std::string &ip, std::uint16_t port)
{
	addrinfo hints{};
	hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
	hints.ai_socktype = SOCK_DGRAM;
	addrinfo *found = nullptr;
	if (ip.empty() || getaddrinfo(ip.c_str(), nullptr, &hints, &found))
		fail(EINVAL,
		     "soft RoCE address '" + ip + "': give one numeric IPv4 or IPv6 address");
	any_sockaddr out{};
	std::memcpy(&out, found->ai_addr, std::min<std::size_t>(found->ai_addrlen, sizeof(out)));
	freeaddrinfo(found);

	const bool v6 = out.generic.sa_family == AF_INET6;
	const bool any = v6 ? IN6_IS_ADDR_UNSPECIFIED(&out.v6.sin6_addr) : !out.v4.sin_addr.s_addr;
	if (any)
		fail(EINVAL, "soft RoCE address '" + ip +
				     "': peers need one address, not all; name the interface's");
	if (v6)
		out.v6.sin6_port = htons(port);
	else
		out.v4.sin_port = htons(port);
	return out;
}

void ask_buffer(int fd, int force, int plain, std::size_t bytes)
{
	const int wanted = static_cast<int>(std::min<std::size_t>(bytes, 1u << 30));
	if (setsockopt(fd, SOL_SOCKET, force, &wanted, sizeof(wanted)))
		setsockopt(fd, SOL_SOCKET, plain, &wanted, sizeof(wanted));
}

int receive_buffer(int fd)
{
	int bytes = 0;
	socklen_t length = sizeof(bytes);
	return getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length) ? -1 : bytes;
}

// The interface whose network contains the address; all of 127.0.0.0/8 is loopback's.
std::string interface_of(const any_sockaddr &own)
{
	ifaddrs *list = nullptr;
	if (getifaddrs(&list))
		return {};
	std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
	std::string loopback;

	for (ifaddrs *i = list; i; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != own.generic.sa_family)
			continue;
		if (i->ifa_flags & IFF_LOOPBACK)
			loopback = i->ifa_name;
		if (own.generic.sa_family == AF_INET) {
			sockaddr_in a;
			std::memcpy(&a, i->ifa_addr, sizeof(a));
			if (a.sin_addr.s_addr == own.v4.sin_addr.s_addr)
				return i->ifa_name;
		} else {
			sockaddr_in6 a;
			std::memcpy(&a, i->ifa_addr, sizeof(a));
			if (!std::memcmp(&a.sin6_addr, &own.v6.sin6_addr, sizeof(a.sin6_addr)) &&
			    (!own.v6.sin6_scope_id || own.v6.sin6_scope_id == a.sin6_scope_id))
				return i->ifa_name;
		}
	}
	return loopback;
}

} // namespace

roce_socket::roce_socket(const std::string &ip, std::size_t buffer, std::uint16_t port,
			 std::uint8_t traffic_class) :
	buffer_(buffer),
	traffic_class_(traffic_class),
	own_(parse(ip, port))
{
	if (v6()) {
		std::memcpy(gid_.data(), &own_.v6.sin6_addr, 16);
	} else {
		std::memcpy(gid_.data(), v4_prefix, sizeof(v4_prefix));
		std::memcpy(gid_.data() + 12, &own_.v4.sin_addr, 4);
	}
	fd_ = make();
	if (fd_ < 0)
		fail(errno, "soft RoCE: cannot make a UDP socket that sets the don't-fragment bit");
	try {
		const int on = 1;
		segments_ = !setsockopt(fd_, IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
		if (bind(fd_, &own_.generic, address_length())) {
			const int error = errno;
			std::string text = "soft RoCE: cannot bind UDP " + ip + " port " +
					   std::to_string(port);
			if (error == EADDRINUSE)
				text += " (another node or an rxe device has it: give each node "
					"its own address)";
			else if (error == EADDRNOTAVAIL)
				text += " (no interface has this address)";
			fail(error, text);
		}
		socklen_t length = sizeof(own_);
		if (!port && getsockname(fd_, &own_.generic, &length))
			fail(errno, "soft RoCE: getsockname");
	} catch (...) {
		close(fd_);
		throw;
	}
}

// Makes an unbound socket; -1 with errno.
int roce_socket::make() const
{
	const int family = own_.generic.sa_family;
	const int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	const int on = 1, tclass = traffic_class_;
	int status;
	if (v6()) {
		const int probe = IPV6_PMTUDISC_PROBE;
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
		status = setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &probe, sizeof(probe)) ||
			 setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tclass, sizeof(tclass));
	} else {
		const int probe = IP_PMTUDISC_PROBE; // DF
		status = setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &probe, sizeof(probe)) ||
			 setsockopt(fd, IPPROTO_IP, IP_TOS, &tclass, sizeof(tclass));
	}
	if (status) {
		const int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	ask_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, buffer_);
	ask_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, buffer_);
	return fd;
}

roce_socket::~roce_socket()
{
	close(fd_);
}

std::uint32_t roce_socket::interface_mtu() const
{
	ifreq request{};
	const std::string name = interface_of(own_);
	name.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
	if (name.empty() || ioctl(fd_, SIOCGIFMTU, &request))
		return smallest_mtu;
	const auto mtu = static_cast<std::uint32_t>(request.ifr_mtu);
	if (mtu < header_room + smallest_mtu)
		return smallest_mtu;
	return std::min(largest_mtu, std::bit_floor(mtu - header_room));
}

std::uint32_t roce_socket::interface_mbps() const
{
	std::ifstream file("/sys/class/net/" + interface_of(own_) + "/speed");
	long mbps = 0;
	return file >> mbps && mbps > 0 ? static_cast<std::uint32_t>(mbps) : 0;
}

std::size_t roce_socket::receive_window(std::uint32_t payload) const
{
	const int buffer = receive_buffer(fd_);
	if (buffer <= 0)
		return payload;
	// A datagram that arrives alone costs the sk_buff and a buffer, rounded up to a power of
	// two, for headers, data and the kernel's bookkeeping. Batches cost less. An eighth is left
	// for control datagrams.
	constexpr std::size_t linear_overhead = 512, sk_buff = 256;
	const std::size_t charge = std::bit_ceil(payload + linear_overhead) + sk_buff;
	const std::size_t window = static_cast<std::size_t>(buffer) / charge * payload;
	return std::max<std::size_t>(window - window / 8, payload);
}

bool roce_socket::destination(const std::array<std::uint8_t, 16> &gid, std::uint16_t port,
			      any_sockaddr &out) const
{
	const bool mapped = !std::memcmp(gid.data(), v4_prefix, sizeof(v4_prefix));
	if (mapped == v6())
		return false;
	out = own_; // family and, for link-local addresses, the scope
	if (mapped) {
		std::memcpy(&out.v4.sin_addr, gid.data() + 12, 4);
		out.v4.sin_port = htons(port);
	} else {
		std::memcpy(&out.v6.sin6_addr, gid.data(), 16);
		out.v6.sin6_port = htons(port);
	}
	return true;
}

bool roce_socket::same(const any_sockaddr &a, const any_sockaddr &b) const
{
	if (v6())
		return a.v6.sin6_port == b.v6.sin6_port &&
		       !std::memcmp(&a.v6.sin6_addr, &b.v6.sin6_addr, sizeof(a.v6.sin6_addr));
	return a.v4.sin_port == b.v4.sin_port && a.v4.sin_addr.s_addr == b.v4.sin_addr.s_addr;
}

// Shares the port only briefly, and only with sockets of the same user: a permanently shared port
// would hide that another process has it.
int roce_socket::open_connected(const any_sockaddr &peer)
{
	const int fd = make(), on = 1, off = 0;
	if (fd < 0)
		return -1;
	// The receive_window() that peers know applies to this socket too.
	bool good = receive_buffer(fd) >= receive_buffer(fd_) &&
		    (!segments_ || !setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on))) &&
		    !setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) &&
		    !setsockopt(fd_, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) &&
		    !bind(fd, &own_.generic, address_length());
	setsockopt(fd_, SOL_SOCKET, SO_REUSEPORT, &off, sizeof(off));
	good = good && !setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &off, sizeof(off)) &&
	       !connect(fd, &peer.generic, address_length());
	if (good)
		return fd;
	close(fd);
	return -1;
}

// Connects it to an own port from which no process sends.
void roce_socket::divert(int fd) const
{
	any_sockaddr nobody = own_;
	(v6() ? nobody.v6.sin6_port : nobody.v4.sin_port) = htons(1);
	(void)connect(fd, &nobody.generic, address_length());
}

flow roce_socket::from(const any_sockaddr &source) const
{
	flow f;
	f.dst = gid_;
	f.dst_port = port();
	f.v6 = v6();
	if (f.v6) {
		std::memcpy(f.src.data(), &source.v6.sin6_addr, 16);
		f.src_port = ntohs(source.v6.sin6_port);
	} else {
		std::memcpy(f.src.data(), v4_prefix, sizeof(v4_prefix));
		std::memcpy(f.src.data() + 12, &source.v4.sin_addr, 4);
		f.src_port = ntohs(source.v4.sin_port);
	}
	return f;
}

} // namespace coop::ud
