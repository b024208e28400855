// SPDX-License-Identifier: MIT
// timer.cpp - the heap of deadlines against a linear search.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "rpc/base/timer.h"
#include "rpc/fetch/engine.h"

namespace
{

constexpr u64 unset = ~u64{0};

TEST(timer, nothing_is_due_when_nothing_is_set)
{
	std::vector<coop_timer> memory(4);
	coop_timers t;
	coop_timers_init(&t, memory.data(), 4);
	EXPECT_EQ(coop_timers_first(&t), unset);
	EXPECT_EQ(coop_timers_due(&t, unset), COOP_NONE);
	coop_timer_clear(&t, 2); // not set: no harm
	coop_timer_set(&t, 2, 100);
	EXPECT_EQ(coop_timers_due(&t, 99), COOP_NONE);
	EXPECT_EQ(coop_timers_due(&t, 100), 2u);
	EXPECT_EQ(coop_timers_due(&t, 100), COOP_NONE);
}

TEST(timer, agrees_with_a_search)
{
	constexpr u32 n = 37;
	std::mt19937 dice(7);
	std::vector<coop_timer> memory(n);
	std::vector<u64> naive(n, unset);
	coop_timers t;
	coop_timers_init(&t, memory.data(), n);
	for (int step = 0; step < 20000; ++step) {
		const u32 i = dice() % n;
		switch (dice() % 4) {
		case 0:
		case 1:
			naive[i] = dice() % 1000;
			coop_timer_set(&t, i, naive[i]);
			break;
		case 2:
			naive[i] = unset;
			coop_timer_clear(&t, i);
			break;
		default: {
			const u64 now = dice() % 1000;
			const u64 first = *std::min_element(naive.begin(), naive.end());
			const u32 due = coop_timers_due(&t, now);
			if (first > now) {
				ASSERT_EQ(due, COOP_NONE);
			} else {
				ASSERT_LT(due, n);
				ASSERT_EQ(naive[due], first);
				naive[due] = unset;
			}
		}
		}
		ASSERT_EQ(coop_timers_first(&t), *std::min_element(naive.begin(), naive.end()));
	}
}

} // namespace
