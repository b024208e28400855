// SPDX-License-Identifier: MIT
// decoder.hpp - from the bytes of a peer to the copy of its half.
//
// The peer may send anything. Each field is checked before it has an effect: entries and bytes must
// fit where the peer was told that there is room, and it can only have taken what it was sent. So
// the copy never holds what the peer's half could not, and the core judges it as it does a shared
// one.
//
// No input or output: the owner receives into the places that room() names, which for long runs of
// bytes are their destinations, and says how much came.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "userland/ntrdma/core/port.hpp"
#include "userland/ntrdma/stream/encoder.hpp"
#include "userland/ntrdma/stream/frame.hpp"

namespace coop::ntrdma
{

/// Who knows where the bytes of placements go.
class placements
{
public:
	virtual ~placements() = default;
	/// Places for the first of `length` bytes at `offset` of a transfer; 0 pieces: they are not
	/// wanted any more, so they are dropped. Nothing: no peer of good faith sends that. Used
	/// before any other call of the owner.
	virtual std::optional<std::size_t> places(std::uint64_t number, std::uint64_t offset,
						  std::uint64_t length, std::span<place> out) = 0;
	/// A message of `length` bytes follows; `number` is the peer's. The number of the transfer
	/// that its bytes belong to, for which places() is asked next. Nothing: no peer of good
	/// faith sends it.
	virtual std::optional<std::uint64_t> message(std::uint64_t number,
						     std::uint32_t length) = 0;
	/// So many bytes of them are there.
	virtual void placed(std::uint64_t number, std::uint64_t bytes) = 0;
};

class decoder
{
public:
	/// `in`: the copy of the peer's half. `own`: what the peer was told. `known`: may be null;
	/// then placements break the protocol. All outlive it.
	decoder(half &in, const encoder &own, placements *known) : in_{in}, own_{own}, known_{known}
	{
	}
	decoder(const decoder &) = delete;
	decoder &operator=(const decoder &) = delete;

	/// Where the next bytes go; `out` has room for 10. 0: the peer broke the protocol.
	std::size_t room(std::span<place> out);
	/// So many came, at most as many as room() named. False: the peer broke the protocol.
	[[nodiscard]] bool arrived(std::size_t bytes);

private:
	enum class stage : std::uint8_t { head, entries, stream, answer, placing, lie };

	std::size_t held() const { return end_ - begin_; }
	const std::uint8_t *first() const { return held_.data() + begin_; }
	std::size_t targets(std::span<place> out);
	void moved(std::uint64_t bytes);
	stage parse_head();
	stage parse_entries();
	stage fill();
	stage take_from_held();
	bool believable(const update &) const;
	void apply();

	half &in_;
	const encoder &own_;
	placements *known_;
	indices seen_; // the peer's, all told
	std::uint32_t bell_ = 0;

	stage stage_ = stage::head;
	update update_;
	placement placement_;
	std::uint64_t left_ = 0;  // bytes of the current run
	std::uint64_t named_ = 0; // bytes of it in the places of the last room()
	bool after_long_ = false; // what comes next is likely a head alone
	std::array<std::uint8_t, 32u << 10> held_;
	std::size_t begin_ = 0, end_ = 0;
};
static_assert(update_bytes + frame_entries < 16u << 10);

} // namespace coop::ntrdma
