// SPDX-License-Identifier: MIT
// mute_ntrdma.cpp - holds the socket of a machine of the transport ntrdma and answers no greeting.
#include <system_error>

#include "mute.hpp"
#include "userland/net/ntrdma/greeting.hpp"

namespace conformance
{

std::shared_ptr<void> mute_ntrdma(const net::address &a)
{
	auto socket = std::make_shared<coop::ntrdma::unique_fd>();
	if (const int r = net::nt::listen_at(a, *socket))
		throw std::system_error(-r, std::generic_category(), "mute service");
	return socket;
}

} // namespace conformance
