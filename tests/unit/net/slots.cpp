// SPDX-License-Identifier: MIT
// slots.cpp - the outstanding operations of a machine, and their numbers.
#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

#include "userland/net/slots.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::core;

constexpr unsigned uses = 3 * 8192;

// One slot in repeated use, until its generations return to the first.
TEST(net_slots, numbers_of_a_slot_used_before_mean_nothing)
{
	slot_table t(0xffffffff - uses / 2);
	t.set_machine(4095);
	slot *const only = t.allocate(1);
	ASSERT_NE(only, nullptr);
	std::vector<spi::token> before;
	for (unsigned n = 0; n < uses; n++) {
		const spi::token now = t.token_of(*only);
		EXPECT_NE(now, 0u);
		EXPECT_EQ(now >> 52, 4095u);
		EXPECT_EQ(t.find(now), only);
		EXPECT_EQ(t.allocate(1), nullptr) << "it is taken";
		t.free(*only);
		EXPECT_EQ(t.find(now), nullptr) << "it is not any more";
		before.push_back(now);
		ASSERT_EQ(t.allocate(1), only);
	}
	for (const spi::token then : before)
		EXPECT_EQ(t.find(then), nullptr);
	EXPECT_EQ(t.find(t.token_of(*only)), only);
	std::sort(before.begin(), before.end());
	EXPECT_EQ(std::unique(before.begin(), before.end()), before.end());
}

// 0 is no operation's number, whatever the machine and the slot.
TEST(net_slots, no_generation_is_0)
{
	slot_table t(0xffffffff);
	for (int n = 0; n < 3; n++) {
		slot *s = t.allocate(1);
		ASSERT_NE(s, nullptr);
		EXPECT_NE(t.token_of(*s), 0u);
		EXPECT_NE(t.token_of(*s) >> slot_table::slot_bits, 0u);
		t.free(*s);
	}
}

// As many as there may be, each with its own number; free ones are found in any order.
TEST(net_slots, all_are_told_apart)
{
	slot_table t(1);
	std::vector<slot *> all;
	std::vector<spi::token> tokens;
	for (unsigned n = 0; n < 1000; n++) {
		all.push_back(t.allocate(1000));
		tokens.push_back(t.token_of(*all.back()));
	}
	EXPECT_EQ(t.allocate(1000), nullptr);
	for (unsigned n = 0; n < 1000; n++)
		EXPECT_EQ(t.find(tokens[n]), all[n]);
	for (unsigned n = 0; n < 1000; n += 3)
		t.free(*all[n]);
	for (unsigned n = 0; n < 1000; n++)
		EXPECT_EQ(t.find(tokens[n]), n % 3 ? all[n] : nullptr);
	while (slot *s = t.allocate(1000))
		EXPECT_EQ(t.find(t.token_of(*s)), s);
	EXPECT_EQ(t.live(), 1000u);
	EXPECT_EQ(t.find(~0ull), nullptr);
}

} // namespace
