// SPDX-License-Identifier: MIT
// pipe.hpp - two queue pairs that are joined by bytes in flight, as by a TCP connection.
#pragma once

#include <algorithm>
#include <deque>
#include <random>

#include "tests/unit/ntrdma/sides.hpp"
#include "userland/ntrdma/stream/decoder.hpp"
#include "userland/ntrdma/stream/encoder.hpp"

namespace coop::ntrdma::test
{

/// Places of one transfer, number 5, that is expected to be written from its start on.
struct one_transfer final : placements {
	std::optional<std::size_t> places(std::uint64_t number, std::uint64_t offset,
					  std::uint64_t length, std::span<place> out) override
	{
		if (number != 5)
			return 0;
		if (offset != got || length > memory.size() - got)
			return std::nullopt;
		// In pieces, as the segments of a buffer are.
		std::size_t n = 0;
		for (std::uint64_t at = offset; length && n < out.size();) {
			std::uint64_t part = std::min<std::uint64_t>(length, 1000);
			out[n++] = {memory.data() + at, part};
			at += part;
			length -= part;
		}
		return n;
	}
	// The message with the sender's number 15 is this transfer; 16 would be a lie; there is no
	// place for others.
	std::optional<std::uint64_t> message(std::uint64_t number, std::uint32_t length) override
	{
		if (number == 16)
			return std::nullopt;
		announced = length;
		return number == 15 ? 5 : 0;
	}
	void placed(std::uint64_t number, std::uint64_t bytes) override
	{
		got += number == 5 ? bytes : 0;
	}
	std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(100000);
	std::uint64_t got = 0;
	std::uint32_t announced = 0; // bytes of the last message
};

/// A side's end: its copies of both halves, and bytes on their way to it.
struct pipe_end final : port {
	pipe_end() : halves{std::make_unique<half[]>(2)}, from{halves[0]}
	{
		std::memset(static_cast<void *>(halves.get()), 0, 2 * sizeof(half));
	}
	half &out() override { return halves[0]; }
	const half &in() const override { return halves[1]; }
	bool can_pull() const override { return false; }
	int pull(std::span<const wire_segment>, std::span<const place>) override { return -1; }
	void ring() override {}
	void ended() override { ends++; }

	/// Up to `most` bytes leave for `peer`. False if there are none.
	bool send(pipe_end &peer, std::size_t most)
	{
		std::array<piece, 3> out;
		std::size_t n = from.next(out), total = 0;
		for (std::size_t i = 0; i < n && total < most; i++) {
			std::size_t part = std::min(out[i].length, most - total);
			peer.flying.insert(peer.flying.end(), out[i].at, out[i].at + part);
			total += part;
		}
		from.sent(total);
		sent += total;
		return total != 0;
	}
	/// Up to `most` bytes arrive. False if there are none, or the peer broke the protocol.
	bool receive(std::size_t most)
	{
		std::array<place, 10> room;
		std::size_t n = flying.empty() || lied ? 0 : into.room(room), total = 0;
		lied |= !flying.empty() && !n;
		for (std::size_t i = 0; i < n && total < most; i++) {
			auto part =
				std::min({room[i].length, static_cast<std::uint64_t>(most - total),
					  static_cast<std::uint64_t>(flying.size())});
			auto end = flying.begin() + static_cast<std::ptrdiff_t>(part);
			std::copy(flying.begin(), end, room[i].at);
			flying.erase(flying.begin(), end);
			total += part;
		}
		if (total && !into.arrived(total))
			lied = true;
		return total != 0 && !lied;
	}

	std::unique_ptr<half[]> halves;
	one_transfer transfer;
	encoder from;
	decoder into{halves[1], from, &transfer};
	std::deque<std::uint8_t> flying;
	std::size_t sent = 0;
	unsigned ends = 0;
	bool lied = false;
};

/// Two sides and the pipe between them; as `joined`.
struct piped {
	explicit piped(bool = false, pair_options o = depth(16)) : a{2, 1, o}, b{1, 2, o}
	{
		a.pair->attach(pa);
		b.pair->attach(pb);
	}
	/// Moves some bytes, in either direction.
	void move(std::mt19937 &rng)
	{
		constexpr std::size_t most[] = {1, 7, 50, 3000, 100000};
		pipe_end &from = rng() % 2 ? pa : pb, &to = &from == &pa ? pb : pa;
		from.send(to, most[rng() % 5]);
		to.receive(most[rng() % 5]);
	}
	/// So many bytes at most leave each end, and arrive. False if there are none.
	bool carry(std::size_t from_a, std::size_t others)
	{
		bool moved = pa.send(pb, from_a);
		moved |= pb.send(pa, others);
		moved |= pa.receive(others);
		moved |= pb.receive(others);
		return moved;
	}
	void settle()
	{
		for (bool found = true; found;) {
			found = a.pair->progress();
			found |= b.pair->progress();
			found |= carry(SIZE_MAX, SIZE_MAX);
		}
	}

	pipe_end pa, pb; // they outlive the queue pairs
	side a, b;
};

} // namespace coop::ntrdma::test
