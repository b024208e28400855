// SPDX-License-Identifier: MIT
// itself.cpp - a queue pair that is its own peer: both roles of its link share one half.
#include <algorithm>
#include <gtest/gtest.h>

#include "tests/unit/ntrdma/sides.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace coop::ntrdma::test;

constexpr std::uint32_t target = 512 << 10; // where the bytes go; sources are at 0

struct itself {
	explicit itself(bool pulls) : shared{std::make_unique<half>()}, way{*shared, *shared, pulls}
	{
		std::memset(static_cast<void *>(shared.get()), 0, sizeof(half));
		s.pair->attach(way);
	}

	/// Polls as a program does, until nothing comes any more.
	std::vector<completion> all()
	{
		std::vector<completion> got;
		for (int quiet = 0; quiet < 3; quiet++) {
			completion c[16];
			for (completion_queue *q : {&s.sends, &s.recvs})
				if (std::size_t n = q->poll(c)) {
					got.insert(got.end(), c, c + n);
					quiet = 0;
				}
		}
		return got;
	}

	std::unique_ptr<half> shared;
	fake_port way;
	side s{5, 5, depth(4)};
};

class ntrdma_itself : public testing::TestWithParam<bool>
{
};

bool filled(const side &s, std::uint32_t at, std::uint32_t length, std::uint8_t with)
{
	return std::all_of(s.memory.begin() + at, s.memory.begin() + at + length,
			   [with](std::uint8_t b) { return b == with; });
}

} // namespace

TEST_P(ntrdma_itself, every_operation_of_every_length_comes_back)
{
	itself l{GetParam()};
	std::uint8_t fill = 0;
	for (operation op :
	     {operation::send, operation::write, operation::write_imm, operation::read})
		for (std::uint32_t length : {1u, 32u, 161u, 5000u, 20000u, 500000u}) {
			bool reads = op == operation::read, receives = takes_receive(op);
			std::fill_n(l.s.memory.begin() + (reads ? target : 0), length, ++fill);
			if (receives) {
				ASSERT_EQ(l.s.receive(l.s.at(target, length)), 0);
			}
			ASSERT_EQ(l.s.send(l.s.request(op, l.s.at(0, length), l.s.base() + target,
						       l.s.key)),
				  0);
			const auto got = l.all();
			ASSERT_EQ(got.size(), receives ? 2u : 1u) << length;
			for (const completion &c : got)
				EXPECT_EQ(c.result, status::success) << length;
			EXPECT_TRUE(filled(l.s, reads ? 0 : target, length, fill)) << length;
		}
	EXPECT_FALSE(l.s.pair->stirs()) << "it rings for nothing new";
}

TEST_P(ntrdma_itself, a_ring_goes_round_many_times)
{
	itself l{GetParam()};
	for (std::uint32_t i = 0; i < 3 * ring_entries; i++) {
		ASSERT_EQ(l.s.receive(l.s.at(target, 64)), 0);
		ASSERT_EQ(l.s.send(l.s.request(operation::send, l.s.at(0, 64))), 0);
		ASSERT_EQ(l.all().size(), 2u) << i;
	}
}

TEST_P(ntrdma_itself, a_send_waits_for_its_receive)
{
	itself l{GetParam()};
	ASSERT_EQ(l.s.send(l.s.request(operation::send, l.s.at(0, 64))), 0);
	EXPECT_TRUE(l.all().empty());
	l.s.pair->ask();
	l.all();
	EXPECT_TRUE(l.s.pair->answered());
	ASSERT_EQ(l.s.receive(l.s.at(target, 64)), 0);
	EXPECT_EQ(l.all().size(), 2u);
}

TEST_P(ntrdma_itself, a_refused_request_ends_both_roles)
{
	itself l{GetParam()};
	ASSERT_EQ(l.s.receive(l.s.at(target, 64)), 0);
	ASSERT_EQ(l.s.send(l.s.request(operation::write, l.s.at(0, 64), l.s.base(), l.s.key + 1)),
		  0);
	ASSERT_EQ(l.s.send(l.s.request(operation::send, l.s.at(0, 64))), 0);
	std::vector<status> results;
	for (const completion &c : l.all())
		results.push_back(c.result);
	std::sort(results.begin(), results.end());
	std::vector<status> expected{status::remote_access, status::flushed, status::flushed};
	std::sort(expected.begin(), expected.end());
	EXPECT_EQ(results, expected);
	EXPECT_EQ(l.s.pair->state(), pair_state::error);
	EXPECT_TRUE(l.s.pair->wants_detach());
}

TEST_P(ntrdma_itself, a_reset_forgets_what_is_under_way)
{
	itself l{GetParam()};
	ASSERT_EQ(l.s.send(l.s.request(operation::send, l.s.at(0, 64))), 0);
	l.s.pair->set_state(pair_state::reset);
	EXPECT_TRUE(l.all().empty());
	EXPECT_TRUE(l.s.pair->wants_detach());
}

INSTANTIATE_TEST_SUITE_P(ways, ntrdma_itself, testing::Bool(),
			 [](const auto &info) { return info.param ? "pulls" : "streams"; });
