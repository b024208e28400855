// SPDX-License-Identifier: MIT
// wire.hpp - the messages between coopnet and `coopnet serve` that are measured.
//
// Every message begins with a head of 8 bytes, so a message of 8 bytes is only a head and the
// smallest ping is as small as that of other programs. Little-endian. A server drops and counts
// malformed messages; no message of a client makes it allocate more than its options permit.
//
// What is not measured goes by calls, see questions.hpp. Their messages begin with another byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include <endian.h>

namespace coop::net_tools
{

enum class command : std::uint8_t {
	echo = 1, ///< answer with a `reply` of the same length
	mirror,   ///< the same, with a copy of the bytes after the head
	count,    ///< only counted
	// 4 and 0x82 were a question and its answer, before there were calls.
	fetch = 5, ///< offer: read the memory of the descriptor
	fill,      ///< offer: write the memory of the descriptor
	reply = 0x81,
	failed = 0x83, ///< a `fetch` or `fill` failed; the body is the status
};

struct head {
	static constexpr std::uint8_t magic = 0xc7;
	static constexpr std::size_t size = 8;

	net_tools::command command;
	std::uint16_t run;    ///< chosen by the client; the server counts by it
	std::uint32_t number; ///< copied into the answer

	void put(std::byte *at) const
	{
		at[0] = std::byte{magic};
		at[1] = static_cast<std::byte>(command);
		const std::uint16_t r = htole16(run);
		const std::uint32_t n = htole32(number);
		std::memcpy(at + 2, &r, sizeof(r));
		std::memcpy(at + 4, &n, sizeof(n));
	}
	/// @return false: not a coopnet message.
	static bool get(std::span<const std::byte> from, head &out)
	{
		if (from.size() < size || from[0] != std::byte{magic})
			return false;
		std::uint16_t r;
		std::uint32_t n;
		std::memcpy(&r, from.data() + 2, sizeof(r));
		std::memcpy(&n, from.data() + 4, sizeof(n));
		out = {static_cast<net_tools::command>(from[1]), le16toh(r), le32toh(n)};
		return true;
	}
};

inline void put64(std::byte *at, std::uint64_t v)
{
	v = htole64(v);
	std::memcpy(at, &v, sizeof(v));
}

inline std::uint64_t get64(const std::byte *at)
{
	std::uint64_t v;
	std::memcpy(&v, at, sizeof(v));
	return le64toh(v);
}

/// `fetch` and `fill`: a length, and the descriptor up to the end of the message.
constexpr std::size_t offer_size = head::size + 8;

/// `failed`: a negative errno value.
constexpr std::size_t failed_size = head::size + 8;

} // namespace coop::net_tools
