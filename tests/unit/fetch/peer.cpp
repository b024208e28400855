// SPDX-License-Identifier: MIT
// peer.cpp - the table of peers and their circuit breakers.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "rpc/fetch/peer.h"

namespace
{

coop_addr at(u32 n)
{
	coop_addr a{};
	a.gid[0] = 0xfe;
	std::memcpy(a.gid + 12, &n, 4);
	a.qpn = 17;
	return a;
}

struct table {
	explicit table(u32 max) : peers(max), ids(max), bucket(coop_peers_buckets(max)), hand(max)
	{
		coop_peers_init(&t, peers.data(), ids.data(), bucket.data(), hand.data(), max, 99);
	}
	u32 add(u32 n, u32 origin = COOP_PEER_BY_DAEMON)
	{
		const coop_addr a = at(n);
		return coop_peers_add(&t, &a, origin, 4096, 0);
	}
	std::vector<coop_peer> peers;
	std::vector<coop_id> ids;
	std::vector<u32> bucket, hand;
	coop_peers t;
};

TEST(peers, found_by_address_until_the_last_origin_goes)
{
	table x(100);
	for (u32 n = 0; n < 100; ++n)
		ASSERT_NE(x.add(n), COOP_NONE);
	EXPECT_EQ(x.add(100), COOP_NONE) << "full";
	const u32 id = x.add(7, COOP_PEER_BY_HAND);
	const coop_addr seven = at(7);
	EXPECT_EQ(x.t.v[coop_peers_find(&x.t, &seven)].id, id);
	EXPECT_EQ(coop_peers_del(&x.t, &seven, COOP_PEER_BY_DAEMON), 0)
		<< "still there, added by hand";
	EXPECT_EQ(coop_peers_del(&x.t, &seven, COOP_PEER_BY_DAEMON), -ENOENT);
	EXPECT_EQ(coop_peers_del(&x.t, &seven, COOP_PEER_BY_HAND), 1) << "gone";
	EXPECT_EQ(coop_peers_find(&x.t, &seven), COOP_NONE);
	EXPECT_EQ(coop_peers_get(&x.t, id), nullptr);
	for (u32 n = 0; n < 100; ++n) {
		const coop_addr a = at(n);
		EXPECT_EQ(coop_peers_find(&x.t, &a) == COOP_NONE, n == 7);
	}
	EXPECT_NE(x.add(100), COOP_NONE);
}

TEST(peers, lives_on_while_an_attempt_holds_it)
{
	table x(2);
	const u32 id = x.add(1);
	coop_peer *p = coop_peers_get(&x.t, id);
	p->in_flight = 1;
	const coop_addr a = at(1);
	EXPECT_EQ(coop_peers_del(&x.t, &a, COOP_PEER_BY_DAEMON), 0);
	EXPECT_FALSE(coop_peer_usable(p));
	p->in_flight = 0;
	EXPECT_EQ(coop_peers_unhold(&x.t, p), 1);
	EXPECT_EQ(coop_peers_get(&x.t, id), nullptr);
}

TEST(peers, list_by_hand_follows_the_origins)
{
	table x(8);
	for (u32 n = 0; n < 8; ++n)
		x.add(n, n % 2 ? COOP_PEER_BY_HAND : COOP_PEER_BY_DAEMON);
	EXPECT_EQ(x.t.n_hand, 4u);
	const coop_addr one = at(1);
	coop_peers_del(&x.t, &one, COOP_PEER_BY_HAND);
	x.add(0, COOP_PEER_BY_HAND);
	ASSERT_EQ(x.t.n_hand, 4u);
	for (u32 i = 0; i < 4; ++i) {
		const coop_peer &p = x.t.v[x.t.hand[i]];
		EXPECT_TRUE(p.origin & COOP_PEER_BY_HAND);
		EXPECT_EQ(p.hand_pos, i);
	}
}

constexpr u32 limit = 50000;

TEST(breaker, one_silence_is_no_death)
{
	table x(1);
	coop_peer *p = coop_peers_get(&x.t, x.add(1));
	coop_peer_asked(p, 1000);
	EXPECT_TRUE(coop_peer_silent(p, 5000));
	EXPECT_EQ(p->health, unsigned{COOP_PEER_SUSPECT});
	EXPECT_TRUE(coop_peer_usable(p)) << "its processor may only be busy";
	coop_peer_asked(p, 9000);
	EXPECT_FALSE(coop_peer_silent(p, 13000));
	EXPECT_FALSE(coop_peer_hushed(p, limit, 1000 + limit - 1, 0));
	coop_peer_heard(p, 1000 + limit - 1);
	EXPECT_FALSE(coop_peer_hushed(p, limit, 1000 + limit, 0)) << "it spoke";
	EXPECT_TRUE(coop_peer_usable(p));
}

TEST(breaker, silence_for_the_peer_timeout_opens)
{
	table x(1);
	coop_peer *p = coop_peers_get(&x.t, x.add(1));
	coop_peer_asked(p, 1000);
	coop_peer_silent(p, 5000);
	EXPECT_TRUE(coop_peer_hushed(p, limit, 1000 + limit, 0));
	EXPECT_EQ(p->health, unsigned{COOP_PEER_OPEN});
	EXPECT_FALSE(coop_peer_usable(p));
}

TEST(breaker, a_spent_budget_probes_and_no_pong_opens)
{
	table x(1);
	coop_peer *p = coop_peers_get(&x.t, x.add(1));
	EXPECT_TRUE(coop_peer_failed(p, 1, 1000, 0));
	EXPECT_EQ(p->health, unsigned{COOP_PEER_SUSPECT});
	EXPECT_TRUE(coop_peer_probe(p, limit, 1000, 42));
	EXPECT_EQ(p->health, unsigned{COOP_PEER_HALF_OPEN});
	EXPECT_FALSE(coop_peer_usable(p));
	EXPECT_FALSE(coop_peer_failed(p, 1, 1001, 0)) << "its REQUEST is older than the PING";
	EXPECT_EQ(p->health, unsigned{COOP_PEER_HALF_OPEN});
	EXPECT_TRUE(coop_peer_no_pong(p, p->probe_at, 0));
	EXPECT_EQ(p->health, unsigned{COOP_PEER_OPEN});
	EXPECT_FALSE(coop_peer_no_pong(p, p->probe_at, 0));
}

TEST(breaker, half_open_a_lie_opens_and_a_delivery_closes)
{
	table x(2);
	coop_peer *liar = coop_peers_get(&x.t, x.add(1)), *slow = coop_peers_get(&x.t, x.add(2));
	for (coop_peer *p : {liar, slow})
		coop_peer_probe(p, limit, 1000, 42);
	EXPECT_TRUE(coop_peer_failed(liar, COOP_FAILS_TO_OPEN, 2000, 0));
	EXPECT_EQ(liar->health, unsigned{COOP_PEER_OPEN});
	EXPECT_FALSE(coop_peer_clean(liar, 2001)) << "good segments do not excuse bad ones";
	EXPECT_TRUE(coop_peer_clean(slow, 2000));
	EXPECT_EQ(slow->health, unsigned{COOP_PEER_SUSPECT});
	EXPECT_FALSE(coop_peer_pong(slow, 3000)) << "late, and of no use";
	EXPECT_TRUE(coop_peer_usable(slow));
}

TEST(breaker, the_ping_is_repeated_until_the_limit)
{
	table x(1);
	coop_peer *p = coop_peers_get(&x.t, x.add(1));
	coop_peer_probe(p, limit, 1000, 42);
	u32 pings = 0;
	u64 now = 1000;
	for (; now < p->probe_at; now = coop_peer_ping_again(p, limit, now))
		++pings;
	EXPECT_EQ(now, 1000u + limit);
	EXPECT_EQ(pings, 4u);
	p->ping_sent = 0; // as after a repeated PING
	EXPECT_TRUE(coop_peer_pong(p, now));
	EXPECT_EQ(p->srtt_us, 0u) << "unknown which PING it answered";
}

TEST(breaker, rest_doubles_until_something_is_delivered)
{
	table x(1);
	coop_peer *p = coop_peers_get(&x.t, x.add(1));
	u64 now = 0, rest = 0;
	coop_peer_failed(p, COOP_FAILS_TO_OPEN, now, 0);
	for (u32 i = 0; i < 12; ++i) {
		ASSERT_EQ(p->health, unsigned{COOP_PEER_OPEN});
		EXPECT_GE(p->probe_at - now, rest);
		EXPECT_LE(p->probe_at - now, u64{COOP_BACKOFF_MIN_US} << COOP_BACKOFF_DOUBLE);
		rest = p->probe_at - now;
		now = p->probe_at;
		coop_peer_probe(p, limit, now, 1);
		now += 100;
		EXPECT_TRUE(coop_peer_pong(p, now));
		EXPECT_EQ(p->health, unsigned{COOP_PEER_SUSPECT});
		coop_peer_failed(p, 1, now, 0); // answers PINGs, delivers nothing: opens at once
	}
	EXPECT_EQ(rest, u64{COOP_BACKOFF_MIN_US} << COOP_BACKOFF_DOUBLE);
	now = p->probe_at;
	coop_peer_probe(p, limit, now, 1);
	coop_peer_pong(p, now + 100);
	EXPECT_TRUE(coop_peer_clean(p, now));
	EXPECT_EQ(p->health, unsigned{COOP_PEER_HEALTHY});
	coop_peer_failed(p, COOP_FAILS_TO_OPEN, now, 0);
	EXPECT_EQ(p->probe_at - now, u64{COOP_BACKOFF_MIN_US});
}

TEST(breaker, jitter_is_at_most_a_quarter)
{
	for (u64 random : {u64{0}, u64{0x8000}, u64{0xffff}, ~u64{0}}) {
		table x(1);
		coop_peer *p = coop_peers_get(&x.t, x.add(1));
		coop_peer_failed(p, COOP_FAILS_TO_OPEN, 0, random);
		EXPECT_GE(p->probe_at, u64{COOP_BACKOFF_MIN_US});
		EXPECT_LE(p->probe_at, u64{COOP_BACKOFF_MIN_US} * 5 / 4);
	}
}

TEST(breaker, a_peer_that_speaks_is_probed_early)
{
	table x(1);
	coop_peer *p = coop_peers_get(&x.t, x.add(1));
	coop_peer_failed(p, COOP_FAILS_TO_OPEN, 0, 0);
	p->probe_at = 10000000;
	EXPECT_FALSE(coop_peer_heard(p, 1000)) << "not within the first backoff";
	EXPECT_TRUE(coop_peer_heard(p, COOP_BACKOFF_MIN_US));
	EXPECT_EQ(p->probe_at, u64{COOP_BACKOFF_MIN_US});
}

TEST(breaker, one_that_was_silent_and_speaks_is_probed_at_once)
{
	table x(1);
	coop_peer *p = coop_peers_get(&x.t, x.add(1));
	u64 now = 1000;
	for (bool first : {true, false}) {
		coop_peer_asked(p, now);
		coop_peer_silent(p, now + 4000);
		ASSERT_TRUE(coop_peer_hushed(p, limit, now += limit, 0));
		EXPECT_EQ(coop_peer_heard(p, now += 10), first)
			<< "the second time it waits for the backoff";
		EXPECT_EQ(p->probe_at == now, first);
		coop_peer_probe(p, limit, now, 42);
		EXPECT_TRUE(coop_peer_pong(p, now));
	}
}

TEST(rtt, follows_the_samples_and_keeps_its_bounds)
{
	table x(1);
	coop_peer *p = coop_peers_get(&x.t, x.add(1));
	EXPECT_EQ(coop_peer_rto(p, 0, 12500), 12500u) << "nothing measured";
	for (int i = 0; i < 100; ++i)
		coop_peer_rtt(p, 20000);
	EXPECT_NEAR(p->srtt_us, 20000, 10);
	EXPECT_LT(p->rttvar_us, 100u);
	EXPECT_NEAR(coop_peer_rto(p, 0, 0), 20000, 500);
	coop_peer_rate(p, 1 << 20, 10240); // 10 us a KiB
	EXPECT_NEAR(coop_peer_rto(p, 1 << 20, 0), 20000 + 2 * 10240, 500);
	for (int i = 0; i < 100; ++i)
		coop_peer_rtt(p, 10);
	EXPECT_EQ(coop_peer_rto(p, 0, 0), unsigned{COOP_RTO_MIN_US});
	for (int i = 0; i < 100; ++i)
		coop_peer_rtt(p, ~u64{0});
	EXPECT_EQ(coop_peer_rto(p, 4 << 20, 0), unsigned{COOP_RTO_MAX_US});
}

} // namespace
