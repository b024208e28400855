// SPDX-License-Identifier: MIT
// options.hpp - the parameters of a domain of the ud transport, the same for all its machines.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rpc/base/mac.h"
#include "rpc/chan/chan.h"
#include "userland/net/transport.hpp"
#include "userland/ud/endpoint.hpp"

namespace coop::net::ud
{

constexpr unsigned most_rails = 4;          ///< of a machine, with the first
constexpr std::uint16_t device_port = 4791; ///< UDP, of RDMA devices

/// The rails of a machine but the first.
struct rail_list {
	std::array<std::uint32_t, most_rails - 1> ip{}; ///< IPv4 addresses, host byte order
	unsigned size = 0;
	bool messages = false; ///< they carry messages as well
};

struct options {
	std::array<std::uint8_t, 16> key{}; ///< of MACs; all zero: checksums
	bool verbs = false;                 ///< else soft RoCE on the machine's own address
	coop::ud::verbs_options device;     ///< verbs
	std::uint32_t mtu = COOP_MTU_MAX;   ///< soft RoCE: payload bytes a datagram, at most
	std::size_t socket_buffer = 8u << 20;
	coop::ud::wire_faults faults;
	std::size_t max_message = 1u << 20;
	std::uint32_t max_operations = 4096;     ///< a machine
	std::uint32_t peers = 16384;             ///< a machine, with a session at a time
	std::uint32_t window = 4096;             ///< segments towards one peer
	std::uint32_t fetches = 8, serves = 16;  ///< bulk requests at a time
	std::uint32_t fetch_timeout_us = 200000; ///< of one bulk request
	std::uint32_t patience_us = 5000000;     ///< of bulk that makes no progress
	std::uint32_t tries = 12;                ///< timeouts in a row before a peer is dead
	bool seal = false;                       ///< MACs cover payloads
	bool page_crc = false;                   ///< CRC32C a page of bulk
	std::uint16_t udp_port = 0;              ///< soft RoCE: of all queue pairs; 0: its own
	std::vector<std::string> rails;          ///< but the first: IPv4 addresses, or devices
	unsigned cut_rail = 0;                   ///< tests: this rail is cut
	std::uint32_t cut_after = 0;             ///< after so many datagrams; 0: none is
	std::uint64_t start_delay_us = 0;
	bool fixed_seq = false; ///< sequence numbers of rpc/chan start at first_seq
	std::uint32_t first_seq = 0;

	/// Whether queue pairs follow from the number of their machine, and so cannot become
	/// another's. A device assigns them as it likes.
	bool fixed_places() const { return !verbs && udp_port != device_port; }
	/// Of all queue pairs, and the same for all machines: the source of a datagram, which is
	/// answered, does not tell it.
	std::uint32_t qkey() const
	{
		constexpr char label[] = "coop ud q_key";
		// The top bit is for privileged consumers.
		return static_cast<std::uint32_t>(coop_mac(key.data(), label, sizeof(label))) &
		       0x7fffffff;
	}
	/// How long rpc/fetch hears nothing from a peer before it asks others.
	std::uint32_t silence_us() const
	{
		return static_cast<std::uint32_t>(
			std::clamp<std::uint64_t>(patience_us / 4, fetch_timeout_us, 2000000));
	}
	/// Bytes, with datagrams of that MTU: half a window of rpc/chan holds no more of them.
	std::size_t longest_message(std::uint32_t datagram) const
	{
		return std::min(max_message, std::size_t{window / 2} *
						     ((datagram & ~7u) - COOP_CHAN_HEADER_MOST));
	}
};

/// The names in rails=, by comma: devices with options::verbs, or else IPv4 addresses of this host.
/// @throw std::system_error of parameter_values::refuse().
std::vector<std::string> read_rails(const spi::parameter_values &, const options &);

// What a transport on the wire of ud has in common with the others.

/// The highest values that it allows.
struct option_limits {
	std::uint32_t operations, peers, serves;
};

/// Reads the parameters that all of them have, except rails=.
/// @throw std::system_error of parameter_values::refuse().
void read_shared(const spi::parameter_values &, const option_limits &, options &);
/// @throw std::system_error if the GID of a rail's device has no IPv4 address: peers find it there.
void check_rail(const char *transport, const std::string &name,
		std::span<const std::uint8_t, 16> gid);
/// spi::transport_domain::check().
[[nodiscard]] int check_own(const address &);
/// @param longest message, bytes.
domain_limits limits_of(const options &, std::size_t longest);

} // namespace coop::net::ud
