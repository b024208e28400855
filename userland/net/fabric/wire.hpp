// SPDX-License-Identifier: MIT
// wire.hpp - the messages between peers of this transport.
//
// Everything sent carries a word (libfabric's remote CQ data), so the payload of a small
// message is the message and nothing else:
//
//   bits 0-1    kind
//   bits 2-9    credits returned: messages consumed since the last word
//   bits 10-31  link: the number that the receiver gave to the sender of this word
//   bits 32-63  cookie: given by the receiver along with it
//
// In a `landed` word, bits 2-31 are the id of the landing instead of credits and link. Providers
// whose words have 32 bits have no cookie; there the receiver trusts the fabric.
//
// Larger messages and bulk data are moved by RMA, into or out of memory that the other side has
// granted for this one operation, under fresh keys each time. L lands, W has the data:
//
//   a message       W offer, L grant, W writes and landed
//   active send     W put,   L grant, W writes and landed, L done
//   active receive  L get,            W writes and landed, L done
//
// Where the provider of W lets peers read (hello::lends), and that of L can:
//
//   active receive  L get without regions, W lend, L reads, L done
//
// A reusable operation is put and got by put_at and get_at, which name the offset of a range. They
// go only to a machine that made a reusable descriptor, so it knows them.
//
// Either side may send `done` with an error instead of the next step. `cancel` asks for an end: the
// answer is landed or done, whichever is on its way. Integers are little-endian. Input to decode()
// is untrusted.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "coop/net/address.hpp"

namespace coop::net::fabric
{

enum class kind : std::uint8_t { message, control, landed };

struct word {
	static constexpr std::uint32_t links = 1u << 22;
	static constexpr unsigned credits_most = 255;
	static constexpr std::uint32_t id_mask = (1u << 30) - 1;

	/// The part that is constant on a link.
	static std::uint64_t base(std::uint32_t link, std::uint32_t cookie)
	{
		return static_cast<std::uint64_t>(cookie) << 32 | link << 10;
	}
	static std::uint64_t with(std::uint64_t base, fabric::kind k, unsigned credits)
	{
		return base | credits << 2 | static_cast<unsigned>(k);
	}
	static std::uint64_t landed(std::uint64_t base, std::uint32_t id)
	{
		return (base & ~std::uint64_t(0xffffffff)) | id << 2 |
		       static_cast<unsigned>(fabric::kind::landed);
	}
	static unsigned kind(std::uint64_t w) { return w & 3; }
	static unsigned credits(std::uint64_t w) { return w >> 2 & 0xff; }
	static std::uint32_t link(std::uint64_t w) { return w >> 10 & (links - 1); }
	static std::uint32_t id(std::uint64_t w) { return w >> 2 & id_mask; }
	static std::uint32_t cookie(std::uint64_t w) { return w >> 32; }
};

/// Memory that the receiver of a grant or get may write, or that the receiver of a lend may read.
struct region {
	std::uint64_t address, length, key;
};

struct control {
	enum class verb : std::uint8_t {
		offer,    ///< W: a message of `length` bytes
		put,      ///< W: `length` bytes for the operation `token`
		get,      ///< L: `length` bytes of the operation `token` into `regions`; none: lend
		grant,    ///< L: write into `regions`
		landed,   ///< W: all is written; used if the word cannot say it
		done,     ///< either: ended, with `status`
		cancel,   ///< either: asks for the end
		credit,   ///< no content: its word returns credits, or nothing
		bye,      ///< nothing new will follow; answer with farewell. `length` not 0: the
			  ///< link has been idle, and operations under way may end first
		farewell, ///< nothing will follow from this side either
		lend,     ///< W: read from `regions`, for the get `peer`
		put_at,   ///< W: put, from `offset` on
		get_at,   ///< L: get, from `offset` on
	};
	static constexpr std::uint8_t verbs = 13;
	static constexpr std::size_t segments_most = 128;
	static constexpr std::size_t regions_most = segments_most;
	static constexpr std::size_t fixed = 40;
	static constexpr std::size_t size_most = fixed + 8 + regions_most * 24;

	bool ranged() const { return verb == verb::put_at || verb == verb::get_at; }

	control::verb verb = verb::credit;
	std::uint32_t id = 0;             ///< of the sender's work; 0: none
	std::uint32_t peer = 0;           ///< of the receiver's work; 0: not known yet
	std::int32_t status = 0;          ///< 0 or -errno
	std::uint64_t length = 0;         ///< bytes
	std::uint64_t token = 0, key = 0; ///< of the passive operation, from its descriptor
	std::uint64_t offset = 0;         ///< if ranged(): in its memory
	std::size_t count = 0;            ///< number of regions
	std::array<region, regions_most> regions;
};

/// @return number of bytes written; `out` has room for control::size_most.
std::size_t encode(const control &, std::byte *out);
/// @return false: malformed.
[[nodiscard]] bool decode(std::span<const std::byte>, control &out);

/// A short hash of an address, to recognise a wrong one. Part of the protocol.
std::uint64_t digest(const address &);

/// The greeting of both sides on a new link. rdma_cm has 55 bytes for it. Earlier releases send all
/// but the last byte, and ignore that one.
struct hello {
	static constexpr std::size_t size = 54, least = 53;

	address from;
	std::uint64_t to = 0;               ///< digest of the intended recipient
	std::uint32_t link = 0, cookie = 0; ///< for words to the sender of this greeting
	std::uint16_t window = 0; ///< unconsumed messages that the sender of this greeting accepts
	std::uint32_t eager = 0;  ///< largest message without an offer, in bytes
	bool lends = false;       ///< the sender of this greeting answers a get without regions
};

std::array<std::byte, hello::size> encode(const hello &);
/// @return false: malformed, or of another version.
[[nodiscard]] bool decode(std::span<const std::byte>, hello &out);

} // namespace coop::net::fabric
