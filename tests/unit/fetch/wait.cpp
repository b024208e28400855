// SPDX-License-Identifier: MIT
// wait.cpp - requests that wait for pages on their way to the responder.
#include "tests/unit/fetch/lab.hpp"

namespace
{

using namespace lab;

// b loads all pages itself when a asks for them.
struct two {
	network net;
	node &a, &b;
	u32 b_at_a;

	explicit two(const node_shape &shape = {}) :
		a(net.add(shape)),
		b(net.add(shape)),
		b_at_a(net.acquaint(a, b))
	{
		b.have = 0;
		b.coming = ~u64{0};
		a.budget_us = 1000000;
	}
	u32 lookup() const { return b.lookups.back().id; }
	void arrive(u64 pages) { coop_engine_lookup_more(b.e, lookup(), pages, 0, net.now); }
	void fail(u64 pages) { coop_engine_lookup_more(b.e, lookup(), 0, pages, net.now); }
};

TEST(wait, pages_follow_as_they_arrive)
{
	two t;
	ASSERT_EQ(t.a.fetch_from(8, {t.b_at_a}, 5), 0);
	t.net.settle();
	EXPECT_EQ(t.b.lookups.at(0).level, 5u);
	EXPECT_TRUE(t.b.lookups[0].load);
	EXPECT_EQ(t.a.stats().waits, 1u);
	EXPECT_EQ(t.b.stats().serves_waiting, 1u);
	EXPECT_EQ(t.a.stats().segs_rx, 0u);
	t.arrive(0b101);
	t.net.settle();
	EXPECT_EQ(t.a.stats().segs_rx, 1u) << "in order: page 2 waits for page 1";
	t.arrive(0b010);
	t.net.settle();
	EXPECT_EQ(t.a.stats().segs_rx, 3u);
	t.arrive(~u64{0});
	t.net.settle();
	EXPECT_EQ(t.a.done[1].good, 0xffu);
	EXPECT_EQ(t.a.done[1].err, 0);
	EXPECT_EQ(t.b.stats().serve_wait_pages, 8u);
	EXPECT_EQ(t.b.stats().serves_waiting, 0u);
	EXPECT_EQ(t.a.stats().segs_displaced, 0u);
	EXPECT_EQ(t.b.stats().serve_misses, 0u);
	EXPECT_EQ(t.b.served, t.b.ended);
}

TEST(wait, lasts_as_long_as_the_budget_and_longer_than_any_patience)
{
	two t;
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a}, 5), 0);
	t.net.run(800000); // peer_timeout_us is 50,000
	EXPECT_TRUE(t.a.done.empty());
	EXPECT_EQ(t.a.stats().attempts, 1u);
	EXPECT_GT(t.a.stats().queries, 2u) << "it asks now and then whether the peer is alive";
	t.arrive(~u64{0});
	t.net.run(1000);
	EXPECT_EQ(t.a.done[1].good, 0xfu);
	EXPECT_EQ(t.a.peer(t.b_at_a).failures, 0u);
	EXPECT_EQ(t.a.stops, 0u);
}

TEST(wait, ends_in_time_for_the_requester_to_ask_elsewhere)
{
	two t;
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a}, 5), 0);
	t.net.settle();
	t.arrive(0b1);
	t.net.run(2000000);
	EXPECT_EQ(t.a.done[1].good, 0b1u) << "what came is committed";
	EXPECT_EQ(t.a.done[1].err, -ENOENT);
	EXPECT_EQ(t.b.stats().serve_wait_timeouts, 1u);
	EXPECT_EQ(t.b.stats().commits_tx, 1u);
	EXPECT_EQ(t.a.peer(t.b_at_a).failures, 0u);
	EXPECT_EQ(t.b.served, t.b.ended);
}

TEST(wait, pages_that_will_not_come_are_missing_at_once)
{
	two t;
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a}, 5), 0);
	t.net.settle();
	t.arrive(0b0011);
	t.fail(0b0100);
	t.net.settle();
	EXPECT_EQ(t.a.stats().segs_rx, 2u);
	EXPECT_EQ(t.a.stats().pads_rx, 1u);
	t.fail(0b1000);
	t.net.settle();
	EXPECT_EQ(t.a.done[1].good, 0b0011u);
	EXPECT_EQ(t.b.stats().serve_misses, 2u);
}

TEST(wait, a_request_without_a_level_does_not)
{
	two t;
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	EXPECT_EQ(t.b.lookups.at(0).level, 0u);
	EXPECT_FALSE(t.b.lookups[0].load);
	EXPECT_EQ(t.a.done[1].good, 0u);
	EXPECT_EQ(t.b.stats().serve_waits, 0u);
}

TEST(wait, a_load_of_the_same_level_is_not_waited_for)
{
	two t;
	t.b.load_level = 5;
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a}, 5), 0);
	t.net.settle();
	EXPECT_EQ(t.a.done[1].err, -ENOENT);
	EXPECT_EQ(t.b.stats().serve_waits, 0u);
}

TEST(wait, a_parent_that_dies_costs_little_more_than_a_peer_timeout)
{
	for (const u64 came : {0b0, 0b1}) {
		two t;
		node &c = t.net.add();
		const u32 c_at_a = t.net.acquaint(t.a, c);
		ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a, c_at_a}, 5), 0);
		t.net.settle();
		t.arrive(came);
		t.net.settle();
		const u64 began = t.net.now;
		t.net.filter = [&](node &to, std::vector<u8> &) { return &to != &t.b; };
		while (t.a.done.empty() && t.net.now < began + 1000000)
			t.net.run(1000);
		EXPECT_EQ(t.a.done[1].good, 0xfu) << "from the other parent";
		EXPECT_EQ(t.a.done[1].peer, c_at_a);
		EXPECT_LT(t.net.now - began, 2 * t.a.cfg.peer_timeout_us);
	}
}

TEST(wait, a_parent_that_says_again_is_not_left_for_another)
{
	two t;
	node &c = t.net.add();
	const u32 c_at_a = t.net.acquaint(t.a, c);
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a, c_at_a}, 5), 0);
	t.net.run(400000);
	EXPECT_EQ(c.served, 0u);
	t.arrive(~u64{0});
	t.net.run(1000);
	EXPECT_EQ(t.a.done[1].peer, t.b_at_a);
}

TEST(wait, a_lost_again_is_asked_for)
{
	two t;
	lose(t.net, COOP_CMD_AGAIN, 1);
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a}, 5), 0);
	t.net.run(100000);
	EXPECT_EQ(t.a.stats().attempts, 1u);
	EXPECT_EQ(t.a.stats().waits, 1u);
	t.arrive(~u64{0});
	t.net.run(1000);
	EXPECT_EQ(t.a.done[1].good, 0xfu);
}

TEST(wait, a_repeated_request_waits_once)
{
	two t;
	std::vector<u8> request;
	t.net.filter = [&](node &, std::vector<u8> &m) {
		if (command(m) == COOP_CMD_REQUEST)
			request = m;
		return true;
	};
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a}, 5), 0);
	t.net.settle();
	t.b.ctrl(request, t.a.cfg.self);
	t.net.settle();
	EXPECT_EQ(t.b.stats().serve_waits, 1u);
	EXPECT_EQ(t.b.stats().serves_dup, 1u);
	t.arrive(~u64{0});
	t.net.settle();
	EXPECT_EQ(t.a.done[1].good, 0xfu);
}

TEST(wait, parents_are_asked_in_their_order_and_others_do_not_wait)
{
	two t;
	node &c = t.net.add(), &d = t.net.add();
	const u32 c_at_a = t.net.acquaint(t.a, c), d_at_a = t.net.acquaint(t.a, d);
	t.b.coming = 0;
	c.have = 0b01;
	d.have = 0b11;
	ASSERT_EQ(t.a.fetch_from(2, {t.b_at_a, c_at_a}, 5), 0);
	t.net.settle();
	EXPECT_EQ(t.b.served, 1u);
	EXPECT_EQ(c.served, 1u);
	EXPECT_EQ(c.lookups.at(0).level, 5u);
	EXPECT_EQ(t.a.done[1].good, 0b11u) << "d is a candidate for every file";
	EXPECT_EQ(t.a.done[1].peer, d_at_a);
	EXPECT_EQ(d.lookups.at(0).level, 0u) << "but no parent";
}

TEST(wait, half_of_the_serves_wait_and_the_next_is_told_busy)
{
	node_shape few;
	few.serves = few.fetches = few.queued = 4;
	two t(few);
	node &c = t.net.add(few);
	const u32 b_at_c = t.net.acquaint(c, t.b);
	ASSERT_EQ(t.a.fetch_from(1, {t.b_at_a}, 5), 0);
	ASSERT_EQ(t.a.fetch_from(1, {t.b_at_a}, 5), 0);
	t.net.settle();
	c.budget_us = 1000000;
	ASSERT_EQ(c.fetch_from(1, {b_at_c}, 5), 0);
	t.net.settle();
	EXPECT_EQ(t.b.stats().serves_waiting, 2u);
	EXPECT_EQ(c.peer(b_at_c).busy, 1u);
	const std::vector<coop_ev> waiting(t.b.lookups.begin(), t.b.lookups.begin() + 2);
	t.b.have = ~u64{0};
	for (const coop_ev &l : waiting)
		coop_engine_lookup_more(t.b.e, l.id, ~u64{0}, 0, t.net.now);
	t.net.run(20000);
	EXPECT_EQ(t.a.done[1].err, 0);
	EXPECT_EQ(t.a.done[2].err, 0);
	EXPECT_EQ(c.done[1].err, 0) << "asked again after the pause";
	EXPECT_EQ(t.b.served, t.b.ended);
}

TEST(wait, a_relay_finds_a_slot_when_all_others_wait)
{
	node_shape four;
	four.fetches = 4;
	four.queued = 8;
	four.serves = 16;
	two t(four);
	for (int i = 0; i < 6; ++i)
		ASSERT_EQ(t.a.fetch_from(1, {t.b_at_a}, 5), 0);
	t.net.settle();
	EXPECT_EQ(t.b.served, 3u) << "one slot of four is kept";
	t.b.have = ~u64{0};
	t.b.coming = 0;
	ASSERT_EQ(t.a.fetch_from(1, {t.b_at_a}, 4, true), 0);
	t.net.settle();
	EXPECT_EQ(t.a.done[7].err, 0) << "the relay overtook what waits";
	EXPECT_EQ(t.a.done.count(1), 0u);
}

TEST(wait, a_fetch_that_does_not_wait_finds_a_slot_and_room_in_a_small_window)
{
	node_shape four;
	four.fetches = 4;
	four.queued = 8;
	four.serves = 16;
	for (const u32 window : {8u << 20, 2u << 12}) {
		four.window = window;
		two t(four);
		for (int i = 0; i < 6; ++i)
			ASSERT_EQ(t.a.fetch_from(2, {t.b_at_a}, 5), 0);
		t.net.settle();
		t.b.have = ~u64{0};
		t.b.coming = 0;
		ASSERT_EQ(t.a.fetch(2), 0);
		t.net.settle();
		EXPECT_EQ(t.a.done.count(7), 1u) << "window " << window;
		EXPECT_EQ(t.a.done.count(1), 0u);
	}
}

TEST(wait, a_wait_is_no_measurement)
{
	two t;
	ASSERT_EQ(t.a.fetch_from(32, {t.b_at_a}, 5), 0);
	t.net.run(4000); // the first QUERY has not gone out: its answer would give no RTT anyway
	ASSERT_EQ(t.a.stats().queries, 0u);
	t.arrive(0xff);
	t.net.run(100000);
	t.arrive(~u64{0});
	t.net.run(1000);
	EXPECT_EQ(t.a.done[1].err, 0);
	EXPECT_LT(t.a.peer(t.b_at_a).srtt_us, 1000u);
}

} // namespace
