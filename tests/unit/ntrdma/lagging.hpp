// SPDX-License-Identifier: MIT
// lagging.hpp - two queue pairs that see late what their peer has stored.
//
// A reader looks at the entries first, then at the bell, then at the indices, then at the bytes; a
// writer stores in the opposite order. So what a reader has is the older the earlier it looks at
// it. Here each side has a view of its peer's half, and a step brings a part of it up to date: the
// bytes alone, some indices too, all of them, the bell too, or all. A bell may thus come before the
// entries that it rings for, and the bytes of a message before both. Of the indices, too, one that
// is loaded later is as new as the others or newer: those that are stored first.
#pragma once

#include <random>

#include "tests/unit/ntrdma/sides.hpp"

namespace coop::ntrdma::test
{

/// What one side sees of the other's half.
class late_view
{
public:
	explicit late_view(const half &of) : of_{of}, seen_{std::make_unique<half>()}
	{
		std::memset(static_cast<void *>(seen_.get()), 0, sizeof(half));
	}
	half &seen() { return *seen_; }

	/// `parts`: 1, bytes; 2, `some` of the indices too, all by default; 3, the bell too; 4,
	/// everything.
	void move(unsigned parts, std::size_t some = SIZE_MAX)
	{
		half &to = *seen_;
		std::memcpy(to.cqes, of_.cqes, sizeof(to.cqes));
		bytes(of_.stream, to.stream, stream_, of_.stream_prod.load());
		bytes(of_.answer, to.answer, answer_, of_.answer_prod.load());
		if (parts < 2)
			return;
		for (std::size_t i = 0; i < std::min(some, indices_stored); i++)
			stored[i](of_, to);
		copy<&half::recv_post>(of_, to);
		copy<&half::streams>(of_, to);
		copy<&half::ping>(of_, to);
		copy<&half::pong>(of_, to);
		if (parts < 3)
			return;
		copy<&half::word>(of_, to);
		copy<&half::bell>(of_, to);
		if (parts < 4)
			return;
		for (; is_there(of_.wqes[entries_ % ring_entries], entries_); entries_++)
			to.wqes[entries_ % ring_entries] = of_.wqes[entries_ % ring_entries];
	}

private:
	template <auto Field> static void copy(const half &from, half &to)
	{
		(to.*Field).store((from.*Field).load());
	}
	/// In the order of queue_pair::store_indices(), the opposite of that of look().
	static constexpr void (*stored[])(const half &, half &) = {
		copy<&half::stream_prod>, copy<&half::stream_cons>, copy<&half::answer_prod>,
		copy<&half::answer_cons>, copy<&half::read_ack>,    copy<&half::wqe_prod>,
		copy<&half::refused>,     copy<&half::wqe_cons>,    copy<&half::read_grant>,
	};

public:
	static constexpr std::size_t indices_stored = std::size(stored);

private:
	static void bytes(const std::uint8_t *from, std::uint8_t *to, std::uint64_t &at,
			  std::uint64_t end)
	{
		for (; at != end; at++)
			to[at % stream_bytes] = from[at % stream_bytes];
	}

	const half &of_;
	std::unique_ptr<half> seen_;
	std::uint64_t stream_ = 0, answer_ = 0;
	std::uint32_t entries_ = 0;
};

/// Two sides and their views; as `joined`.
struct lagging {
	explicit lagging(bool pulls = true, pair_options o = depth(16)) :
		halves{std::make_unique<half[]>(2)},
		of_a{halves[0]},
		of_b{halves[1]},
		pa{halves[0], of_b.seen(), pulls},
		pb{halves[1], of_a.seen(), pulls},
		a{2, 1, o},
		b{1, 2, o}
	{
		std::memset(static_cast<void *>(halves.get()), 0, 2 * sizeof(half));
		a.pair->attach(pa);
		b.pair->attach(pb);
	}
	void move(std::mt19937 &rng)
	{
		constexpr unsigned parts[] = {1, 2, 2, 3, 4, 4};
		auto part = parts[rng() % std::size(parts)];
		auto some = part == 2 ? rng() % (late_view::indices_stored + 1) : SIZE_MAX;
		(rng() % 2 ? of_a : of_b).move(part, some);
	}
	/// Both see everything: who notices that its peer is gone sees what that had stored.
	void show()
	{
		of_a.move(4);
		of_b.move(4);
	}

	std::unique_ptr<half[]> halves;
	late_view of_a, of_b; // of what a stores, and b
	fake_port pa, pb;     // outlive the queue pairs
	side a, b;
};

} // namespace coop::ntrdma::test
