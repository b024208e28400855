// SPDX-License-Identifier: MIT
// serve.cpp - the responder: repeated and superseded requests, load, refusals.
#include "tests/unit/fetch/lab.hpp"

namespace
{

using namespace lab;

TEST(serve, a_doubled_request_is_served_once)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	std::vector<u8> request;
	net.filter = [&](node &to, std::vector<u8> &m) {
		if (command(m) == COOP_CMD_REQUEST) {
			request = m;
			to.ctrl(m, a.cfg.self); // during the serve
		}
		return true;
	};
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(b.served, 1u);
	net.filter = nullptr;
	const u64 commits = b.stats().commits_tx;
	b.ctrl(request, a.cfg.self); // and after it
	net.settle();
	EXPECT_EQ(b.served, 1u);
	EXPECT_EQ(b.stats().commits_tx, commits + 1) << "answered from the record";
	EXPECT_EQ(a.stats().commits_stale, 1u) << "a no longer waits for it";
	EXPECT_EQ(b.stats().serves_dup, 2u);
}

TEST(serve, what_cannot_change_is_vouched_for_before_it_is_sent)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	b.keeps = b.hold_sends = true;
	b.have = 0b1011;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	EXPECT_EQ(b.stats().commits_tx, 1u);
	EXPECT_EQ(a.done[1].good, b.have) << "the COMMIT did not wait for completions";
	EXPECT_EQ(b.stats().serve_pages, 3u);
	EXPECT_EQ(b.rechecks, 0u);
	EXPECT_EQ(b.ended, 0u) << "the network still reads the pages";
	ASSERT_EQ(b.sends.size(), 1u);
	const auto [id, n] = b.sends.front();
	coop_engine_tx_done(b.e, id, n, 0, net.now);
	net.settle();
	EXPECT_EQ(b.ended, 1u);
	EXPECT_EQ(b.stats().commits_tx, 1u);
}

TEST(serve, what_was_sent_at_once_ends_all_the_same)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	b.keeps = true;
	for (int i = 0; i < 20; ++i) {
		ASSERT_EQ(a.fetch(1), 0);
		net.run();
	}
	EXPECT_EQ(b.served, 20u);
	EXPECT_EQ(b.ended, 20u);
	EXPECT_EQ(b.rechecks, 0u);
	EXPECT_EQ(a.stops, 0u);
}

TEST(serve, many_segments_go_the_long_way_whatever_is_said_of_their_bytes)
{
	for (const u32 flags : {0u, u32{COOP_F_PAGE_CRC}, u32{COOP_F_PAGE_TAG}}) {
		network net;
		node_shape sums;
		sums.flags = flags;
		node &a = net.add(sums), &b = net.add();
		net.acquaint(a, b);
		b.keeps = true;
		ASSERT_EQ(a.fetch(17), 0);
		net.run();
		EXPECT_EQ(b.rechecks, 1u) << "its COMMIT would overtake 17 datagrams";
		EXPECT_EQ(a.done[1].good, (1u << 17) - 1);
		ASSERT_EQ(a.fetch(16), 0);
		net.run();
		EXPECT_EQ(b.rechecks, 1u);
		EXPECT_EQ(a.done[2].good, (1u << 16) - 1);
		EXPECT_EQ(b.served, b.ended);
	}
}

TEST(serve, what_is_kept_without_its_sums_waits_for_them)
{
	network net;
	node_shape sums;
	sums.flags = COOP_F_PAGE_TAG;
	node &a = net.add(sums), &b = net.add();
	net.acquaint(a, b);
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(2), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 1u);
	coop_engine_lookup_kept(b.e, b.held[0], ~u64{0}, b.size, 1000 + b.held[0], nullptr,
				net.now);
	net.run();
	EXPECT_EQ(b.rechecks, 1u);
	EXPECT_EQ(a.done[1].good, 3u);
}

// Two attempts of a's one fetch wait for b's pages.
void ask_twice(network &net, node &a, node &b)
{
	net.acquaint(a, b);
	b.hold_lookup = true;
	net.filter = [](node &, auto &m) { return lab::command(m) != COOP_CMD_QUERY; };
	ASSERT_EQ(a.fetch(4), 0);
	while (b.held.size() < 2 && a.done.empty())
		net.run(1000); // ends the first attempt's patience: its QUERYs are lost
	ASSERT_EQ(b.held.size(), 2u);
	b.hold_lookup = false;
	net.filter = nullptr;
}

TEST(serve, a_kept_serve_that_is_superseded_says_nothing)
{
	network net;
	node &a = net.add(), &b = net.add();
	ASSERT_NO_FATAL_FAILURE(ask_twice(net, a, b));
	for (u32 id : b.held)
		coop_engine_lookup_kept(b.e, id, ~u64{0}, b.size, 1000 + id, nullptr, net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(b.stats().commits_tx, 1u);
	EXPECT_EQ(b.served, b.ended);
}

TEST(serve, a_newer_attempt_supersedes_the_older)
{
	network net;
	node &a = net.add(), &b = net.add();
	ASSERT_NO_FATAL_FAILURE(ask_twice(net, a, b));
	for (u32 id : b.held)
		coop_engine_lookup_done(b.e, id, ~u64{0}, b.size, 1000 + id, net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(b.stats().commits_tx, 1u) << "only the newer attempt has a COMMIT";
	EXPECT_EQ(a.stats().segs_stale, 0u) << "and only its segments were sent";
	EXPECT_EQ(b.served, b.ended);
}

TEST(serve, says_busy_when_all_serves_are_taken)
{
	network net;
	node_shape one;
	one.serves = 1;
	node &a = net.add(), &b = net.add(one), &c = net.add();
	const u32 at_a = net.acquaint(a, b);
	net.acquaint(c, b);
	b.hold_lookup = true;
	ASSERT_EQ(c.fetch(4), 0);
	net.settle();
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	EXPECT_EQ(b.stats().serves_busy, 1u);
	EXPECT_EQ(a.peer(at_a).busy, 1u);
	EXPECT_EQ(a.peer(at_a).health, unsigned{COOP_PEER_HEALTHY}) << "busy is no failure";
	b.hold_lookup = false;
	coop_engine_lookup_done(b.e, b.held[0], ~u64{0}, b.size, 1000 + b.held[0], net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, 0) << "asked again after the pause";
	EXPECT_EQ(a.stops, 0u);
}

TEST(serve, a_host_that_cannot_say_what_it_holds_is_asked_again)
{
	network net;
	node &a = net.add(), &b = net.add();
	const u32 at_a = net.acquaint(a, b);
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 1u);
	b.hold_lookup = false;
	coop_engine_lookup_busy(b.e, b.held[0], 1000 + b.held[0]);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(a.peer(at_a).busy, 1u);
	EXPECT_EQ(a.peer(at_a).health, unsigned{COOP_PEER_HEALTHY});
	EXPECT_EQ(b.stats().serves_busy, 1u);
	EXPECT_EQ(b.served, 2u);
	EXPECT_EQ(b.ended, 2u);
	EXPECT_EQ(b.stats().commits_tx, 1u);
}

TEST(serve, a_superseded_request_is_not_told_busy)
{
	network net;
	node &a = net.add(), &b = net.add();
	ASSERT_NO_FATAL_FAILURE(ask_twice(net, a, b));
	coop_engine_lookup_busy(b.e, b.held[0], 1000 + b.held[0]);
	coop_engine_lookup_done(b.e, b.held[1], ~u64{0}, b.size, 1000 + b.held[1], net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(b.stats().serves_busy, 0u);
	EXPECT_EQ(b.served, b.ended);
}

TEST(serve, the_rate_limit_says_busy)
{
	network net;
	node_shape slow;
	slow.serve_bytes_s = 1 << 20;
	slow.fetches = 8;
	node &a = net.add(slow), &b = net.add(slow);
	net.acquaint(a, b);
	u64 pages = 0;
	const u64 start = net.now;
	for (int i = 0; i < 40; ++i) {
		if (a.fetch(64) == 0)
			net.run(100000);
	}
	for (auto &[cookie, r] : a.done)
		pages += r.good ? 64 : 0;
	EXPECT_GT(b.stats().serves_limited, 0u);
	EXPECT_GT(pages, 64u);
	// The bucket's depth and one debt on top of the rate.
	EXPECT_LE(pages * 4096, (net.now - start) * 105 / 100 + 2 * 64 * 4096 + 105000);
}

TEST(serve, nodes_take_turns_and_the_serves_of_one_follow_one_another)
{
	network net;
	node_shape small;
	small.mtu = 512; // 64 pages are 512 segments, eight batches
	node &a = net.add(small), &b = net.add(small), &c = net.add(small);
	net.acquaint(a, b);
	net.acquaint(c, b);
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(64), 0);
	ASSERT_EQ(a.fetch(64), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 2u);
	b.hold_lookup = false;
	b.hold_sends = true;
	std::vector<u32> order;
	const auto sent = [&] {
		net.settle();
		while (!b.sends.empty()) {
			const auto [id, n] = b.sends.front();
			b.sends.pop_front();
			order.push_back(id);
			coop_engine_tx_done(b.e, id, n, 0, net.now);
			net.settle();
		}
	};
	for (u32 id : b.held)
		coop_engine_lookup_done(b.e, id, ~u64{0}, b.size, 1000 + id, net.now);
	sent();
	ASSERT_EQ(order.size(), 16u);
	for (u32 i = 0; i < 16; ++i)
		EXPECT_EQ(order[i], b.held[i / 8]) << i;

	b.held.clear();
	order.clear();
	b.hold_lookup = true;
	net.run();
	ASSERT_EQ(a.fetch(64), 0);
	ASSERT_EQ(c.fetch(64), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 2u);
	for (u32 id : b.held)
		coop_engine_lookup_done(b.e, id, ~u64{0}, b.size, 1000 + id, net.now);
	sent();
	ASSERT_EQ(order.size(), 16u);
	for (u32 i = 1; i < 16; ++i)
		EXPECT_NE(order[i], order[i - 1]) << i;
	b.hold_lookup = b.hold_sends = false;
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(a.done[3].err, 0);
	EXPECT_EQ(c.done[1].err, 0);
}

TEST(serve, sends_nothing_more_when_nobody_waits_any_more)
{
	network net;
	node_shape small;
	small.mtu = 512;
	node &a = net.add(small), &b = net.add(small);
	net.acquaint(a, b);
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(64), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 1u);
	b.hold_sends = true;
	const u32 id = b.held[0];
	coop_engine_lookup_done(b.e, id, ~u64{0}, b.size, 1000 + id, net.now);
	net.now += a.cfg.peer_timeout_us + 1; // before the second batch is pulled
	net.settle();
	EXPECT_EQ(b.sends.size(), 0u);
	b.hold_lookup = b.hold_sends = false;
	net.run();
	EXPECT_EQ(b.stats().commits_tx, 0u);
	EXPECT_EQ(b.served, b.ended);
}

TEST(serve, hands_over_no_more_than_its_depth)
{
	network net;
	node_shape small, shallow;
	small.mtu = 512;
	shallow.serve_depth = 100;
	node &a = net.add(small), &b = net.add(shallow);
	net.acquaint(a, b);
	b.hold_sends = true;
	ASSERT_EQ(a.fetch(64), 0); // 512 segments
	u32 all = 0;
	for (net.settle(); !b.sends.empty(); net.settle()) {
		u32 held = 0;
		for (auto [id, n] : b.sends)
			held += n;
		EXPECT_LE(held, 100u);
		const auto [id, n] = b.sends.front();
		b.sends.pop_front();
		all += n;
		coop_engine_tx_done(b.e, id, n, 0, net.now);
	}
	EXPECT_EQ(all, 512u);
	EXPECT_EQ(a.done[1].good, ~u64{0});
	EXPECT_EQ(b.served, b.ended);
}

TEST(serve, smaller_datagrams_take_no_more_receives_than_there_are)
{
	network net;
	node_shape small, shallow;
	small.mtu = 2048;
	shallow.fetch_depth = 64;
	node &a = net.add(shallow), &b = net.add(small);
	net.acquaint(a, b);
	ASSERT_EQ(a.fetch(64), 0); // as 64 segments, which b refuses; there is no room for 128
	net.run();
	EXPECT_NE(a.done[1].err, 0);
	EXPECT_EQ(b.served, 0u);
	ASSERT_EQ(a.fetch(32), 0);
	net.run();
	EXPECT_EQ(a.done[2].good, ~u32{0});
}

TEST(serve, few_receives_a_slot_take_little_memory)
{
	network net;
	node_shape deep, shallow;
	shallow.fetch_depth = 64;
	node &a = net.add(shallow), &b = net.add(deep);
	net.acquaint(a, b);
	const std::size_t a_slot = 14 * (COOP_MAX_SEGS - shallow.fetch_depth);
	EXPECT_LE(a.memory.size() * 8 + shallow.fetches * a_slot, b.memory.size() * 8);
	ASSERT_EQ(a.fetch(64), 0);
	net.run();
	EXPECT_EQ(a.done[1].good, ~u64{0});
}

TEST(serve, a_requester_whose_budget_is_over_is_not_served)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	net.run(); // a gives up
	EXPECT_NE(a.done[1].err, 0);
	for (u32 id : b.held)
		coop_engine_lookup_done(b.e, id, ~u64{0}, b.size, 0, net.now);
	net.settle();
	EXPECT_EQ(b.stats().commits_tx, 0u);
	EXPECT_EQ(b.ended, b.held.size());
}

TEST(serve, another_page_size_is_refused_by_name)
{
	network net;
	node_shape big;
	big.page_shift = 16;
	node &a = net.add(), &b = net.add(big);
	const u32 id = net.acquaint(a, b);
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	net.run(1000);
	EXPECT_EQ(a.done[1].err, -EIO);
	EXPECT_EQ(a.stats().fetches_refused, 1u);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_OPEN});
}

} // namespace
