// SPDX-License-Identifier: MIT
// far.cpp - connections of librdmacm to other hosts, by TCP.
//
// The port of a listener is a TCP port, too, as with iWARP. A connection carries the same messages
// as a UNIX socket does, and tells which addresses the two queue pairs are linked by. Like the rest
// of the back end for other hosts it asks for no proof: see NTRDMA.md.
#include "userland/ntrdma/cm/far.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <netinet/in.h>
#include <unistd.h>

#include "userland/ntrdma/cm/manager.hpp"

namespace coop::ntrdma::cm
{

namespace
{

constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr auto again_after = std::chrono::milliseconds{50};
constexpr auto speaks_within = std::chrono::seconds{5};
constexpr std::ptrdiff_t silent_most = 256; // callers that have not said what they want

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

int source_of(const sockaddr *to, sockaddr_storage *own)
{
	*own = {};
	socklen_t size = sizeof(*own);
	unique_fd fd{socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
	if (!fd || ::connect(fd.get(), to, length_of(to)) ||
	    getsockname(fd.get(), reinterpret_cast<sockaddr *>(own), &size))
		return -errno;
	set_port(reinterpret_cast<sockaddr *>(own), 0);
	return 0;
}

ip_address own_ip(int socket)
{
	sockaddr_storage own{};
	socklen_t size = sizeof(own);
	getsockname(socket, reinterpret_cast<sockaddr *>(&own), &size);
	return ip_of(reinterpret_cast<sockaddr *>(&own));
}

int gid_index(ibv_context *c, const ip_address &ip)
{
	ibv_gid gid;
	for (int i = 1; !ibv_query_gid(c, 1, i, &gid); i++)
		if (!std::memcmp(&gid, ip.data(), sizeof(gid)))
			return i;
	return -1;
}

// ---- the manager's part ----------------------------------------------------------

backend manager::reaches()
{
	if (!reaches_) {
		try {
			reaches_ = chosen_backend();
		} catch (const std::system_error &) { // opening the device says so
			reaches_ = backend::window;
		}
	}
	return *reaches_;
}

bool manager::try_to_call_far(identifier *i)
{
	auto now = std::chrono::steady_clock::now();
	if (!i->socket) {
		if (now < i->again)
			return false;
		i->again = now + again_after;
		i->why = call_tcp(i->by_tcp->own, i->by_tcp->to,
				  port_of(&i->id.route.addr.dst_addr), i->socket);
		if (i->why)
			return false;
	}
	i->why = connected(i->socket.get());
	if (i->why == -EAGAIN)
		return false;
	if (!i->why && say(i->socket.get(), i->request)) {
		i->calling = false;
		watch(i);
		return true;
	}
	i->socket = unique_fd{};
	return false;
}

void manager::accept_far(identifier *listener)
{
	route r;
	unique_fd fd;
	if (accept_tcp(listener->far_listener.get(), fd, r.to))
		return;
	r.own = own_ip(fd.get());
	auto silent = std::count_if(all_.begin(), all_.end(),
				    [](const identifier *i) { return i->listener && i->by_tcp; });
	if (silent >= silent_most || !device() || gid_index(device(), r.own) < 0)
		return;
	identifier *i = take_caller(listener, std::move(fd));
	i->by_tcp = r;
	i->patience = std::chrono::steady_clock::now() + speaks_within;
}

/// Hangs up on callers that do not say what they want.
void manager::tend_silent()
{
	auto now = std::chrono::steady_clock::now();
	std::vector<identifier *> late;
	for (identifier *i : all_)
		if (i->listener && i->by_tcp && now > i->patience)
			late.push_back(i);
	for (identifier *i : late)
		hung_up(i);
}

} // namespace coop::ntrdma::cm
