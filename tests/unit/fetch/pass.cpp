// SPDX-License-Identifier: MIT
// pass.cpp - requests that a node passes on to the holder of the pages.
#include "tests/unit/fetch/lab.hpp"

namespace
{

using namespace lab;

// a asks b, which lacks the pages and passes the request on to c. All know each other.
struct three {
	network net;
	node &a, &b, &c;
	u32 b_at_a, c_at_a = 0;

	three() : a(net.add()), b(net.add()), c(net.add()), b_at_a(net.acquaint(a, b))
	{
		// c is a peer of a, and no candidate: storage named it for other files.
		c_at_a = static_cast<u32>(
			coop_engine_peer_add(a.e, &c.cfg.self, COOP_PEER_BY_DAEMON, net.now));
		coop_engine_peer_add(c.e, &a.cfg.self, COOP_PEER_BY_DAEMON, net.now);
		net.acquaint(b, c);
		// Its message has told b that c understands.
		b.fetch(1);
		net.settle();
		b.done.clear();
		c.lookups.clear();
		b.have = 0;
		b.holder = b.peer_id(c);
		a.budget_us = 1000000;
	}
};

// Of the kinds, in the order in which they were sent.
std::vector<u8> *record(network &n, std::vector<u8> &out)
{
	n.filter = [&out](node &, std::vector<u8> &m) {
		out.push_back(command(m));
		return true;
	};
	return &out;
}

TEST(pass, the_holder_answers_the_requester)
{
	three t;
	std::vector<u8> sent;
	record(t.net, sent);
	ASSERT_EQ(t.a.fetch(8), 0);
	t.net.settle();
	EXPECT_EQ(t.a.done[1].good, 0xffu);
	EXPECT_EQ(t.a.done[1].peer, t.c_at_a);
	EXPECT_EQ(sent, (std::vector<u8>{COOP_CMD_REQUEST, COOP_CMD_PASSED, COOP_CMD_FORWARD,
					 COOP_CMD_COMMIT}));
	EXPECT_EQ(t.a.stats().passes, 1u);
	EXPECT_EQ(t.a.stats().attempts, 1u);
	EXPECT_EQ(t.b.stats().serves_passed, 1u);
	EXPECT_EQ(t.c.stats().serves_forwarded, 1u);
	EXPECT_EQ(t.a.peer(t.b_at_a).in_flight, 0u);
	EXPECT_EQ(t.a.peer(t.c_at_a).in_flight, 0u);
	EXPECT_EQ(t.a.peer(t.c_at_a).pages, 8u);
	EXPECT_EQ(t.a.peer(t.b_at_a).misses, 8u);
	EXPECT_EQ(t.b.served, t.b.ended);
}

TEST(pass, only_once)
{
	three t;
	t.c.have = 0;
	t.c.holder = t.c.peer_id(t.b);
	ASSERT_EQ(t.a.fetch(8), 0);
	t.net.settle();
	ASSERT_EQ(t.c.lookups.size(), 1u);
	EXPECT_TRUE(t.b.lookups.at(0).may_pass);
	EXPECT_FALSE(t.c.lookups[0].may_pass);
	EXPECT_EQ(t.c.stats().serves_passed, 0u);
	EXPECT_EQ(t.a.done[1].good, 0u);
	EXPECT_EQ(t.a.done[1].err, -ENOENT);
}

TEST(pass, the_budget_travels_with_the_request)
{
	three t;
	t.a.budget_us = 300000;
	t.b.hold_lookup = true;
	t.b.holder = COOP_NONE;
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	ASSERT_EQ(t.b.held.size(), 1u);
	t.net.now += 5000;
	EXPECT_EQ(coop_engine_lookup_pass(t.b.e, t.b.held[0], t.b.peer_id(t.c), 0, t.net.now), 0);
	t.net.settle();
	EXPECT_EQ(t.c.lookups.at(0).budget_us, 295000u);
	EXPECT_EQ(t.a.done[1].good, 0xfu);
}

TEST(pass, every_message_may_be_lost)
{
	for (const u8 which : {COOP_CMD_FORWARD, COOP_CMD_PASSED, COOP_CMD_COMMIT}) {
		three t;
		lose(t.net, which, 1);
		ASSERT_EQ(t.a.fetch(8), 0);
		t.net.run(900000);
		EXPECT_EQ(t.a.done[1].good, 0xffu) << "lost: " << int{which};
		EXPECT_EQ(t.a.peer(t.b_at_a).in_flight + t.a.peer(t.c_at_a).in_flight, 0u);
		EXPECT_EQ(t.a.peer(t.c_at_a).failures, 0u);
	}
}

TEST(pass, a_holder_that_is_dead_costs_one_patience)
{
	three t;
	node &d = t.net.add();
	t.net.acquaint(t.a, d);
	// b comes first only by chance of the hash: make d no candidate before b was asked.
	t.net.filter = [&](node &to, std::vector<u8> &) { return &to != &t.c; };
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a}, 5), 0);
	const u64 began = t.net.now;
	while (t.a.done.empty() && t.net.now < began + 1000000)
		t.net.run(1000);
	EXPECT_EQ(t.a.done[1].good, 0xfu) << "from the other peer";
	EXPECT_LT(t.net.now - began, 2 * t.a.cfg.peer_timeout_us);
	EXPECT_NE(t.a.peer(t.c_at_a).health, u32{COOP_PEER_HEALTHY});
	EXPECT_EQ(t.a.peer(t.b_at_a).health, u32{COOP_PEER_HEALTHY});
}

TEST(pass, not_to_a_node_that_has_not_shown_that_it_understands)
{
	three t;
	node &d = t.net.add();
	t.net.acquaint(t.b, d);
	t.b.holder = t.b.peer_id(d);
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	EXPECT_EQ(t.b.stats().serves_passed, 0u);
	EXPECT_EQ(t.a.done[1].err, -ENOENT);
}

TEST(pass, not_back_to_the_requester)
{
	three t;
	coop_engine_peer_add(t.b.e, &t.a.cfg.self, COOP_PEER_BY_HAND, t.net.now);
	t.b.holder = t.b.peer_id(t.a);
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	EXPECT_EQ(t.b.stats().serves_passed, 0u);
	EXPECT_EQ(t.a.done[1].err, -ENOENT);
}

TEST(pass, a_holder_that_the_requester_does_not_know_is_not_waited_for)
{
	three t;
	coop_engine_peer_del(t.a.e, &t.c.cfg.self, COOP_PEER_BY_DAEMON);
	t.net.mangle = [](std::deque<datagram> &air) { air.clear(); };
	lose(t.net, COOP_CMD_COMMIT, 1);
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	EXPECT_EQ(t.a.stats().passes, 1u);
	t.net.run(20000);
	EXPECT_EQ(t.a.done[1].err, -ENOENT);
}

// The holder answers only peers, so that a FORWARD cannot aim at a node outside the cluster.
TEST(pass, a_node_is_no_reflector)
{
	three t;
	node &stranger = t.net.add(), &liar = t.net.add();
	std::vector<u8> forward;
	t.net.filter = [&](node &, std::vector<u8> &m) {
		if (command(m) == COOP_CMD_FORWARD)
			forward = m;
		return command(m) != COOP_CMD_FORWARD;
	};
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	t.net.filter = nullptr;
	ASSERT_FALSE(forward.empty());
	t.c.ctrl(forward, liar.cfg.self);
	t.net.settle();
	EXPECT_TRUE(t.c.lookups.empty()) << "passed on by a node that is no peer";

	std::array<u8, 16> key{};
	coop_msg m{};
	ASSERT_EQ(
		coop_wire_decode(&m, key.data(), forward.data(), static_cast<u32>(forward.size())),
		COOP_DECODE_OK);
	const auto send = [&](const coop_msg &what) {
		std::vector<u8> out(COOP_CTRL_MAX);
		out.resize(coop_wire_encode(&what, key.data(), out.data(), COOP_CTRL_MAX));
		t.c.ctrl(out, t.b.cfg.self);
		t.net.settle();
	};
	coop_msg other = m;
	other.u.request.reply = stranger.cfg.self;
	send(other);
	other = m;
	std::memcpy(other.u.request.data.gid, stranger.cfg.self.gid, 16);
	send(other);
	EXPECT_TRUE(t.c.lookups.empty());
	other = m;
	other.u.request.data = other.u.request.reply;
	send(other);
	other = m;
	other.u.request.attempt = 255;
	send(other);
	EXPECT_TRUE(t.c.lookups.empty());
	EXPECT_EQ(t.c.stats().forwards_refused, 5u);
	send(m);
	EXPECT_EQ(t.c.lookups.size(), 1u);
}

TEST(pass, a_query_finds_where_the_request_went)
{
	three t;
	t.a.budget_us = 0; // the peer timeout
	lose(t.net, COOP_CMD_PASSED, 1);
	t.c.hold_lookup = true;
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.run(20000);
	EXPECT_GT(t.a.stats().queries, 0u);
	EXPECT_EQ(t.a.stats().passes, 1u);
	EXPECT_EQ(t.a.stats().attempts, 1u);
	ASSERT_EQ(t.c.held.size(), 1u);
	coop_engine_lookup_done(t.c.e, t.c.held[0], ~u64{0}, 1 << 30, 1000 + t.c.held[0],
				t.net.now);
	t.net.settle();
	EXPECT_EQ(t.a.done[1].good, 0xfu);
}

// The holder is none of the requester's parents, and another parent could be asked.
TEST(pass, a_request_may_wait_at_the_holder)
{
	three t;
	node &d = t.net.add();
	const u32 d_at_a = t.net.acquaint(t.a, d);
	t.c.have = 0;
	t.c.coming = ~u64{0};
	ASSERT_EQ(t.a.fetch_from(4, {t.b_at_a, d_at_a}, 5), 0);
	t.net.run(200000);
	EXPECT_TRUE(t.a.done.empty());
	EXPECT_EQ(t.a.stats().attempts, 1u);
	EXPECT_EQ(t.c.lookups.at(0).level, 5u);
	coop_engine_lookup_more(t.c.e, t.c.lookups[0].id, ~u64{0}, 0, t.net.now);
	t.net.settle();
	EXPECT_EQ(t.a.done[1].good, 0xfu);
	EXPECT_EQ(d.stats().serves, 0u);
}

TEST(pass, what_a_stranger_asks_for_is_not_passed_on)
{
	three t;
	coop_engine_peer_del(t.b.e, &t.a.cfg.self, COOP_PEER_BY_DAEMON);
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	EXPECT_EQ(t.b.stats().serves_passed, 0u);
	EXPECT_EQ(t.a.done[1].err, -ENOENT);
}

// A later attempt takes the record of one whose FORWARD waits to be sent.
TEST(pass, a_later_attempt_supersedes_one_that_is_being_passed_on)
{
	three t;
	t.b.hold_lookup = true;
	t.b.holder = COOP_NONE;
	std::vector<u8> first;
	t.net.filter = [&](node &to, std::vector<u8> &m) {
		if (&to == &t.b && command(m) == COOP_CMD_REQUEST && first.empty())
			first = m;
		return true;
	};
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	ASSERT_EQ(t.b.held.size(), 1u);
	ASSERT_EQ(coop_engine_lookup_pass(t.b.e, t.b.held[0], t.b.peer_id(t.c), 0, t.net.now), 0);
	coop_tx tx;
	ASSERT_TRUE(coop_engine_next_tx(t.b.e, t.net.now, &tx)) << "PASSED";
	ASSERT_EQ(tx.buf[5], COOP_CMD_PASSED);
	std::array<u8, 16> key{};
	coop_msg m{};
	ASSERT_EQ(coop_wire_decode(&m, key.data(), first.data(), static_cast<u32>(first.size())),
		  COOP_DECODE_OK);
	m.imm += 1u << 10;
	m.u.request.attempt++;
	std::vector<u8> second(COOP_CTRL_MAX);
	second.resize(coop_wire_encode(&m, key.data(), second.data(), COOP_CTRL_MAX));
	t.b.ctrl(second, t.a.cfg.self);
	while (coop_engine_next_tx(t.b.e, t.net.now, &tx))
		EXPECT_NE(tx.buf[5], COOP_CMD_FORWARD);
	t.b.pump();
	EXPECT_EQ(t.b.lookups.size(), 2u) << "it is served like any other";
	EXPECT_EQ(t.b.stats().serves_passed, 0u);
}

TEST(pass, the_peer_may_leave_before_the_message_goes)
{
	three t;
	t.b.hold_lookup = true;
	t.b.holder = COOP_NONE;
	ASSERT_EQ(t.a.fetch(4), 0);
	t.net.settle();
	ASSERT_EQ(t.b.held.size(), 1u);
	ASSERT_EQ(coop_engine_lookup_pass(t.b.e, t.b.held[0], t.b.peer_id(t.c), 0, t.net.now), 0);
	coop_engine_peer_del(t.b.e, &t.c.cfg.self, COOP_PEER_BY_DAEMON);
	coop_engine_peer_del(t.b.e, &t.c.cfg.self, COOP_PEER_BY_HAND);
	t.net.settle();
	EXPECT_EQ(t.a.done[1].err, -ENOENT);
	EXPECT_EQ(t.b.stats().commits_tx, 1u);
}

} // namespace
