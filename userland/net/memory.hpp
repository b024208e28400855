// SPDX-License-Identifier: MIT
// memory.hpp - the memory of an operation as transports see it: segments and a key.
//
// The segment lists of the two sides of a transfer differ, and a list may be long. So code that
// walks a list in order keeps a cursor instead of searching from the start each time.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "coop/net/buffer.hpp"

namespace coop::net::spi
{

/// Registered memory. A view: the buffer outlives every operation on it.
struct memory {
	std::span<const segment> segments;
	std::size_t size = 0;         ///< made by transport_domain::register_memory()
	void *registration = nullptr; ///< what transport_domain::register_memory() made
};

/// A position in a segment list. next() returns contiguous pieces, in order.
class cursor
{
public:
	explicit cursor(const memory &m, std::size_t offset = 0) : segments_(m.segments)
	{
		while (at_ < segments_.size() && offset >= segments_[at_].length)
			offset -= segments_[at_++].length;
		into_ = offset;
	}

	/// Returns the longest contiguous piece at the position, at most `most` bytes, and advances
	/// past it. Empty when `most` is 0 or the list has ended.
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
	/// Index of the segment of the next piece, and the offset in it.
	std::size_t index() const { return at_; }
	std::size_t into() const { return into_; }

private:
	std::span<const segment> segments_;
	std::size_t at_ = 0, into_ = 0;
};

/// Copies `length` bytes into the memory at `offset`; drops what does not fit.
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

/// Copies `length` bytes out of the memory at `offset`, or as many as there are.
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

/// Copies `length` bytes from one memory to the other, from these offsets on, piece by piece.
inline void copy(const memory &to, std::size_t offset, const memory &from, std::size_t from_offset,
		 std::size_t length)
{
	cursor in(from, from_offset), out(to, offset);
	for (auto piece = in.next(length); !piece.empty(); piece = in.next(length)) {
		length -= piece.size();
		while (!piece.empty()) {
			const auto into = out.next(piece.size());
			if (into.empty())
				return;
			std::memcpy(into.data(), piece.data(), into.size());
			piece = piece.subspan(into.size());
		}
	}
}

} // namespace coop::net::spi
