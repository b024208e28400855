// SPDX-License-Identifier: MIT
// address.cpp - socket addresses as names of listeners, and rdma_getaddrinfo().
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "userland/ntrdma/cm/manager.hpp"

namespace coop::ntrdma::cm
{

std::uint16_t port_of(const sockaddr *a)
{
	if (a->sa_family == AF_INET6)
		return ntohs(reinterpret_cast<const sockaddr_in6 *>(a)->sin6_port);
	return a->sa_family == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in *>(a)->sin_port)
				       : 0;
}

void set_port(sockaddr *a, std::uint16_t port)
{
	if (a->sa_family == AF_INET6)
		reinterpret_cast<sockaddr_in6 *>(a)->sin6_port = htons(port);
	else
		reinterpret_cast<sockaddr_in *>(a)->sin_port = htons(port);
}

bool is_any(const sockaddr *a)
{
	if (a->sa_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(
			&reinterpret_cast<const sockaddr_in6 *>(a)->sin6_addr);
	return a->sa_family != AF_INET ||
	       !reinterpret_cast<const sockaddr_in *>(a)->sin_addr.s_addr;
}

socklen_t length_of(const sockaddr *a)
{
	return a->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

void copy_address(sockaddr_storage *to, const sockaddr *from)
{
	*to = {};
	std::memcpy(to, from, length_of(from));
}

std::string listener_name(rdma_port_space ps, const sockaddr *a, bool any)
{
	char text[INET6_ADDRSTRLEN] = "*";
	if (!any && a->sa_family == AF_INET6)
		inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6 *>(a)->sin6_addr, text,
			  sizeof(text));
	else if (!any)
		inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in *>(a)->sin_addr, text,
			  sizeof(text));
	return "coop-ntrdma/" + std::to_string(geteuid()) +
	       (ps == RDMA_PS_UDP ? "/cm-udp/" : "/cm/") + text + "/" + std::to_string(port_of(a));
}

bool is_own(const sockaddr *a)
{
	// Only an address of this machine can be bound.
	sockaddr_storage copy;
	copy_address(&copy, a);
	auto *at = reinterpret_cast<sockaddr *>(&copy);
	set_port(at, 0);
	unique_fd fd{socket(a->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
	return fd && !bind(fd.get(), at, length_of(at));
}

} // namespace coop::ntrdma::cm

using namespace coop::ntrdma::cm;

COOP_CM void rdma_freeaddrinfo(rdma_addrinfo *list)
{
	while (list) {
		rdma_addrinfo *next = list->ai_next;
		std::free(list->ai_src_addr);
		std::free(list->ai_dst_addr);
		std::free(list);
		list = next;
	}
}

COOP_CM int rdma_getaddrinfo(const char *node, const char *service, const rdma_addrinfo *hints,
			     rdma_addrinfo **out)
{
	if (!node && !service && !hints) {
		errno = EINVAL;
		return -1;
	}
	int flags = hints ? hints->ai_flags : 0;
	const int space = hints ? hints->ai_port_space : 0;
	const bool wants_datagrams = hints && hints->ai_qp_type == IBV_QPT_UD;
	if (wants_datagrams && space && space != RDMA_PS_UDP) {
		errno = EOPNOTSUPP;
		return -1;
	}
	const bool datagrams = wants_datagrams || space == RDMA_PS_UDP;
	addrinfo wish{}, *found = nullptr;
	wish.ai_family = flags & RAI_FAMILY ? hints->ai_family : AF_UNSPEC;
	wish.ai_socktype = SOCK_STREAM;
	wish.ai_flags = (flags & RAI_PASSIVE ? AI_PASSIVE : 0) |
			(flags & RAI_NUMERICHOST ? AI_NUMERICHOST : 0);
	if (node || service) {
		if (int rc = getaddrinfo(node, service, &wish, &found))
			return rc;
	}
	auto *r = static_cast<rdma_addrinfo *>(std::calloc(1, sizeof(rdma_addrinfo)));
	auto duplicate = [](const sockaddr *a) {
		auto *copy = static_cast<sockaddr *>(std::calloc(1, sizeof(sockaddr_storage)));
		std::memcpy(copy, a, length_of(a));
		return copy;
	};
	r->ai_flags = flags;
	r->ai_qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_RC;
	r->ai_port_space = space ? space : datagrams ? RDMA_PS_UDP : RDMA_PS_TCP;
	r->ai_family = found ? found->ai_family : hints->ai_family;
	if (found && (flags & RAI_PASSIVE)) {
		r->ai_src_addr = duplicate(found->ai_addr);
		r->ai_src_len = found->ai_addrlen;
	} else if (found) {
		r->ai_dst_addr = duplicate(found->ai_addr);
		r->ai_dst_len = found->ai_addrlen;
	}
	if (hints && hints->ai_src_addr && !r->ai_src_addr) {
		r->ai_src_addr = duplicate(hints->ai_src_addr);
		r->ai_src_len = hints->ai_src_len;
	}
	if (hints && hints->ai_dst_addr && !r->ai_dst_addr && !(flags & RAI_PASSIVE)) {
		r->ai_dst_addr = duplicate(hints->ai_dst_addr);
		r->ai_dst_len = hints->ai_dst_len;
	}
	if (found)
		freeaddrinfo(found);
	*out = r;
	return 0;
}
