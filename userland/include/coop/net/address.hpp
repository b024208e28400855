// SPDX-License-Identifier: MIT
// address.hpp - the address of a transfer machine, as text and as a value.
//
// Two forms, both at most 80 characters:
//
//   NID:PID:portal:TMID    10.72.49.14@o2ib0:12345:31:0, 192.168.96.128@tcp1:12345:32:*
//   FAMILY:NET:IP@PORT     inet:tcp:10.72.49.14@3000, inet6:o2ib:fe80::1@*
//
// A NID is IP@NET. NET is a network type followed by an instance: tcp, tcp1, o2ib0; no number means
// 0. PID is always 12345, portal 0-63, TMID 0-4095, PORT 1-65535. `*` in the last place asks
// transfer_machine::start() for a free number and is an error elsewhere. Source of the first form:
// the LNet transport of Motr, whose programs keep their addresses.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>

#include "base.hpp"

namespace coop::net
{

/// Type of the network of a NID.
/// @par Source
/// LNet, which uses these numbers.
enum class network : std::uint16_t { none = 0, tcp = 2, o2ib = 5, lo = 9, kfi = 16 };

/// The address of a transfer machine. A plain value without invariants of its own: parse() makes
/// valid ones. Equal values are equal addresses, and format() gives each its only text.
/// @par Source
/// The LNet transport of Motr (form lnet) and its libfabric transport (inet, inet6).
struct address {
	/// Form of the text, which also determines the fields in use.
	enum class form : std::uint8_t {
		none,  ///< no address
		lnet,  ///< NID:PID:portal:TMID
		inet,  ///< inet:NET:IPv4@PORT
		inet6, ///< inet6:NET:IPv6@PORT
	};

	static constexpr std::size_t text_max = 80;  ///< characters
	static constexpr std::uint32_t pid = 12345;  ///< PID of every address
	static constexpr std::uint32_t portals = 64; ///< portals of a NID; numbers are below that
	static constexpr std::uint32_t machines = 4096;  ///< TMIDs of one NID, PID and portal
	static constexpr std::uint32_t ports = 65536;    ///< port numbers are below that, and not 0
	static constexpr std::uint32_t any = 0xffffffff; ///< value of `*`

	form kind = form::none;      ///< the form
	std::uint8_t portal = 0;     ///< lnet only
	network net = network::none; ///< NET, without its instance number
	std::uint16_t instance = 0;  ///< instance of the network
	std::uint32_t id = 0;        ///< TMID (lnet) or port (inet, inet6), or `any`
	/// IPv6 address in network order; ::ffff:a.b.c.d for a.b.c.d.
	std::array<std::uint8_t, 16> ip{};

	/// Whether both are the same address.
	bool operator==(const address &) const = default;
	/// Whether the last place is `*`.
	bool wildcard() const noexcept { return id == any; }
	/// lnet: network (16 bits of type, 16 of instance) above the IPv4 address, whose first
	/// octet is uppermost. 0 for other forms.
	COOP_NET_API std::uint64_t nid() const noexcept;
};

/// Parses `text`. @return 0, or -EINVAL (malformed, out of range, longer than 80 characters); then
/// `out` is unchanged.
[[nodiscard]] COOP_NET_API int parse(std::string_view text, address &out);

/// The only text of an address; empty for form::none.
COOP_NET_API std::string format(const address &);

/// Whether parse() could have made it: check values received from a peer.
COOP_NET_API bool is_valid(const address &) noexcept;

/// Equal for equal addresses; mixes all bits.
COOP_NET_API std::size_t hash(const address &) noexcept;

} // namespace coop::net

template <> struct std::hash<coop::net::address> {
	std::size_t operator()(const coop::net::address &a) const noexcept
	{
		return coop::net::hash(a);
	}
};
