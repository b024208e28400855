// SPDX-License-Identifier: MIT
// descriptor.hpp - the bytes that name a passive bulk buffer to other machines.
//
// Little-endian, no padding:
//
//   0  u8   version, 1
//   1  u8   flags: 1 the holder may write, else read; 2 reusable, and for ranges. Before there
//           were such descriptors the last flag made a text malformed, so older programs refuse it
//   2  u16  length of the transport's part, P
//   4  u32  transport: FNV-1a of the name of its wire
//   8  u64  size: bytes that may be moved
//   16 u64  token of the passive operation
//   24 u64  key of the passive operation, not 0
//   32      address of its machine: u8 form, u8 portal, u16 network, u16 instance,
//           u16 zero, u32 id, 16 bytes of IP
//   60      P bytes of the transport
//   60+P    u32 CRC32C of all before it
//
// The checksum finds damage, not forgery: any peer can make such bytes. The key authorises the use
// of the operation: 64 random bits from the kernel, drawn for this operation alone. The key depends
// on nothing else, so descriptors that a peer was given reveal nothing about others. (A keyed hash
// of the token would need no room in the slot, but would depend on one secret for all descriptors
// of a machine.) The passive side itself checks key, token, direction and size. The active side
// copies token and key into its request and does not interpret them.
#pragma once

#include <span>

#include "coop/net/address.hpp"
#include "transport.hpp"

namespace coop::net::core
{

struct descriptor {
	static constexpr std::size_t fixed = 64; ///< bytes around the transport's part

	std::uint32_t transport = 0;
	bool writable = false; ///< the passive side receives
	bool reusable = false;
	std::uint64_t size = 0;
	spi::token token = 0;
	std::uint64_t key = 0;
	net::address machine;
	std::span<const std::byte> part; ///< the transport's; a view
};

std::uint32_t transport_id(std::string_view name);

/// @return number of bytes written to `out`, which has room for fixed + part.size().
std::size_t encode(const descriptor &, std::byte *out);

/// Fixes the checksum of bytes that are long enough to have one; for tests.
void seal(std::span<std::byte> text);

/// `out.part` is a view into `text`. @return 0 or -EINVAL.
[[nodiscard]] int decode(std::span<const std::byte> text, descriptor &out);

} // namespace coop::net::core
