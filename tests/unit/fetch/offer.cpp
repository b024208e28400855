// SPDX-License-Identifier: MIT
// offer.cpp - pages that a node is about to drop, offered to a peer.
#include "tests/unit/fetch/lab.hpp"

namespace
{

using namespace lab;

const coop_offer pages = {{1, 2}, 7, 1 << 30, {64, 16, 0}, 2, 0};

// a has sent b a request, so b knows that a takes offers.
struct two {
	network net;
	node &a, &b;

	two() : a(net.add()), b(net.add())
	{
		net.acquaint(a, b);
		a.fetch(1);
		net.settle();
	}
};

TEST(offer, reaches_the_host_of_the_peer)
{
	two t;
	ASSERT_EQ(coop_engine_offer(t.b.e, t.b.peer_id(t.a), &pages), 0);
	t.net.settle();
	ASSERT_EQ(t.a.offers.size(), 1u);
	const coop_ev &ev = t.a.offers[0];
	EXPECT_EQ(ev.from.qpn, t.b.cfg.self.qpn);
	EXPECT_EQ(ev.fid.hi, 1u);
	EXPECT_EQ(ev.fid.lo, 2u);
	EXPECT_EQ(ev.version, 7u);
	EXPECT_EQ(ev.size, u64{1} << 30);
	EXPECT_EQ(ev.n_ext, 1u);
	EXPECT_EQ(ev.ext[0].index, 64u);
	EXPECT_EQ(ev.ext[0].count, 16u);
	EXPECT_EQ(ev.chances, 2u);
	EXPECT_EQ(t.b.stats().offers_tx, 1u);
	EXPECT_EQ(t.a.stats().offers_rx, 1u);
}

TEST(offer, goes_only_to_nodes_that_understand)
{
	two t;
	node &c = t.net.add();
	t.net.acquaint(t.a, c);
	EXPECT_EQ(coop_engine_offer(t.a.e, t.a.peer_id(c), &pages), -ENOENT) << "it has not spoken";
	t.net.acquaint(c, t.a);
	c.fetch(1);
	t.net.settle();
	EXPECT_EQ(coop_engine_offer(t.a.e, t.a.peer_id(c), &pages), 0);
	EXPECT_EQ(coop_engine_offer(t.a.e, COOP_NONE, &pages), -ENOENT);
}

TEST(offer, of_a_stranger_is_dropped)
{
	two t;
	coop_engine_peer_del(t.a.e, &t.b.cfg.self, COOP_PEER_BY_HAND);
	ASSERT_EQ(coop_engine_offer(t.b.e, t.b.peer_id(t.a), &pages), 0);
	t.net.settle();
	EXPECT_TRUE(t.a.offers.empty());
	EXPECT_EQ(t.a.stats().offers_dropped, 1u);
}

TEST(offer, as_many_wait_as_there_is_room_for)
{
	two t;
	int sent = 0;
	while (coop_engine_offer(t.b.e, t.b.peer_id(t.a), &pages) == 0 && sent < 1000)
		++sent;
	EXPECT_EQ(sent, 32);
	EXPECT_EQ(coop_engine_offer(t.b.e, t.b.peer_id(t.a), &pages), -EAGAIN);
	t.net.settle();
	EXPECT_EQ(t.a.offers.size(), 32u);
}

} // namespace
