// SPDX-License-Identifier: MIT
// start.cpp - the short form of bench/start: eight nodes start a program at once, and storage has
// hardly more requests than of one.
#include "bench/start/start.hpp"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include "tests/lib/scratch.hpp"

TEST(start_of_a_program, costs_storage_about_what_one_node_costs)
{
	spdlog::set_level(spdlog::level::err);
	const test::scratch scratch("coopfs-start-test");
	launch::options o; // 8 nodes, 300 files
	launch::make_tree(scratch.path() / "tree", o);
	launch::options alone = o;
	alone.nodes = 1;
	const launch::counts one =
		launch::run(scratch.path() / "tree", scratch.path() / "s1", alone);
	EXPECT_EQ(one.wrong, 0u) << one.what;
	EXPECT_FALSE(one.calls.contains("bundle")) << "one node pays nothing";
	const launch::counts all = launch::run(scratch.path() / "tree", scratch.path() / "s2", o);
	EXPECT_EQ(all.wrong, 0u) << all.what;
	EXPECT_TRUE(all.calls.contains("bundle"));
	// 8 times as many without bundles. The nodes of a busy machine do not run in step, so some
	// of them come first.
	EXPECT_LT(all.requests, 2 * one.requests);
}
