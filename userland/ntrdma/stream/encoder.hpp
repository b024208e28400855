// SPDX-License-Identifier: MIT
// encoder.hpp - from the own half to the bytes that a peer is sent.
//
// Nothing is queued: the bytes of both streams are sent from the half itself, where they stay until
// the peer has taken them, and the bytes of a placement from the application's memory. Only heads
// and entries are copied, a frame at a time. So what waits for a slow peer is bounded by the half.
//
// No input or output: the owner sends what next() names and says how much of it left.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "userland/ntrdma/core/port.hpp"
#include "userland/ntrdma/stream/frame.hpp"

namespace coop::ntrdma
{

struct piece {
	const std::uint8_t *at;
	std::size_t length;
};

class encoder
{
public:
	/// `own` outlives it.
	explicit encoder(const half &own) : own_{own} {}
	encoder(const encoder &) = delete;
	encoder &operator=(const encoder &) = delete;

	/// The bytes to send next; 0 if there are none. Valid until the next call of another
	/// function, or a change of the half.
	std::size_t next(std::span<piece> out);
	void sent(std::size_t bytes);
	/// True if next() would name something.
	bool waits() const { return at_ < pieces_.size() || placing_ || news(); }

	/// Sends a placement, after what is on its way. `from` has 1 to placement_most bytes and is
	/// quiet once placing() is false. Only while that is false.
	void put_at(std::uint64_t number, std::uint64_t offset, std::span<const piece> from,
		    std::uint64_t owner);
	/// The same of a message; `number` is the sender's.
	void put_message(std::uint64_t number, std::span<const piece> from, std::uint64_t owner);
	bool placing() const { return placing_; }
	bool placing_message() const { return placing_ && placement_.kind == message_kind; }
	/// The owner's memory is its own again when this returns; the rest of its bytes go out from
	/// a copy.
	void withdraw(std::uint64_t owner);

	/// The indices that the peer knows, or will once it has what next() has named so far.
	const indices &told() const { return told_; }

private:
	bool news() const;
	void begin_update();
	void begin_placement();

	const half &own_;
	indices told_;
	std::uint32_t bell_ = 0, pong_ = 0; // as of the last update
	bool more_ = false;                 // the last update left something for the next
	bool placed_last_ = false;

	std::array<std::uint8_t, update_bytes + frame_entries> front_;
	std::vector<piece> pieces_; // of the frame under way
	std::size_t at_ = 0;        // the first that has not left

	bool placing_ = false, placement_begun_ = false;
	std::uint64_t owner_ = 0;
	placement placement_;
	std::vector<piece> from_;
	std::vector<std::uint8_t> copy_; // of a placement whose owner withdrew
};

} // namespace coop::ntrdma
