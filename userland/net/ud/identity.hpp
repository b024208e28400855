// SPDX-License-Identifier: MIT
// identity.hpp - a transfer machine in 50 bits: IPv4 address, portal, TMID.
//
// Machines reach each other on their own network only (there is no router here), so the network of
// a peer is the machine's own and is not sent. The rest fits a tag of rpc/chan together with the
// kind of the message, and one half of a file id of rpc/fetch. Both are authenticated, so every
// message names its sender, without a table that the receiver could have lost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "userland/net/transport.hpp"

namespace coop::net::ud
{

/// The IPv4 address mapped into this IPv6 address or GID, host byte order; 0: there is none.
inline std::uint32_t ipv4_of(std::span<const std::uint8_t, 16> ip)
{
	constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	if (!std::equal(std::begin(mapped), std::end(mapped), ip.begin()))
		return 0;
	return std::uint32_t(ip[12]) << 24 | std::uint32_t(ip[13]) << 16 |
	       std::uint32_t(ip[14]) << 8 | ip[15];
}

struct identity {
	static constexpr unsigned id_bits = 12, number_bits = 18;

	std::uint32_t ip = 0;     ///< host byte order
	std::uint32_t number = 0; ///< portal and TMID

	bool operator==(const identity &) const = default;
	std::uint64_t packed() const { return std::uint64_t(ip) << number_bits | number; }
	static identity unpack(std::uint64_t v)
	{
		return {static_cast<std::uint32_t>(v >> number_bits),
			static_cast<std::uint32_t>(v & ((1u << number_bits) - 1))};
	}
	static identity of(const address &a)
	{
		return {ipv4_of(a.ip), std::uint32_t(a.portal) << id_bits | a.id};
	}
	/// Its address on the network of `own`.
	address on(const address &own) const
	{
		address a = own;
		a.portal = static_cast<std::uint8_t>(number >> id_bits);
		a.id = number & ((1u << id_bits) - 1);
		for (unsigned i = 0; i < 4; i++)
			a.ip[12 + i] = static_cast<std::uint8_t>(ip >> (24 - 8 * i));
		return a;
	}
};

/// The asker of a fetch and the shift of its pages (pages.hpp), the lower half of a file id.
struct asker {
	static constexpr unsigned shift_at = 50;

	identity who;
	std::uint32_t shift = 0;

	std::uint64_t packed() const { return std::uint64_t(shift) << shift_at | who.packed(); }
	static asker unpack(std::uint64_t v)
	{
		return {identity::unpack(v), static_cast<std::uint32_t>(v >> shift_at)};
	}
};

/// The kind of a message of rpc/chan, in the upper 8 bits of its tag; the sender is below.
enum class tag_kind : std::uint8_t { message = 1, bulk = 2 };

inline std::uint64_t make_tag(tag_kind k, identity sender)
{
	return std::uint64_t(k) << 56 | sender.packed();
}

} // namespace coop::net::ud
