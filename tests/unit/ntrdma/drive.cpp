// SPDX-License-Identifier: MIT
// drive.cpp - who drives a node: programs that poll, that sleep, and that only look at their
// memory.
#include <chrono>
#include <gtest/gtest.h>

#include "userland/ntrdma/node/drive.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace std::chrono_literals;

class drives : public testing::Test
{
protected:
	void look(bool worked, unsigned polls, bool rung = false, bool waits = false)
	{
		now_ += d_.on() ? d_.nap() : 1us;
		d_.look({worked, polls, rung, waits}, now_);
	}
	/// Wakes until it drives; at most `most`.
	int start(int most = 1)
	{
		int n = 0;
		while (!d_.on() && n < most) {
			look(true, 100, true);
			n++;
		}
		return n;
	}

	drive d_;
	std::chrono::nanoseconds now_{1s};
};

TEST_F(drives, only_what_polls_in_a_loop)
{
	for (int i = 0; i < 100; i++)
		look(true, 2, true); // for an event, and once more until there is none
	EXPECT_FALSE(d_.on());
	start();
	EXPECT_TRUE(d_.on());
}

TEST_F(drives, a_program_that_takes_all_that_comes)
{
	start();
	EXPECT_EQ(d_.nap(), drive::nap_least);
	for (int i = 0; i < 1000; i++)
		look(false, 1000);
	EXPECT_TRUE(d_.on());
	EXPECT_EQ(d_.nap(), drive::nap_most) << "the thread disturbs it seldom";
	look(false, 3);
	EXPECT_EQ(d_.nap(), drive::nap_usual) << "it computes between its polls";
}

TEST_F(drives, not_what_stops_polling)
{
	start();
	look(true, 0);
	EXPECT_FALSE(d_.on()) << "work was left";
	start(2);
	for (int i = 0; d_.on() && i < 1000; i++)
		look(false, 0);
	EXPECT_FALSE(d_.on()) << "nothing came";
	EXPECT_EQ(start(), 1);
	EXPECT_TRUE(d_.on()) << "it left no work";
}

TEST_F(drives, what_polls_and_leaves_work_is_tried_ever_less)
{
	start();
	int wakes = 0;
	for (int i = 0; i < 20; i++) {
		look(false, 100);
		look(true, 100);
		EXPECT_FALSE(d_.on());
		wakes = start(1000);
	}
	EXPECT_EQ(wakes, drive::wakes_most);
	for (unsigned i = 0; i < drive::good_looks; i++)
		look(false, 1000);
	look(true, 100);
	EXPECT_EQ(start(1000), drive::wakes_most) << "a few good looks prove little";
	for (unsigned i = 0; i < 20 * drive::good_looks; i++)
		look(false, 1000);
	look(true, 100);
	EXPECT_EQ(start(1000), 2) << "it drove well for long";
}

TEST_F(drives, nothing_that_waits_for_an_event)
{
	look(true, 100, true, true);
	EXPECT_FALSE(d_.on());
	start();
	look(false, 100, false, true);
	EXPECT_FALSE(d_.on());
	EXPECT_EQ(start(), 1) << "it left nothing";
}

TEST_F(drives, polls_count_from_look_to_look)
{
	EXPECT_EQ(d_.polled(100), 100u);
	EXPECT_EQ(d_.polled(100), 0u);
	EXPECT_EQ(d_.polled(103), 3u);
}

TEST_F(drives, spinning_is_believed_for_a_while)
{
	EXPECT_FALSE(d_.spins());
	d_.woke(4ms, 4ms);
	for (int i = 0; i < drive::spins_for - 1; i++)
		d_.woke(500ms, 1ms);
	EXPECT_TRUE(d_.spins());
	d_.woke(500ms, 1ms);
	EXPECT_FALSE(d_.spins());
}

} // namespace
