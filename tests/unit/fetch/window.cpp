// SPDX-License-Identifier: MIT
// window.cpp - the window grows with what is delivered and shrinks once for each congestion.
#include "rpc/fetch/window.h"

#include <gtest/gtest.h>

namespace
{

TEST(window, what_is_alone_fits_however_large)
{
	coop_window w;
	coop_window_init(&w, 10, 100, 5);
	EXPECT_TRUE(coop_window_fits(&w, 50));
	w.invited = 4;
	EXPECT_TRUE(coop_window_fits(&w, 6));
	EXPECT_FALSE(coop_window_fits(&w, 7));
}

TEST(window, slow_start_ends_at_the_threshold_and_growth_at_the_bound)
{
	coop_window w;
	coop_window_init(&w, 10, 100, 5);
	coop_window_grow(&w, 10);
	coop_window_grow(&w, 20);
	EXPECT_EQ(w.size, 40u);
	coop_window_grow(&w, 80);
	EXPECT_EQ(w.size, 100u);

	ASSERT_TRUE(coop_window_shrink(&w, 50, 1, 2));
	coop_window_grow(&w, 49);
	EXPECT_EQ(w.size, 50u) << "no whole window yet";
	coop_window_grow(&w, 1);
	EXPECT_EQ(w.size, 55u);
	for (int i = 0; i < 100; i++)
		coop_window_grow(&w, 100);
	EXPECT_EQ(w.size, 100u);
}

TEST(window, one_congestion_shrinks_it_once)
{
	coop_window w;
	coop_window_init(&w, 100, 100, 5);
	EXPECT_TRUE(coop_window_shrink(&w, 75, 10, 20));
	EXPECT_FALSE(coop_window_shrink(&w, 50, 19, 30)) << "invited before the decrease";
	EXPECT_EQ(w.size, 75u);
	EXPECT_TRUE(coop_window_shrink(&w, 0, 20, 30));
	EXPECT_EQ(w.size, 1u) << "one is always asked for";
}

} // namespace
