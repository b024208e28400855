// SPDX-License-Identifier: MIT
// wire.hpp - what two machines say to each other over a link.
//
// Everything is a send with immediate; the immediate is its kind. The side that gives bytes and
// the side that takes them ("giver", "taker") each name the transfer by a number of their own:
// the giver by its operation's token, the taker by that of its intake.
//
//   giver                                  taker
//   message  bytes                     ->
//   offer    a message's segments      ->  pulls them                  a message above eager=
//   put      segments, or the bytes    ->  pulls them, or copies       active_bulk_send
//                                      <-  get                         active_bulk_recv
//   lend     segments                  ->  pulls them
//                                      <-  done                        ends each of the four
//
// Where no process may read the other's memory, offer and put have no segments: the taker answers
// `want`, and the bytes follow in `data`. A small get is answered by `data` as well. `refuse` ends
// an intake instead of its bytes. A passive operation serves one intake at a time, and refuses
// others with -ENOENT. A reusable one serves any number: to it go put_at and get_at, whose head is
// followed by the offset of the range, 8 bytes; a machine that does not know them makes no reusable
// descriptor.
//
// Segments are lent until the giver changes a word of its board (board.hpp). The taker looks at
// that word after each pull: if it has changed, the bytes count for nothing. So a giver ends an
// operation at once, also one whose taker is stopped.
//
// By TCP no process reads another's memory, and the bytes that are asked for follow in placements
// of the stream (userland/ntrdma/stream/), not in `data`. A message of up to 1 MiB needs no offer:
// it goes as such a frame to a peer that takes it. If the peer has no place for it, it treats the
// head as an offer and answers `want` later.
//
// Numbers are little-endian; segments, which stay within a host, in its byte order. A receiver
// copies a head once and validates the copy.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace coop::net::nt
{

/// A number as it is on the wire.
template <typename T> struct little {
	T raw = 0;

	static constexpr T swapped(T v)
	{
		if constexpr (std::endian::native == std::endian::little)
			return v;
		else if constexpr (sizeof(T) == 8)
			return static_cast<T>(__builtin_bswap64(static_cast<std::uint64_t>(v)));
		else
			return static_cast<T>(__builtin_bswap32(static_cast<std::uint32_t>(v)));
	}
	constexpr operator T() const { return swapped(raw); }
	constexpr little &operator=(T v)
	{
		raw = swapped(v);
		return *this;
	}
};

enum class kind : std::uint32_t {
	message = 1,
	offer,
	put,
	get,
	lend,
	want,
	data,
	done,
	refuse,
	put_at,
	get_at,
};

/// At the start of everything but a message.
struct head {
	little<std::uint64_t> to;     ///< the receiver's number; put, get: the passive operation
	little<std::uint64_t> from;   ///< the sender's number; in `data` of old peers 0
	little<std::uint64_t> key;    ///< put, get: of the passive operation
	little<std::uint64_t> length; ///< bytes of the transfer
	little<std::uint64_t> value; ///< data: offset; else of the word while the segments are lent
	little<std::uint32_t> word;  ///< on the sender's board
	little<std::uint32_t> segments; ///< rdma::wire_segments behind the head
	little<std::int32_t> status;    ///< done, refuse: 0 or -errno
	little<std::uint32_t> zero;
};
static_assert(sizeof(head) == 56);

/// put_at, get_at.
struct ranged_head {
	nt::head head;
	little<std::uint64_t> offset;
};
static_assert(sizeof(ranged_head) == 64);

/// Most segments of a buffer; with the head they fit into any receive, and behind a ranged one into
/// those of a machine that knows it.
constexpr std::uint32_t segments_most = 512;
constexpr std::size_t control_most = sizeof(head) + segments_most * 16;
constexpr std::size_t ranged_most = sizeof(ranged_head) + segments_most * 16;

inline bool read_head(std::span<const std::byte> text, head &out)
{
	if (text.size() < sizeof(out))
		return false;
	std::memcpy(&out, text.data(), sizeof(out));
	return out.status <= 0 && out.status > -4096;
}

} // namespace coop::net::nt
