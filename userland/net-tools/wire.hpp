// SPDX-License-Identifier: MIT
// wire.hpp - what coopnet says to `coopnet serve`.
//
// Every message begins with a head of 8 bytes, so that a message of 8 bytes is a head alone
// and the smallest ping is as small as that of other programs. Little-endian. A server drops
// what it does not understand and counts it; nothing that a client says makes it allocate
// more than its options allow.
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
	mirror,   ///< the same, and the bytes behind the head come back
	count,    ///< only counted
	ask,      ///< answer with `figures`
	fetch,    ///< offer: read what the descriptor stands for
	fill,     ///< offer: write to what the descriptor stands for
	reply = 0x81,
	figures,
	failed, ///< a `fetch` or `fill` that came to nothing: body is the status
};

struct head {
	static constexpr std::uint8_t magic = 0xc7;
	static constexpr std::size_t size = 8;

	net_tools::command command;
	std::uint16_t run;    ///< chosen by the client; counts are kept by it
	std::uint32_t number; ///< comes back in the answer

	void put(std::byte *at) const
	{
		at[0] = std::byte{magic};
		at[1] = static_cast<std::byte>(command);
		const std::uint16_t r = htole16(run);
		const std::uint32_t n = htole32(number);
		std::memcpy(at + 2, &r, sizeof(r));
		std::memcpy(at + 4, &n, sizeof(n));
	}
	/// @return false: not a message of ours.
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

/// Body of `figures`: what the server's process has done so far, and what it takes.
struct figures {
	static constexpr std::size_t size = head::size + 40;

	std::uint64_t counted;     ///< `count` messages of this run, modulo 2^32
	std::uint64_t cpu_us;      ///< processor time, user and system
	std::uint64_t resident;    ///< bytes
	std::uint64_t max_message; ///< bytes, longest that its transport was told to take
	std::uint64_t max_bulk;    ///< bytes, of a `fetch` or `fill`

	void put(std::byte *message) const
	{
		put64(message + head::size, counted);
		put64(message + head::size + 8, cpu_us);
		put64(message + head::size + 16, resident);
		put64(message + head::size + 24, max_message);
		put64(message + head::size + 32, max_bulk);
	}
	static bool get(std::span<const std::byte> m, figures &out)
	{
		if (m.size() != size)
			return false;
		const std::byte *b = m.data() + head::size;
		out = {get64(b), get64(b + 8), get64(b + 16), get64(b + 24), get64(b + 32)};
		return true;
	}
};

/// `fetch` and `fill`: a length, and the descriptor up to the end of the message.
constexpr std::size_t offer_size = head::size + 8;

/// `failed`: a negative errno value.
constexpr std::size_t failed_size = head::size + 8;

} // namespace coop::net_tools
