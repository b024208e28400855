// SPDX-License-Identifier: MIT
// rekey.cpp - a new fabric key while fetches and serves are under way, and nodes that get it one
// after the other.
#include "tests/unit/fetch/lab.hpp"

namespace
{

using namespace lab;

class rekey : public testing::Test
{
protected:
	rekey() : a(net.add(shape())), b(net.add(shape())), id(net.acquaint(a, b)) {}
	static node_shape shape()
	{
		node_shape s;
		s.flags = COOP_F_PAGE_TAG;
		return s;
	}
	void take(node &n, u8 number)
	{
		std::fill(std::begin(n.cfg.key), std::end(n.cfg.key), number);
		coop_engine_rekey(n.e, n.cfg.key, net.now);
	}
	void take(u8 number)
	{
		take(a, number);
		take(b, number);
	}
	void expect_unblamed()
	{
		EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_HEALTHY});
		EXPECT_EQ(a.peer(id).fails_in_row, 0u);
		EXPECT_EQ(a.peer(id).in_flight, 0u);
	}
	network net;
	node &a, &b;
	u32 id;
};

TEST_F(rekey, messages_of_the_old_key_are_nothing)
{
	std::vector<u8> request, commit;
	net.filter = [&](node &, std::vector<u8> &m) {
		(command(m) == COOP_CMD_REQUEST ? request : commit) = m;
		return true;
	};
	ASSERT_EQ(a.fetch(4), 0);
	net.run();
	ASSERT_EQ(a.done[1].good, 0b1111u);
	take(1);
	b.ctrl(request, a.cfg.self);
	a.ctrl(commit, b.cfg.self);
	net.settle();
	EXPECT_EQ(b.stats().ctrl_mac, 1u);
	EXPECT_EQ(a.stats().ctrl_mac, 1u);
	EXPECT_EQ(b.served, 1u);
	ASSERT_EQ(a.fetch(4), 0);
	net.run();
	EXPECT_EQ(a.done[2].good, 0b1111u) << "tags are of the new key too";
	EXPECT_EQ(b.served, 2u);
}

TEST_F(rekey, the_same_key_ends_nothing)
{
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	coop_engine_rekey(a.e, a.cfg.key, net.now);
	coop_engine_rekey(b.e, b.cfg.key, net.now);
	net.settle();
	EXPECT_TRUE(a.done.empty());
	EXPECT_EQ(b.ended, 0u);
}

TEST_F(rekey, a_fetch_ends_at_once_and_blames_nobody)
{
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	ASSERT_TRUE(a.done.empty());
	const u64 begun = net.now;
	take(a, 1);
	net.settle();
	ASSERT_EQ(a.done.count(1), 1u);
	EXPECT_EQ(a.done[1].err, -ECANCELED);
	EXPECT_EQ(net.now, begun) << "it waited for no deadline";
	expect_unblamed();
}

// In every state of a serve.
TEST_F(rekey, a_serve_ends_without_a_commit)
{
	b.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	b.hold_lookup = false;
	b.hold_sends = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	ASSERT_EQ(b.held.size(), 1u);
	ASSERT_EQ(b.sends.size(), 1u);
	take(1);
	coop_engine_lookup_kept(b.e, b.held.front(), b.have, b.size, 1000 + b.held.front(), nullptr,
				net.now);
	coop_engine_tx_done(b.e, b.sends.front().first, b.sends.front().second, 0, net.now);
	net.run();
	EXPECT_EQ(b.ended, 2u);
	EXPECT_EQ(b.stats().commits_tx, 0u);
	expect_unblamed();
}

TEST_F(rekey, a_wait_at_a_parent_ends)
{
	b.have = 0;
	b.coming = 0b1111;
	ASSERT_EQ(a.fetch_from(4, {id}, 5), 0);
	net.settle();
	ASSERT_EQ(b.stats().serves_waiting, 1u);
	ASSERT_TRUE(a.done.empty());
	take(1);
	net.settle();
	EXPECT_EQ(a.done.count(1), 1u);
	EXPECT_EQ(b.ended, 1u);
	EXPECT_EQ(b.stats().serves_waiting, 0u);
	expect_unblamed();
}

// Its COMMIT came under the old key, the last of its data after the new one.
TEST_F(rekey, old_tags_accuse_nobody)
{
	once(net, [](auto &air) { air.pop_back(); }); // so that it waits for one datagram
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	ASSERT_TRUE(a.done.empty());
	take(1);
	net.run();
	ASSERT_EQ(a.done.count(1), 1u);
	EXPECT_EQ(a.done[1].good, 0u) << "no tag of the old key proves a page";
	EXPECT_EQ(a.stats().tag_bad, 0u);
	expect_unblamed();
}

TEST_F(rekey, what_waits_for_a_slot_is_asked_for_with_the_new_key)
{
	b.hold_lookup = true;
	for (u32 i = 0; i < a.cfg.max_fetches + 1; i++)
		ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	b.hold_lookup = false;
	take(1);
	for (const u32 held : b.held)
		coop_engine_lookup_done(b.e, held, b.have, b.size, 1000 + held, net.now);
	net.run();
	EXPECT_EQ(a.done[1].err, -ECANCELED);
	EXPECT_EQ(a.done[2].err, -ECANCELED);
	EXPECT_EQ(a.done[3].good, 0b1111u);
}

// Between the two, the peer is silent; that does not outlast its new key.
TEST_F(rekey, nodes_may_get_the_key_one_after_the_other)
{
	take(b, 1);
	ASSERT_EQ(a.fetch(4), 0);
	net.run(400000);
	EXPECT_EQ(a.done[1].good, 0u) << "storage delivers";
	EXPECT_NE(a.peer(id).health, unsigned{COOP_PEER_HEALTHY});
	take(a, 1);
	expect_unblamed();
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	EXPECT_EQ(a.done[2].good, 0b1111u);
}

} // namespace
