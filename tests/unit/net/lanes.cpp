// SPDX-License-Identifier: MIT
// lanes.cpp - the order of messages of two priorities.
#include <deque>
#include <gtest/gtest.h>

#include "userland/net/lanes.hpp"

namespace
{

using namespace coop::net;

// Numbers below 1000 are normal.
std::deque<int> drained(lanes<std::deque<int>> &l)
{
	std::deque<int> out;
	for (; !l.empty(); l.pop_front())
		out.push_back(l.front());
	return out;
}

TEST(net_lanes, high_ones_go_first_each_kind_in_order)
{
	lanes<std::deque<int>> l;
	for (const int i : {1, 1001, 2, 1002, 3})
		l.push_back(i, i > 1000);
	EXPECT_EQ(l.size(), 5u);
	EXPECT_EQ(drained(l), (std::deque<int>{1001, 1002, 1, 2, 3}));
}

TEST(net_lanes, a_normal_one_waits_for_a_bounded_number)
{
	constexpr int run = spi::high_run;
	lanes<std::deque<int>> l;
	l.push_back(1, false);
	l.push_back(2, false);
	for (int i = 0; i < 3 * run; i++)
		l.push_back(1000 + i, true);
	const std::deque<int> out = drained(l);
	ASSERT_EQ(out.size(), 3u * run + 2);
	EXPECT_EQ(out[run], 1);
	EXPECT_EQ(out[2 * run + 1], 2);
	// Those that went ahead of no other do not count.
	for (int i = 0; i < 2 * run; i++)
		l.push_back(1000 + i, true);
	for (int i = 0; i < run; i++)
		l.pop_front();
	l.push_back(3, false);
	const std::deque<int> rest = drained(l);
	EXPECT_EQ(rest[run], 3);
}

} // namespace
