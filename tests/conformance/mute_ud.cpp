// SPDX-License-Identifier: MIT
// mute_ud.cpp - holds the port of a machine of the ud transport and reads nothing.
#include "mute.hpp"
#include "userland/net/ud/resolver.hpp"

namespace conformance
{

std::shared_ptr<void> mute_ud(const net::address &a)
{
	const std::array<std::uint8_t, 16> no_key{};
	return std::make_shared<net::ud::resolver>(no_key, net::ud::identity::of(a));
}

} // namespace conformance
