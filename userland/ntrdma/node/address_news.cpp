// SPDX-License-Identifier: MIT
// address_news.cpp - see address_news.hpp.
#include "userland/ntrdma/node/address_news.hpp"

#include <cerrno>

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

namespace coop::ntrdma
{

address_news::address_news() :
	fd_{socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)}
{
	sockaddr_nl all{};
	all.nl_family = AF_NETLINK;
	// An interface that is set down keeps its IPv4 addresses.
	all.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
	if (fd_ && bind(fd_.get(), reinterpret_cast<sockaddr *>(&all), sizeof(all)))
		fd_ = unique_fd{};
}

bool address_news::take()
{
	char message[4096];
	bool any = false;
	// ENOBUFS: more came than the socket holds.
	while (fd_ &&
	       (recv(fd_.get(), message, sizeof(message), MSG_DONTWAIT) >= 0 || errno == ENOBUFS))
		any = true;
	return any;
}

} // namespace coop::ntrdma
