// SPDX-License-Identifier: MIT
// mute_ntrdma.cpp - holds the socket of a machine of the transport ntrdma and answers no greeting.
#include <system_error>

#include "mute.hpp"
#include "userland/net/ntrdma/greeting.hpp"
#include "userland/net/ntrdma/tcp_greeting.hpp"
#include "userland/ntrdma/stream/sockets.hpp"

namespace conformance
{

std::shared_ptr<void> mute_ntrdma(const net::address &a)
{
	auto socket = std::make_shared<coop::ntrdma::unique_fd>();
	if (const int r = net::nt::listen_at(a, *socket))
		throw std::system_error(-r, std::generic_category(), "mute service");
	return socket;
}

std::shared_ptr<void> mute_ntrdma_tcp(const net::address &a)
{
	auto socket = std::make_shared<coop::ntrdma::unique_fd>();
	if (const int r = coop::ntrdma::listen_tcp(a.ip, net::nt::tcp_port(a), *socket))
		throw std::system_error(-r, std::generic_category(), "mute service");
	return socket;
}

} // namespace conformance
