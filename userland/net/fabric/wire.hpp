// SPDX-License-Identifier: MIT
// wire.hpp - what peers of this transport say to each other.
//
// Everything sent carries a word (libfabric's remote CQ data), so that the payload of a small
// message is the message and nothing else:
//
//   bits 0-1    kind
//   bits 2-9    credits given back: messages consumed since the last word
//   bits 10-31  link: the number the receiver gave to the sender of this word
//   bits 32-63  cookie: which the receiver gave along with it
//
// `landed` has the landing's id in bits 2-31 in place of credits and link. Providers whose
// words have 32 bits have no cookie; there the receiver relies on the fabric.
//
// Larger messages and bulk data are written by RMA into memory that the other side has granted
// for this one operation, under keys that are new every time. L lands, W writes:
//
//   a message       W offer, L grant, W data and landed
//   active send     W put,   L grant, W data and landed, L done
//   active receive  L get,            W data and landed, L done
//
// Where L can read the memory of W's process by itself (shm) nobody is granted anything. W lends:
// it says where the data lies, and where its pledge lies, a number that is there for as long as
// the data is. L reads the data and then the pledge; if that is still what W said, all of the data
// was good. So each process writes to its own memory alone, and either can end at once, by itself,
// even if the other one stands still.
//
//   a message       W offer, L reads, L done
//   active send     W put,   L reads, L done
//   active receive  L get without regions, W lend, L reads, L done
//
// Either side may say `done` with an error instead of what comes next. `cancel` asks for an
// end: it is answered by landed or by done, whichever is on its way. Integers are
// little-endian. Whatever is decoded here comes from anybody.
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

	/// The part that is the same for everything sent on a link.
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

/// Memory that the receiver of a grant or get may write; of an offer, put or lend may read. The
/// first of those is the pledge, and its key what is to be read there.
struct region {
	std::uint64_t address, length, key;
};

struct control {
	enum class verb : std::uint8_t {
		offer,    ///< W: a message of `length` bytes
		put,      ///< W: `length` bytes for the operation `token`
		get,      ///< L: `length` bytes of the operation `token` into `regions`
		grant,    ///< L: write into `regions`
		landed,   ///< W: all is written; where the word cannot say it
		done,     ///< either: over, with `status`
		cancel,   ///< either: wants to end
		credit,   ///< the word gives credits back, or nothing
		bye,      ///< nothing new will come; answer with farewell. `length` is not 0: the
			  ///< link has been idle, and what is under way may end first
		farewell, ///< nothing more will come from here either
		lend,     ///< W: read from `regions`, for the get `peer`
	};
	static constexpr std::uint8_t verbs = 11;
	static constexpr std::size_t segments_most = 128;
	static constexpr std::size_t regions_most = segments_most + 1; ///< and a pledge
	static constexpr std::size_t fixed = 40;
	static constexpr std::size_t size_most = fixed + regions_most * 24;

	control::verb verb = verb::credit;
	std::uint32_t id = 0;             ///< of the sender's side; 0: none
	std::uint32_t peer = 0;           ///< of the receiver's side; 0: not known yet
	std::int32_t status = 0;          ///< 0 or -errno
	std::uint64_t length = 0;         ///< bytes
	std::uint64_t token = 0, key = 0; ///< of the passive operation, out of its descriptor
	std::size_t count = 0;            ///< of regions
	std::array<region, regions_most> regions;
};

/// @return bytes written; `out` has room for control::size_most.
std::size_t encode(const control &, std::byte *out);
/// @return false: malformed.
[[nodiscard]] bool decode(std::span<const std::byte>, control &out);

/// An address in short, to tell a wrong one from the right one. Part of the protocol.
std::uint64_t digest(const address &);

/// What both sides say when a link is made. rdma_cm has 55 bytes for it.
struct hello {
	static constexpr std::size_t size = 53;

	address from;
	std::uint64_t to = 0;               ///< digest of whom it is meant for
	std::uint32_t link = 0, cookie = 0; ///< for words to the sender of this
	std::uint16_t window = 0;           ///< messages that may be on their way to it
	std::uint32_t eager = 0;            ///< bytes of the largest message without an offer
};

std::array<std::byte, hello::size> encode(const hello &);
/// @return false: malformed, or of another version.
[[nodiscard]] bool decode(std::span<const std::byte>, hello &out);

} // namespace coop::net::fabric
