// SPDX-License-Identifier: MIT
// turns.cpp - nodes take turns, and the serves of one node keep their order.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "rpc/fetch/engine.h"
#include "rpc/fetch/turns.h"

namespace
{

constexpr u32 serves = 8, nodes = 3;

struct turns : testing::Test {
	coop_turns t{};
	std::array<u32, serves> commit_next, serve_next;
	std::array<u32, nodes> node_next;
	std::array<coop_fifo, nodes> line;

	turns()
	{
		coop_turns_init(&t, commit_next.data(), serve_next.data(), serves, node_next.data(),
				line.data(), nodes);
	}
	std::vector<u32> rest()
	{
		std::vector<u32> out;
		for (u32 i; (i = coop_turns_next(&t)) != COOP_NONE;)
			out.push_back(i);
		return out;
	}
};

using order = std::vector<u32>;

TEST_F(turns, of_nodes_and_in_the_order_of_a_node)
{
	for (u32 i : {0u, 1u, 2u})
		coop_turns_join(&t, 0, i);
	for (u32 i : {3u, 4u})
		coop_turns_join(&t, 1, i);
	coop_turns_join(&t, 2, 5);
	coop_turns_join(&t, 0, 1); // already in line
	EXPECT_EQ(rest(), (order{0, 3, 5, 1, 4, 2}));
	EXPECT_EQ(rest(), order{});
}

TEST_F(turns, who_was_interrupted_goes_on_before_its_node_s_others_but_after_other_nodes)
{
	coop_turns_join(&t, 0, 0);
	coop_turns_join(&t, 0, 1);
	coop_turns_join(&t, 1, 2);
	ASSERT_EQ(coop_turns_next(&t), 0u);
	coop_turns_resume(&t, 0, 0);
	EXPECT_EQ(rest(), (order{2, 0, 1}));
	// The same if it had to wait outside and its node had nothing else.
	coop_turns_resume(&t, 0, 0);
	coop_turns_join(&t, 0, 1);
	EXPECT_EQ(rest(), (order{0, 1}));
}

TEST_F(turns, a_commit_goes_first)
{
	coop_turns_join(&t, 0, 0);
	coop_turns_join(&t, 1, 1);
	coop_turns_commit(&t, 2);
	EXPECT_EQ(rest(), (order{2, 0, 1}));
}

TEST_F(turns, who_leaves_is_passed_over)
{
	coop_turns_join(&t, 0, 0);
	coop_turns_join(&t, 1, 1);
	coop_turns_join(&t, 1, 2);
	coop_turns_leave(&t, 0, 0); // the only one of its node
	coop_turns_leave(&t, 1, 2);
	coop_turns_leave(&t, 1, 3); // in no line
	EXPECT_EQ(rest(), (order{1}));
	coop_turns_join(&t, 0, 0);
	EXPECT_EQ(rest(), (order{0}));
}

} // namespace
