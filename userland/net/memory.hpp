// SPDX-License-Identifier: MIT
// memory.hpp - the memory of an operation as transports see it: segments and a key.
//
// Segment lists of the two sides of a transfer differ, and a list may be long, so whoever
// walks one in order keeps a cursor instead of searching from the start each time.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "coop/net/buffer.hpp"

namespace coop::net::spi
{

/// Registered memory. Views: the buffer that they are of outlives every operation.
struct memory {
	std::span<const segment> segments;
	std::size_t size = 0;         ///< bytes of all segments
	void *registration = nullptr; ///< what transport_domain::register_memory() made
};

/// A place in a segment list. next() gives contiguous pieces, in order.
class cursor
{
public:
	explicit cursor(const memory &m, std::size_t offset = 0) : segments_(m.segments)
	{
		while (at_ < segments_.size() && offset >= segments_[at_].length)
			offset -= segments_[at_++].length;
		into_ = offset;
	}

	/// The longest contiguous piece from here of at most `most` bytes; steps behind it.
	/// Empty when `most` is 0 or the list has ended.
	std::span<std::byte> next(std::size_t most)
	{
		if (at_ == segments_.size() || most == 0)
			return {};
		const segment &s = segments_[at_];
		std::byte *base = static_cast<std::byte *>(s.base) + into_;
		const std::size_t n = std::min(most, s.length - into_);
		into_ += n;
		if (into_ == s.length) {
			at_++;
			into_ = 0;
		}
		return {base, n};
	}
	/// Index of the segment that next() will give a piece of, and the bytes into it.
	std::size_t index() const { return at_; }
	std::size_t into() const { return into_; }

private:
	std::span<const segment> segments_;
	std::size_t at_ = 0, into_ = 0;
};

/// Copies `length` bytes into the memory from `offset` on; what does not fit is left out.
inline void scatter(const memory &to, std::size_t offset, const void *from, std::size_t length)
{
	cursor c(to, offset);
	const std::byte *p = static_cast<const std::byte *>(from);
	for (auto piece = c.next(length); !piece.empty(); piece = c.next(length)) {
		std::memcpy(piece.data(), p, piece.size());
		p += piece.size();
		length -= piece.size();
	}
}

/// Copies `length` bytes out of the memory from `offset` on; as many as there are.
inline void gather(const memory &from, std::size_t offset, void *to, std::size_t length)
{
	cursor c(from, offset);
	std::byte *p = static_cast<std::byte *>(to);
	for (auto piece = c.next(length); !piece.empty(); piece = c.next(length)) {
		std::memcpy(p, piece.data(), piece.size());
		p += piece.size();
		length -= piece.size();
	}
}

} // namespace coop::net::spi
