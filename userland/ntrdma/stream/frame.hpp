// SPDX-License-Identifier: MIT
// frame.hpp - what travels on the byte stream between two queue pairs, byte by byte.
//
// Each side has a copy of both halves. A frame says what changed in the sender's half since the
// one before, or brings bytes straight into memory that the receiver has set aside. All numbers
// are little-endian. A receiver checks every field against what it has told the sender before it
// stores a byte; what no peer of good faith sends ends the link.
//
//	update, 44 bytes			placement, 24 bytes
//	 0  1  kind, 1				 0  1  kind, 2
//	 1  1  the link's word			 1  3  zero
//	 2  2  WQEs				 4  4  bytes that follow
//	 4  2  CQEs				 8  8  number of the transfer, the receiver's
//	 6  1  1: the last CQE is an error	16  8  offset of the bytes in it
//	 7  1  zero
//	 8  4  bytes of the WQEs and CQEs
//	12  4  bytes for the request stream
//	16  4  bytes for the answer stream
//	20  4  bytes taken from the receiver's request stream
//	24  4  the same of its answer stream
//	28  4  receives posted, all told
//	32  4  ping
//	36  4  pong
//	40  4  zero
//
// A message has the head of a placement, with kind 3, the sender's number and offset 0. The
// receiver has not asked for it, and drops the bytes if it has no place for them.
//
// Behind an update come its WQEs, its CQEs, and the bytes for both streams. A WQE has 40 bytes and,
// if its carriage is `within`, those of its message; a CQE has 12:
//
//	 0  1  operation			 0  4  result
//	 1  1  flags				 4  8  value
//	 2  1  carriage
//	 3  1  zero
//	 4  4  immediate, as the application gave it
//	 8  4  length
//	12  4  rkey
//	16  8  remote address
//	24  8  compare, or add
//	32  8  swap
//
// An update takes effect as a whole, once its last byte has come. The CQEs of reads therefore come
// no earlier than their bytes, and a word other than `open` comes last of all.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "userland/ntrdma/core/half.hpp"
#include "userland/ntrdma/core/types.hpp"

namespace coop::ntrdma
{

constexpr std::uint8_t update_kind = 1, placement_kind = 2, message_kind = 3;
constexpr std::size_t update_bytes = 44, placement_bytes = 24;
constexpr std::size_t wqe_front = 40, cqe_bytes = 12; // on the wire

/// The most of a frame. Small enough that the receiver works on one while the next is on its way.
constexpr std::uint32_t frame_wqes = 64, frame_cqes = 256;
constexpr std::uint32_t frame_stream = 64u << 10;
constexpr std::uint32_t frame_entries =
	frame_wqes * (wqe_front + body_bytes) + frame_cqes * cqe_bytes;
constexpr std::uint32_t placement_most = 1u << 20;

/// Writes numbers one after another.
class writer
{
public:
	explicit writer(std::uint8_t *at) : at_{at} {}
	template <typename T> writer &put(T v)
	{
		for (std::size_t i = 0; i < sizeof(T); i++)
			at_[i] = static_cast<std::uint8_t>(v >> 8 * i);
		at_ += sizeof(T);
		return *this;
	}
	writer &raw(const void *from, std::size_t n)
	{
		std::memcpy(at_, from, n);
		at_ += n;
		return *this;
	}
	std::uint8_t *at() const { return at_; }

private:
	std::uint8_t *at_;
};

/// Reads numbers one after another; its user knows that they are there.
class reader
{
public:
	explicit reader(const std::uint8_t *at) : at_{at} {}
	template <typename T> T get()
	{
		T v = 0;
		for (std::size_t i = 0; i < sizeof(T); i++)
			v = static_cast<T>(v | static_cast<T>(at_[i]) << 8 * i);
		at_ += sizeof(T);
		return v;
	}
	reader &raw(void *to, std::size_t n)
	{
		std::memcpy(to, at_, n);
		at_ += n;
		return *this;
	}
	const std::uint8_t *at() const { return at_; }

private:
	const std::uint8_t *at_;
};

struct update {
	std::uint8_t word = 0;
	std::uint16_t wqes = 0, cqes = 0;
	bool refused = false;
	std::uint32_t entries = 0; // bytes
	std::uint32_t stream = 0, answer = 0;
	std::uint32_t stream_taken = 0, answer_taken = 0;
	std::uint32_t recv_post = 0;
	std::uint32_t ping = 0, pong = 0;
};

struct placement {
	std::uint8_t kind = placement_kind; ///< or message_kind
	std::uint32_t length = 0;
	std::uint64_t number = 0, offset = 0;
};

/// True if the request has operands, and so no bytes.
inline bool has_operands(const wqe &w)
{
	return w.op > static_cast<std::uint8_t>(operation::read);
}

void put(std::uint8_t *to, const update &);
void put(std::uint8_t *to, const placement &);
/// False if the kind or a field that has to be zero is wrong.
[[nodiscard]] bool get(const std::uint8_t *from, update &);
[[nodiscard]] bool get(const std::uint8_t *from, placement &);

} // namespace coop::ntrdma
