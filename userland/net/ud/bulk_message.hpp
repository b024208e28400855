// SPDX-License-Identifier: MIT
// bulk_message.hpp - what two machines tell each other about bulk operations.
//
// On the wire it is little-endian and 64 bytes long:
//
//   0 kind   1 outcome   2 zero (48)   8 token, 16 key: the receiver's operation
//   24 token, 32 key: the sender's   40 length   48 offset   56 zero
//
// PUT_AT goes only to a machine that has made a reusable descriptor, so it knows it.
#pragma once

#include <cstdint>
#include <cstring>

#include "userland/net/transport.hpp"

namespace coop::net::ud
{

enum class bulk_kind : std::uint8_t {
	put = 1,    ///< read my operation into yours
	done = 2,   ///< the outcome
	ask = 3,    ///< you have begun to read my operation: what has become of that?
	put_at = 4, ///< as put, into your reusable operation from `offset` on
};

enum class outcome : std::uint8_t {
	good = 0,
	gone = 1,   ///< there is no such operation, or the reader knows of no such read
	failed = 2, ///< the reader has given up
};

struct bulk_message {
	static constexpr std::size_t bytes = 64;

	bulk_kind kind;
	outcome result = outcome::good;
	spi::token token = 0;
	std::uint64_t key = 0;
	spi::token sender = 0;
	std::uint64_t sender_key = 0;
	std::uint64_t length = 0;
	std::uint64_t offset = 0;

	void write(std::uint8_t *p) const
	{
		std::memset(p, 0, bytes);
		p[0] = static_cast<std::uint8_t>(kind);
		p[1] = static_cast<std::uint8_t>(result);
		const std::uint64_t numbers[] = {token, key, sender, sender_key, length, offset};
		for (unsigned i = 0; i < 48; i++)
			p[8 + i] = static_cast<std::uint8_t>(numbers[i / 8] >> i % 8 * 8);
	}
	/// The kind alone, of a text that has no place yet.
	static bulk_kind kind_of(const std::byte *p) { return static_cast<bulk_kind>(*p); }
	static bulk_message read(const std::uint8_t *p)
	{
		std::uint64_t numbers[6] = {};
		for (unsigned i = 0; i < 48; i++)
			numbers[i / 8] |= std::uint64_t(p[8 + i]) << i % 8 * 8;
		return {static_cast<bulk_kind>(p[0]),
			static_cast<outcome>(p[1]),
			numbers[0],
			numbers[1],
			numbers[2],
			numbers[3],
			numbers[4],
			numbers[5]};
	}
};

} // namespace coop::net::ud
