// SPDX-License-Identifier: MIT
// reset.cpp - queue pairs that take long to reset: nobody uses one meanwhile, and nobody waits for
// one longer than its budget. That nothing is posted on one, lab.cpp expects of every post.
#include "tests/unit/fetch/lab.hpp"

namespace
{

using namespace lab;

class slow_reset : public testing::Test
{
protected:
	// A fetch of a has lost a segment, and its queue pair is being reset.
	void lose_one(u32 fetches)
	{
		shape.fetches = fetches;
		a = &net.add(shape);
		b = &net.add(shape);
		net.acquaint(*a, *b);
		a->slow_resets = true;
		once(net, [](auto &air) { air.erase(air.begin() + 3); });
		ASSERT_EQ(a->fetch(8, &id), 0);
		net.run(a->cfg.peer_timeout_us / 2);
		ASSERT_EQ(a->resetting.size(), 1u);
		ASSERT_TRUE(a->done.empty());
	}
	network net;
	node_shape shape;
	node *a = nullptr, *b = nullptr;
	u32 id = 0;
};

TEST_F(slow_reset, the_next_attempt_comes_behind_it)
{
	lose_one(2);
	const u64 attempts = a->stats().attempts;
	EXPECT_EQ(a->posts, 1u);
	a->reset_done();
	net.run();
	EXPECT_EQ(a->posts, 2u);
	EXPECT_EQ(a->stats().attempts, attempts + 1);
	EXPECT_EQ(a->done[1].err, 0);
	for (u32 page = 0; page < 8; ++page)
		EXPECT_TRUE(a->page_right(1, page)) << page;
}

TEST_F(slow_reset, other_fetches_go_on_by_other_queue_pairs)
{
	lose_one(2);
	ASSERT_EQ(a->fetch(4), 0);
	net.settle();
	EXPECT_EQ(a->done.count(2), 1u);
	EXPECT_EQ(a->done.count(1), 0u);
	a->reset_done();
	net.run();
	EXPECT_EQ(a->done[1].err, 0);
}

TEST_F(slow_reset, the_budget_does_not_wait_for_it)
{
	lose_one(1);
	net.run();
	ASSERT_EQ(a->done.count(1), 1u) << "the fetch ends in time";
	EXPECT_NE(a->done[1].err, 0);
	EXPECT_EQ(a->posts, 1u);
	// Nor does another fetch get the queue pair, or wait for it beyond its own budget.
	ASSERT_EQ(a->fetch(4), 0);
	net.run();
	EXPECT_EQ(a->done[2].err, -EBUSY);
	EXPECT_EQ(a->posts, 1u);
	ASSERT_EQ(a->fetch(4), 0);
	net.settle();
	EXPECT_EQ(a->done.count(3), 0u);
	a->reset_done();
	net.run();
	EXPECT_EQ(a->done[3].err, 0) << "it waited for the queue pair";
	EXPECT_EQ(a->posts, 2u);
}

TEST_F(slow_reset, a_fetch_that_is_given_up_leaves_it_to_the_next)
{
	lose_one(1);
	ASSERT_EQ(coop_engine_cancel(a->e, id, net.now), 0);
	net.settle();
	EXPECT_EQ(a->done[1].err, -ECANCELED);
	a->reset_done();
	a->slow_resets = false;
	ASSERT_EQ(a->fetch(4), 0);
	net.run();
	EXPECT_EQ(a->done[2].err, 0);
}

// Fetches by two queue pairs on a wire that loses a tenth, while each reset takes a while.
TEST_F(slow_reset, a_bad_wire)
{
	node &x = net.add(shape), &y = net.add(shape);
	u32 n = 0;
	net.acquaint(x, y);
	x.slow_resets = true;
	net.mangle = [&n](auto &air) {
		for (auto it = air.begin(); it != air.end();)
			it = ++n % 10 ? it + 1 : air.erase(it);
	};
	for (u32 i = 1; i <= 40; ++i) {
		ASSERT_EQ(x.fetch(1 + i % 16), 0);
		for (u32 steps = 0; !x.done.count(i); ++steps) {
			ASSERT_LT(steps, 10000u);
			net.run(1000);
			if (steps % 3 == 2 && !x.resetting.empty())
				x.reset_done();
		}
		for (u32 page = 0; page < 1 + i % 16; ++page)
			if (x.done[i].good >> page & 1)
				EXPECT_TRUE(x.page_right(i, page)) << i << ": " << page;
	}
	EXPECT_GT(x.resets, 5u);
}

} // namespace
