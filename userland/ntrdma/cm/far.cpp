// SPDX-License-Identifier: MIT
// far.cpp - connections of librdmacm to other hosts, by TCP.
//
// The port of a listener is a TCP port, too, as with iWARP. A connection carries the same messages
// as a UNIX socket does, and tells which addresses the two queue pairs are linked by. Like the rest
// of the back end for other hosts it asks for no proof: see NTRDMA.md.
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

constexpr auto again_after = std::chrono::milliseconds{50};
constexpr auto speaks_within = std::chrono::seconds{5};
constexpr std::size_t unknown_most = 256; // callers of a listener that its program has not seen

} // namespace

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

int gid_index(ibv_context *c, const ip_address &ip)
{
	ibv_gid gid;
	for (int i = 1; !ibv_query_gid(c, 1, i, &gid); i++)
		if (!std::memcmp(&gid, ip.data(), sizeof(gid)))
			return i;
	return -1;
}

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
	if (!i->why)
		i->why = say(i->socket.get(), i->request);
	if (!i->why) {
		i->calling = false;
		watch(i);
		return true;
	}
	i->socket = unique_fd{};
	return false;
}

/// 0 or -errno of accept4().
int manager::accept_far(identifier *listener)
{
	route r;
	unique_fd fd;
	if (int error = accept_tcp(listener->far_listener.get(), fd, r.to))
		return error;
	r.own = own_ip(fd.get());
	if (unknown_of(listener).size() >= unknown_most || !device() ||
	    gid_index(device(), r.own) < 0)
		return 0;
	identifier *i = take_caller(listener, std::move(fd));
	i->by_tcp = r;
	i->patience = std::chrono::steady_clock::now() + speaks_within;
	return 0;
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
