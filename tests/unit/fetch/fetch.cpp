// SPDX-License-Identifier: MIT
// fetch.cpp - a fetch under every fault of the network: past, in-order, duplicate,
// future and wrong-generation segments, lost and late messages.
#include "tests/unit/fetch/lab.hpp"

#include <algorithm>

namespace
{

using namespace lab;

struct accident {
	const char *name;
	u32 pages;
	node_shape shape;
	std::function<void(network &)> arrange;
	std::function<void(node &)> expect;
};

node_shape small_mtu(u32 mtu, u32 flags = 0)
{
	node_shape s;
	s.mtu = mtu;
	s.flags = flags;
	return s;
}

const std::vector<accident> accidents = {
	{"nothing",
	 64,
	 {},
	 [](network &) {},
	 [](node &a) {
		 EXPECT_EQ(a.stops + a.resets, 0u) << "rule 3";
		 EXPECT_EQ(a.stats().attempts, 1u);
		 EXPECT_TRUE(a.verifies.empty());
	 }},
	{"one segment lost",
	 8,
	 {},
	 [](network &n) { once(n, [](auto &air) { air.erase(air.begin() + 3); }); },
	 [](node &a) {
		 EXPECT_EQ(a.stops, 1u);
		 EXPECT_EQ(a.resets, 1u);
		 EXPECT_EQ(a.stats().segs_displaced, 4u);
		 EXPECT_EQ(a.stats().attempts, 2u);
		 EXPECT_EQ(a.stats().window_shrinks, 1u);
	 }},
	{"all segments lost",
	 8,
	 {},
	 [](network &n) { once(n, [](auto &air) { air.clear(); }); },
	 [](node &a) { EXPECT_EQ(a.stats().attempts, 2u); }},
	{"one segment doubled",
	 8,
	 {},
	 [](network &n) { once(n, [](auto &air) { air.insert(air.begin() + 2, air[2]); }); },
	 [](node &a) {
		 EXPECT_EQ(a.stats().segs_dup, 1u);
		 EXPECT_EQ(a.stops, 0u) << "every WR completed";
	 }},
	{"reversed",
	 16,
	 {},
	 [](network &n) { once(n, [](auto &air) { std::reverse(air.begin(), air.end()); }); },
	 [](node &a) {
		 EXPECT_EQ(a.stats().segs_displaced, 16u);
		 EXPECT_EQ(a.stats().attempts, 1u);
		 ASSERT_EQ(a.verifies.size(), 1u);
		 EXPECT_EQ(a.verifies[0], 16u);
	 }},
	{"rotated", 5, small_mtu(1500),
	 [](network &n) {
		 once(n, [](auto &air) { std::rotate(air.begin(), air.begin() + 1, air.end()); });
	 },
	 [](node &a) { EXPECT_GE(a.stats().attempts, 2u) << "long segments fell into short WRs"; }},
	{"past generation",
	 4,
	 {},
	 [](network &n) {
		 once(n, [](auto &air) {
			 air.push_front(air[0]);
			 air[0].imm -= 4;
		 });
	 },
	 [](node &a) { EXPECT_EQ(a.stats().segs_stale, 1u); }},
	{"future generation",
	 4,
	 {},
	 [](network &n) {
		 once(n, [](auto &air) {
			 air.push_front(air[0]);
			 air[0].imm += 4;
		 });
	 },
	 [](node &a) { EXPECT_EQ(a.stats().segs_stale, 1u); }},
	{"no immediate data",
	 4,
	 {},
	 [](network &n) { once(n, [](auto &air) { air[1].has_imm = false; }); },
	 [](node &a) { EXPECT_EQ(a.stats().segs_bad, 1u); }},
	{"a forger's segment in front",
	 4,
	 {},
	 [](network &n) {
		 once(n, [](auto &air) {
			 air.push_front(air[0]);
			 air[0].src_qp ^= 1;
			 air[0].payload.assign(air[0].payload.size(), 0x66);
		 });
	 },
	 [](node &a) { EXPECT_GE(a.stats().segs_foreign, 1u); }},
	{"a segment from another node",
	 4,
	 {},
	 [](network &n) { once(n, [](auto &air) { air[2].src_gid[7] = 1; }); },
	 [](node &a) { EXPECT_EQ(a.stats().segs_foreign, 1u); }},
	{"a pad where data was promised",
	 4,
	 {},
	 [](network &n) { once(n, [](auto &air) { air[2].payload.clear(); }); },
	 [](node &a) { EXPECT_EQ(a.stats().pads_rx, 1u); }},
	{"REQUEST lost",
	 8,
	 {},
	 [](network &n) { lose(n, COOP_CMD_REQUEST, 1); },
	 [](node &a) {
		 EXPECT_EQ(a.stops, 0u) << "unused WRs serve the next attempt";
		 EXPECT_EQ(a.posts, 1u);
		 EXPECT_EQ(a.stats().attempts, 2u);
	 }},
	{"COMMIT lost",
	 8,
	 {},
	 [](network &n) { lose(n, COOP_CMD_COMMIT, 1); },
	 [](node &a) {
		 EXPECT_EQ(a.stats().queries, 1u);
		 EXPECT_EQ(a.stats().attempts, 1u);
		 EXPECT_EQ(a.stops, 0u);
	 }},
	{"COMMIT lost, segment lost",
	 8,
	 {},
	 [](network &n) {
		 lose(n, COOP_CMD_COMMIT, 1);
		 once(n, [](auto &air) { air.pop_back(); });
	 },
	 [](node &a) { EXPECT_GE(a.stats().queries, 1u); }},
	{"packed layout", 5, small_mtu(1500, COOP_F_PACKED), [](network &) {},
	 [](node &a) { EXPECT_EQ(a.stats().segs_rx, (5u * 4096 + 1499) / 1500); }},
	{"packed, one lost", 5, small_mtu(1500, COOP_F_PACKED),
	 [](network &n) { once(n, [](auto &air) { air.erase(air.begin() + 2); }); },
	 [](node &a) { EXPECT_EQ(a.stats().attempts, 2u); }},
	{"with CRC, reversed", 6, small_mtu(2048, COOP_F_PAGE_CRC),
	 [](network &n) { once(n, [](auto &air) { std::reverse(air.begin(), air.end()); }); },
	 [](node &a) { EXPECT_EQ(a.stats().crc_bad, 0u); }},
	{"with tags, reversed", 6, small_mtu(2048, COOP_F_PAGE_TAG),
	 [](network &n) { once(n, [](auto &air) { std::reverse(air.begin(), air.end()); }); },
	 [](node &a) { EXPECT_EQ(a.stats().tag_bad, 0u); }},
	{"with tags, one lost: the second COMMIT speaks for the page", 6,
	 small_mtu(2048, COOP_F_PAGE_TAG),
	 [](network &n) { once(n, [](auto &air) { air.erase(air.begin() + 4); }); },
	 [](node &a) {
		 EXPECT_EQ(a.stats().attempts, 2u);
		 EXPECT_EQ(a.stats().tag_bad, 0u);
	 }},
	{"with tags, packed", 5, small_mtu(1500, COOP_F_PACKED | COOP_F_PAGE_TAG), [](network &) {},
	 [](node &a) { EXPECT_EQ(a.stats().attempts, 1u); }},
	{"with tags at the smallest MTU", 26, small_mtu(256, COOP_F_PAGE_TAG), [](network &) {},
	 [](node &a) { EXPECT_EQ(a.stats().attempts, 1u); }},
	{"with CRC, a damaged segment", 6, small_mtu(2048, COOP_F_PAGE_CRC),
	 [](network &n) { once(n, [](auto &air) { air[5].payload[9] ^= 4; }); }, nullptr},
};

class fetch : public testing::TestWithParam<std::size_t>
{
};

TEST_P(fetch, accident)
{
	const accident &x = accidents[GetParam()];
	SCOPED_TRACE(x.name);
	network net;
	node &a = net.add(x.shape), &b = net.add(x.shape), &c = net.add(x.shape);
	net.acquaint(a, b);
	x.arrange(net);
	ASSERT_EQ(a.fetch(x.pages), 0);
	if (!x.expect) // the first peer is barred: add a second one
		net.acquaint(a, c);
	net.run();
	ASSERT_EQ(a.done.size(), 1u);
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(a.done[1].good, x.pages == 64 ? ~u64{0} : (u64{1} << x.pages) - 1);
	EXPECT_EQ(b.served, b.ended);
	EXPECT_EQ(a.stats().invited_bytes, 0u);
	if (x.expect)
		x.expect(a);
	// The queue pair serves the next fetch as usual.
	net.mangle = nullptr;
	net.filter = nullptr;
	ASSERT_EQ(a.fetch(x.pages), 0);
	net.run();
	EXPECT_EQ(a.done[2].err, 0);
}

INSTANTIATE_TEST_SUITE_P(table, fetch, testing::Range<std::size_t>(0, accidents.size()),
			 [](const auto &info) {
				 std::string s = accidents[info.param].name;
				 for (char &ch : s)
					 ch = std::isalnum(static_cast<unsigned char>(ch)) ? ch
											   : '_';
				 return s;
			 });

TEST(fetch_peers, what_one_lacks_the_next_is_asked_for)
{
	network net;
	node &a = net.add(), &b = net.add(), &c = net.add();
	net.acquaint(a, b);
	net.acquaint(a, c);
	b.have = 0x0f;
	c.have = 0xf0;
	ASSERT_EQ(a.fetch(8), 0);
	net.run();
	EXPECT_EQ(a.done[1].good, 0xffu);
	EXPECT_EQ(a.stops, 0u) << "pads consume the WRs of the pages that a peer lacks";
	EXPECT_EQ(a.stats().attempts, 2u);
}

TEST(fetch_peers, all_lack_it)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	b.have = 0b101;
	ASSERT_EQ(a.fetch(4), 0);
	net.run();
	EXPECT_EQ(a.done[1].good, 0b101u);
	EXPECT_EQ(a.done[1].err, -ENOENT);
}

TEST(fetch_peers, pages_that_changed_while_they_were_sent_are_not_listed)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	b.still = ~u64{0b10};
	ASSERT_EQ(a.fetch(4), 0);
	net.run();
	EXPECT_EQ(a.done[1].good, 0b1101u);
	EXPECT_EQ(b.stats().serve_changed, 1u);
}

TEST(fetch_peers, a_dead_one_costs_one_deadline_then_none)
{
	network net;
	node &a = net.add(), &b = net.add();
	const u32 id = net.acquaint(a, b);
	net.filter = [&](node &to, auto &) { return &to != &b; };
	const u64 start = net.now;
	ASSERT_EQ(a.fetch(4), 0);
	while (a.done.empty() && net.now < start + 1000000)
		net.run(1000);
	EXPECT_LE(net.now - start, a.cfg.peer_timeout_us + 1000);
	EXPECT_EQ(a.done[1].err, -ETIMEDOUT);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_OPEN});
	EXPECT_EQ(a.fetch(4), -ENOENT) << "asked while its circuit is open";
	// It comes back: a PING finds out, and no reader waits for it.
	net.filter = nullptr;
	net.run(60000000);
	EXPECT_EQ(a.fetch(4), 0);
	net.run();
	EXPECT_EQ(a.done[2].err, 0);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_HEALTHY});
}

TEST(fetch_peers, a_pause_is_over_with_the_first_word)
{
	network net;
	node_shape shape;
	shape.fetches = 8;
	node &a = net.add(shape), &b = net.add(shape);
	const u32 id = net.acquaint(a, b);
	net.acquaint(b, a);
	net.filter = [&](node &to, auto &) { return &to != &b; };
	for (int i = 0; i < 8; ++i)
		ASSERT_EQ(a.fetch(4), 0);
	while (a.peer(id).health != COOP_PEER_OPEN)
		net.run(100);
	ASSERT_EQ(a.done.size(), 8u);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_OPEN});
	EXPECT_EQ(a.fetch(4), -ENOENT);
	// It continues its own work and sends us a REQUEST.
	net.filter = nullptr;
	ASSERT_EQ(b.fetch(4), 0);
	net.run(1000);
	ASSERT_EQ(a.fetch(4), 0) << "its circuit is still open";
	net.run(1000);
	EXPECT_EQ(a.done[9].err, 0);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_HEALTHY});
}

// A QUERY asks a slow peer whether it is still serving, so it need not serve or send
// twice.
TEST(fetch_peers, a_slow_one_serves_once)
{
	network net;
	node &a = net.add(), &b = net.add();
	const u32 id = net.acquaint(a, b);
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.run(a.cfg.peer_timeout_us * 8 / 10);
	ASSERT_EQ(b.held.size(), 1u);
	EXPECT_GT(a.stats().queries, 0u);
	EXPECT_LT(a.stats().queries, 8u);
	coop_engine_lookup_done(b.e, b.held[0], ~u64{0}, b.size, 1000 + b.held[0], net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(a.stats().attempts, 1u);
	EXPECT_EQ(a.stats().segs_stale + a.stats().segs_displaced, 0u);
	EXPECT_EQ(b.served, 1u);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_HEALTHY});
}

// a's REQUEST arrives while b serves c, for as long as the test wants.
void ask_a_busy_one(network &net, node &a, node &b, node &c)
{
	net.acquaint(a, b);
	net.acquaint(c, b);
	b.hold_lookup = true;
	ASSERT_EQ(c.fetch(4), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 1u);
	ASSERT_EQ(a.fetch(4), 0);
}

TEST(fetch_peers, a_busy_one_is_waited_for_a_while)
{
	network net;
	node_shape one;
	one.serves = 1;
	node &a = net.add(), &b = net.add(one), &c = net.add();
	ASSERT_NO_FATAL_FAILURE(ask_a_busy_one(net, a, b, c));
	net.run(a.cfg.peer_timeout_us / 5);
	EXPECT_TRUE(a.done.empty());
	EXPECT_LT(b.stats().serves_busy, 4u) << "the pauses grow";
	b.hold_lookup = false;
	coop_engine_lookup_done(b.e, b.held[0], ~u64{0}, b.size, 1000 + b.held[0], net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
}

TEST(fetch_peers, one_that_stays_busy_does_not_cost_the_whole_budget)
{
	network net;
	node_shape one;
	one.serves = 1;
	node &a = net.add(), &b = net.add(one), &c = net.add();
	ASSERT_NO_FATAL_FAILURE(ask_a_busy_one(net, a, b, c));
	const u64 start = net.now;
	while (a.done.empty())
		net.run(100);
	EXPECT_EQ(a.done[1].err, -EBUSY);
	EXPECT_LE(net.now - start, a.cfg.peer_timeout_us / 4 + 1000);
}

TEST(fetch_peers, what_a_slow_one_was_asked_for_is_asked_of_one_that_is_busy_no_more)
{
	network net;
	node_shape one;
	one.serves = 1;
	node &a = net.add(), &b = net.add(one), &c = net.add(), &slow = net.add();
	ASSERT_NO_FATAL_FAILURE(ask_a_busy_one(net, a, b, c));
	net.settle(); // b refuses: busy
	ASSERT_EQ(b.stats().serves_busy, 1u);
	slow.hold_lookup = true;
	net.acquaint(a, slow);
	coop_engine_lookup_done(b.e, b.held[0], ~u64{0}, b.size, 1000 + b.held[0], net.now);
	b.hold_lookup = false;
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(a.done[1].good, 0xfu);
}

TEST(fetch_peers, silence_is_counted_once_an_attempt_and_not_after_an_answer)
{
	network net;
	node &a = net.add(), &b = net.add();
	const u32 id = net.acquaint(a, b);
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.run(a.cfg.peer_timeout_us * 8 / 10);
	EXPECT_GE(a.stats().queries, 2u) << "answered with AGAIN";
	EXPECT_EQ(a.peer(id).failures, 1u);
	coop_engine_lookup_done(b.e, b.held[0], ~u64{0}, b.size, 1000 + b.held[0], net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(a.peer(id).failures, 1u);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_HEALTHY});
}

TEST(fetch_peers, what_was_lost_before_does_not_make_it_wait_longer)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	ASSERT_EQ(a.fetch(4), 0);
	net.run();
	once(net, [](auto &air) { air.pop_back(); });
	net.filter = [n = 0](node &, auto &m) mutable {
		return command(m) != COOP_CMD_REQUEST || ++n != 2;
	};
	ASSERT_EQ(a.fetch(4), 0);
	net.run(a.cfg.peer_timeout_us / 8 * 3 / 2);
	ASSERT_EQ(a.done.count(2), 1u) << "the first attempt was answered";
	EXPECT_EQ(a.done[2].err, 0);
	EXPECT_EQ(a.stats().attempts, 4u);
}

// A late answer does not tell which message it answers.
TEST(fetch_peers, an_answer_to_a_question_is_no_measure_of_the_round_trip)
{
	network net;
	node &a = net.add(), &b = net.add();
	const u32 id = net.acquaint(a, b);
	ASSERT_EQ(a.fetch(4), 0);
	net.run();
	const u32 srtt = a.peer(id).srtt_us;
	once(net, [](auto &air) { air.clear(); });
	lose(net, COOP_CMD_COMMIT, 1);
	ASSERT_EQ(a.fetch(4), 0);
	net.run();
	EXPECT_EQ(a.done[2].err, 0);
	EXPECT_GT(a.stats().queries, 0u);
	EXPECT_LE(a.peer(id).srtt_us, srtt + 1);
}

TEST(fetch_peers, one_that_serves_others_of_ours_is_not_asked_anew)
{
	network net;
	node &a = net.add(), &b = net.add();
	const u32 id = net.acquaint(a, b);
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 1u);
	// QUERYs about the first fetch do not arrive; the data of other fetches do.
	net.filter = [&](node &to, auto &m) { return &to != &b || command(m) != COOP_CMD_QUERY; };
	const u32 others = 8;
	for (u32 i = 1; i <= others; i++) {
		ASSERT_EQ(a.fetch(1), 0);
		net.settle();
		ASSERT_EQ(b.held.size(), 1u + i);
		coop_engine_lookup_done(b.e, b.held[i], ~u64{0}, b.size, 1000 + b.held[i], net.now);
		net.run(a.cfg.peer_timeout_us / 10);
		ASSERT_EQ(a.done[1 + i].err, 0);
	}
	EXPECT_EQ(a.stats().attempts, 1u + others);
	EXPECT_EQ(a.peer(id).health, COOP_PEER_HEALTHY);
	coop_engine_lookup_done(b.e, b.held[0], ~u64{0}, b.size, 1000 + b.held[0], net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(a.stats().attempts, 1u + others);
}

// Both attempts reach a busy peer, and data of the first fill the second's WRs.
TEST(fetch_peers, late_data_of_the_attempt_before_are_no_failure)
{
	network net;
	node_shape shape;
	shape.fetches = shape.serves = 8;
	node &a = net.add(shape), &b = net.add(shape);
	const u32 id = net.acquaint(a, b);
	net.mangle = [&](std::deque<datagram> &air) {
		for (datagram &d : air)
			d.imm -= 64;
		if (b.served == 6)
			net.mangle = nullptr;
	};
	for (int i = 0; i < 6; ++i)
		ASSERT_EQ(a.fetch(4), 0);
	net.run();
	EXPECT_EQ(a.stats().peer_down, 0u);
	EXPECT_EQ(a.stats().segs_stale, 24u);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_HEALTHY});
	for (u64 i = 1; i <= 6; ++i)
		EXPECT_EQ(a.done[i].good, 0xfu);
}

TEST(fetch_peers, failures_at_the_same_time_are_one)
{
	network net;
	node_shape shape;
	shape.fetches = shape.serves = 8;
	node &a = net.add(shape), &b = net.add(shape);
	const u32 id = net.acquaint(a, b);
	net.mangle = [&](std::deque<datagram> &air) {
		air.clear();
		if (b.served == 6)
			net.mangle = nullptr;
	};
	for (int i = 0; i < 6; ++i)
		ASSERT_EQ(a.fetch(4), 0);
	net.run();
	EXPECT_EQ(a.peer(id).failures, 6u);
	EXPECT_EQ(a.stats().peer_down, 0u);
	for (u64 i = 1; i <= 6; ++i)
		EXPECT_EQ(a.done[i].good, 0xfu);
}

// Messages pass but data do not, as on a path with less than the MTU.
TEST(fetch_peers, one_whose_data_never_come_is_left_alone)
{
	network net;
	node &a = net.add(), &b = net.add();
	const u32 id = net.acquaint(a, b);
	net.mangle = [](std::deque<datagram> &air) { air.clear(); };
	for (u64 i = 1; i <= 4 && a.peer(id).health != COOP_PEER_OPEN; ++i) {
		ASSERT_EQ(a.fetch(4), 0);
		while (!a.done.contains(i))
			net.run(100);
	}
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_OPEN});
}

TEST(fetch_peers, wrong_size_is_a_lie)
{
	network net;
	node &a = net.add(), &b = net.add();
	const u32 id = net.acquaint(a, b);
	b.size = 1;
	ASSERT_EQ(a.fetch(2), 0);
	net.run(60000);
	EXPECT_EQ(a.done[1].good, 0u);
	EXPECT_EQ(a.stats().commits_bad, 1u);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_OPEN});
}

TEST(fetch_peers, bad_crc_bars_the_peer_and_keeps_nothing)
{
	network net;
	node &a = net.add(small_mtu(2048, COOP_F_PAGE_CRC)), &b = net.add(small_mtu(2048));
	net.acquaint(a, b);
	b.spoil_sums = true;
	ASSERT_EQ(a.fetch(3), 0);
	net.run(60000);
	EXPECT_EQ(a.done[1].good, 0u);
	EXPECT_EQ(a.done[1].err, -EIO);
	EXPECT_EQ(a.stats().crc_bad, 3u);
}

TEST(fetch_peers, a_smaller_mtu_at_the_peer_is_learned)
{
	network net;
	node &a = net.add(small_mtu(4096)), &b = net.add(small_mtu(1024));
	net.acquaint(a, b);
	ASSERT_EQ(a.fetch(4), 0);
	net.run();
	EXPECT_EQ(a.done[1].err, 0);
	EXPECT_EQ(a.stats().segs_rx, 16u);
}

TEST(fetch_host, what_is_late_waits_for_what_has_arrived)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	net.filter = [&](node &to, auto &) { return &to != &b; };
	EXPECT_FALSE(coop_engine_overdue(a.e, true, ~0ull - 1)) << "there is no deadline";
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	const u64 due = coop_engine_deadline(a.e);
	EXPECT_FALSE(coop_engine_overdue(a.e, true, due - 1));
	EXPECT_TRUE(coop_engine_overdue(a.e, true, due));
	EXPECT_FALSE(coop_engine_overdue(a.e, false, due + 19999));
	EXPECT_TRUE(coop_engine_overdue(a.e, false, due + 20000));
	coop_engine_tune(a.e, 10000000, 0, net.now);
	EXPECT_FALSE(coop_engine_overdue(a.e, false, due + 999999));
	EXPECT_TRUE(coop_engine_overdue(a.e, false, due + 1000000));
}

TEST(fetch_host, cancel_comes_back_after_quiesce)
{
	network net;
	node &a = net.add(), &b = net.add();
	net.acquaint(a, b);
	b.hold_lookup = true;
	u32 id;
	ASSERT_EQ(a.fetch(4, &id), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 1u);
	ASSERT_EQ(coop_engine_cancel(a.e, id, net.now), 0);
	net.settle();
	EXPECT_EQ(a.done[1].err, -ECANCELED);
	EXPECT_EQ(a.stops, 1u);
	EXPECT_EQ(a.resets, 1u);
	EXPECT_EQ(coop_engine_cancel(a.e, id, net.now), -ENOENT);
}

TEST(fetch_host, the_queue_and_the_window_are_bounded)
{
	network net;
	node_shape s;
	s.window = 4 * 4096;
	node &a = net.add(s), &b = net.add(s);
	net.acquaint(a, b);
	b.hold_lookup = true;
	for (int i = 0; i < 4; ++i)
		ASSERT_EQ(a.fetch(4), 0);
	EXPECT_EQ(a.fetch(4), -EAGAIN);
	net.settle();
	EXPECT_EQ(a.posts, 1u) << "the window admits one fetch";
	EXPECT_EQ(a.stats().invited_bytes, 4u * 4096);
	net.run();
	EXPECT_EQ(a.done.size(), 4u) << "no fetch waits forever";
}

TEST(fetch_host, refuses_nonsense)
{
	network net;
	node &a = net.add(), &b = net.add();
	EXPECT_EQ(a.fetch(4), -ENOENT) << "no peer";
	net.acquaint(a, b);
	EXPECT_EQ(a.fetch(0), -EINVAL);
	EXPECT_EQ(a.fetch(65), -EINVAL);
	EXPECT_EQ(a.fetch(1, nullptr, 0), -EINVAL) << "version 0 has no content";
	a.budget_us = COOP_BUDGET_MOST_US + 1;
	EXPECT_EQ(a.fetch(1), -EINVAL);
	a.budget_us = 0;
	EXPECT_EQ(coop_engine_peer_add(a.e, &a.cfg.self, COOP_PEER_BY_HAND, 0), -EINVAL);
	coop_engine_cfg cfg = a.cfg;
	cfg.mtu = 4098;
	EXPECT_EQ(coop_engine_size(&cfg), 0u);
}

} // namespace
