// SPDX-License-Identifier: MIT
// shards.cpp - engines that share one control address: who gets a message, and who is taken for its
// sender.
#include "tests/unit/fetch/lab.hpp"

#include <set>

namespace
{

using namespace lab;

// b has one engine; those of a share an address.
struct shared {
	network net;
	std::vector<node *> a;
	node &b;
	std::vector<u32> b_at_a;

	explicit shared(u32 n) : b(net.add({.serves = 16}))
	{
		for (u32 i = 0; i < n; i++)
			a.push_back(
				&net.add({.shards = n, .shard = i, .first = i ? a[0] : nullptr}));
		for (node *each : a)
			b_at_a.push_back(net.acquaint(*each, b));
	}
};

TEST(shards, an_answer_returns_to_the_engine_that_asked)
{
	shared t(3);
	for (node *each : t.a)
		ASSERT_EQ(each->fetch(8), 0);
	t.net.settle();
	for (u32 i = 0; i < 3; i++) {
		EXPECT_EQ(t.a[i]->done[1].good, 0xffu) << i;
		EXPECT_EQ(t.a[i]->stats().commits_stale, 0u) << i;
		EXPECT_EQ(t.a[i]->peer(t.b_at_a[i]).pages, 8u) << i;
	}
	// All are one peer to b, which has its address from storage.
	EXPECT_EQ(t.b.peer(t.b.peer_id(*t.a[2])).served_pages, 24u);
}

TEST(shards, requests_of_others_spread_over_them)
{
	shared t(4);
	const u32 a_at_b = t.b.peer_id(*t.a[0]);
	for (u32 i = 0; i < 64; i++) {
		ASSERT_EQ(t.b.fetch_from(1, {a_at_b}, 1), 0);
		t.net.settle();
		EXPECT_EQ(t.b.done[i + 1].good, 1u);
	}
	for (node *each : t.a)
		EXPECT_GT(each->served, 4u);
}

// Which engine gets a request says nothing about the place of its record there.
TEST(shards, each_has_room_for_as_many_requests_as_it_serves)
{
	constexpr u32 n = 8, requests = 96;
	network net;
	node &b = net.add({.fetches = requests, .window = 1u << 30});
	std::vector<node *> a;
	for (u32 i = 0; i < n; i++) {
		a.push_back(&net.add(
			{.serves = 32, .shards = n, .shard = i, .first = i ? a[0] : nullptr}));
		net.acquaint(*a[i], b);
		a[i]->hold_lookup = true;
	}
	const u32 a_at_b = b.peer_id(*a[0]);
	for (u32 i = 0; i < requests; i++)
		ASSERT_EQ(b.fetch_from(1, {a_at_b}, 1), 0);
	net.settle();
	std::size_t held = 0;
	for (node *each : a) {
		EXPECT_EQ(each->stats().serves_busy, 0u) << each->cfg.shard;
		held += each->lookups.size();
	}
	EXPECT_GT(held, requests / 2); // some slots are kept for fetches that must not wait
}

// The COMMIT is lost: the QUERY must reach the engine that has its record.
TEST(shards, a_query_follows_its_request)
{
	shared t(4);
	const u32 a_at_b = t.b.peer_id(*t.a[0]);
	for (u32 i = 0; i < 16; i++) {
		lose(t.net, COOP_CMD_COMMIT, 1);
		ASSERT_EQ(t.b.fetch_from(1, {a_at_b}, 1), 0);
		t.net.run();
		EXPECT_EQ(t.b.done[i + 1].good, 1u);
	}
	EXPECT_GE(t.b.stats().queries, 16u);
	EXPECT_EQ(t.b.stats().retries, 0u);
}

// Its answers come from queue pairs that nobody knows, and show that it is alive and what it
// speaks.
TEST(shards, answers_from_its_own_queue_pairs_are_the_peers)
{
	shared t(2);
	node &c = t.net.add();
	t.net.acquaint(*t.a[1], c);
	const u32 a_at_c = t.net.acquaint(c, *t.a[0]);
	t.a[0]->have = t.a[1]->have = 0;
	// c may pass a request on to it only once it knows that it understands FORWARD.
	for (u32 i = 0; i < 8; i++) {
		ASSERT_EQ(c.fetch(1), 0);
		t.net.settle();
	}
	EXPECT_GT(t.a[1]->served, 0u);
	c.have = 0;
	c.holder = a_at_c;
	t.net.acquaint(t.b, c);
	t.a[0]->have = t.a[1]->have = ~u64{0};
	coop_engine_peer_add(c.e, &t.b.cfg.self, COOP_PEER_BY_DAEMON, t.net.now);
	ASSERT_EQ(t.b.fetch_from(8, {t.b.peer_id(c)}, 1), 0);
	t.net.settle();
	EXPECT_EQ(c.stats().serves_passed, 1u);
	EXPECT_EQ(t.b.done[1].good, 0xffu);
}

TEST(shards, ids_name_the_engine)
{
	std::set<u32> seen;
	for (u32 i = 0; i < COOP_SHARDS; i++) {
		network net;
		node &first = net.add({.shards = COOP_SHARDS});
		node &one =
			i ? net.add({.shards = COOP_SHARDS, .shard = i, .first = &first}) : first;
		node &b = net.add();
		net.acquaint(one, b);
		net.filter = [&](node &, std::vector<u8> &m) {
			if (command(m) == COOP_CMD_COMMIT)
				seen.insert(coop_wire_shard(m.data(), static_cast<u32>(m.size()),
							    COOP_SHARDS));
			return true;
		};
		ASSERT_EQ(one.fetch(1), 0);
		net.settle();
		EXPECT_EQ(one.done[1].good, 1u);
	}
	EXPECT_EQ(seen.size(), COOP_SHARDS);
}

TEST(shards, numbers_out_of_range_are_refused)
{
	coop_engine_cfg cfg = network().add().cfg;
	cfg.shards = COOP_SHARDS + 1;
	EXPECT_EQ(coop_engine_size(&cfg), 0u);
	cfg.shards = 2;
	cfg.shard = 2;
	EXPECT_EQ(coop_engine_size(&cfg), 0u);
	cfg.shard = 1;
	EXPECT_GT(coop_engine_size(&cfg), 0u);
}

} // namespace
