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

// One slot in repeated use, while its generations wrap.
TEST(net_slots, numbers_of_a_slot_used_before_mean_nothing)
{
	slot_table t(slot_table::generations - uses / 2);
	slot *const only = t.allocate(1);
	ASSERT_NE(only, nullptr);
	std::vector<spi::token> before;
	for (unsigned n = 0; n < uses; n++) {
		const spi::token now = t.token_of(*only);
		EXPECT_NE(now, 0u);
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

// 0 is no operation's number, whatever the slot.
TEST(net_slots, no_generation_is_0)
{
	slot_table t(slot_table::generations);
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

// A slot that has had all generations is retired, and another one takes its place: no number
// repeats, wherever the generations start, while any slot is left.
TEST(net_slots, no_number_repeats)
{
	constexpr std::uint64_t each = 5;
	for (const std::uint64_t first : {std::uint64_t{1}, std::uint64_t{77},
					  slot_table::generations - 2, slot_table::generations}) {
		slot_table t(first, each);
		std::vector<spi::token> before;
		slot *const held = t.allocate(3);
		ASSERT_NE(held, nullptr);
		const spi::token kept = t.token_of(*held);
		for (unsigned n = 0; n < 4000; n++) {
			slot *const one = t.allocate(3), *const two = t.allocate(3);
			ASSERT_NE(one, nullptr);
			ASSERT_NE(two, nullptr);
			ASSERT_EQ(t.allocate(3), nullptr) << "retired slots are not live";
			for (slot *s : {one, two}) {
				before.push_back(t.token_of(*s));
				EXPECT_NE(before.back() >> slot_table::slot_bits, 0u);
				EXPECT_EQ(t.find(before.back()), s);
				t.free(*s);
			}
		}
		EXPECT_EQ(t.find(kept), held);
		std::vector<unsigned> uses_of(slot_table::most);
		for (const spi::token then : before) {
			EXPECT_EQ(t.find(then), nullptr);
			EXPECT_LE(++uses_of[then & (slot_table::most - 1)], each);
		}
		before.push_back(kept);
		std::sort(before.begin(), before.end());
		EXPECT_EQ(std::unique(before.begin(), before.end()), before.end());
	}
}

// When all slots are retired there is none, rather than a number for the second time.
TEST(net_slots, the_last_number_is_the_end)
{
	slot_table t(slot_table::generations, 1);
	for (std::uint32_t n = 0; n < slot_table::most; n++) {
		slot *s = t.allocate(1);
		ASSERT_NE(s, nullptr) << n;
		t.free(*s);
	}
	EXPECT_EQ(t.allocate(1), nullptr);
	EXPECT_EQ(t.live(), 0u);
}

} // namespace
