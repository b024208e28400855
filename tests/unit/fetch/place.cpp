// SPDX-License-Identifier: MIT
// place.cpp - placement spreads by weight, and a change moves few chunks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "rpc/fetch/peer.h"
#include "rpc/fetch/place.h"

namespace
{

constexpr u32 chunks = 40000;

struct holder {
	coop_addr addr{};
	u32 weight;
};

std::vector<holder> holders(std::initializer_list<u32> weights)
{
	std::vector<holder> out;
	for (u32 w : weights) {
		holder h;
		h.addr.gid[0] = 0xfe;
		h.addr.gid[15] = static_cast<u8>(out.size());
		h.addr.qpn = 17;
		h.weight = w;
		out.push_back(h);
	}
	return out;
}

u32 pick(const std::vector<holder> &hs, u64 chunk, u32 without = COOP_NONE)
{
	const coop_fid fid{1, 2};
	coop_draw best{};
	u32 who = COOP_NONE;
	for (u32 i = 0; i < hs.size(); ++i) {
		if (i == without)
			continue;
		const coop_draw d = coop_place_draw(&fid, chunk, &hs[i].addr, hs[i].weight);
		if (who == COOP_NONE || coop_place_better(d, best)) {
			best = d;
			who = i;
		}
	}
	return who;
}

TEST(place, shares_follow_the_weights)
{
	const auto hs = holders({4096, 4096, 2048, 1024, 512});
	std::vector<u32> count(hs.size());
	double total = 0;
	for (u64 c = 0; c < chunks; ++c)
		++count[pick(hs, c)];
	for (const holder &h : hs)
		total += h.weight;
	for (std::size_t i = 0; i < hs.size(); ++i) {
		const double expect = chunks * hs[i].weight / total;
		EXPECT_NEAR(count[i], expect, 5 * std::sqrt(expect) + 0.02 * expect)
			<< "holder " << i;
	}
}

TEST(place, a_leaver_moves_only_its_own_share)
{
	const auto hs = holders({4096, 4096, 4096, 4096});
	std::vector<u32> heirs(hs.size());
	for (u64 c = 0; c < chunks; ++c) {
		const u32 before = pick(hs, c), after = pick(hs, c, 2);
		if (before != 2)
			ASSERT_EQ(before, after);
		else
			++heirs[after];
	}
	for (u32 i : {0u, 1u, 3u}) // and its share spreads evenly
		EXPECT_NEAR(heirs[i], chunks / 12, 5 * std::sqrt(chunks / 12));
}

TEST(place, a_weight_that_falls_moves_only_that_share)
{
	const auto before = holders({4096, 4096, 4096}), after = holders({4096, 512, 4096});
	for (u64 c = 0; c < chunks; ++c) {
		if (pick(before, c) != 1) {
			ASSERT_EQ(pick(before, c), pick(after, c));
		}
	}
}

TEST(place, draws_do_not_depend_on_local_ids)
{
	const auto hs = holders({4096});
	const coop_fid fid{3, 4};
	coop_addr same = hs[0].addr;
	same.qkey = 77; // nodes may know different values
	same.sl = 3;
	const coop_draw a = coop_place_draw(&fid, 5, &hs[0].addr, 1),
			b = coop_place_draw(&fid, 5, &same, 1);
	EXPECT_EQ(a.cost, b.cost);
}

TEST(place, slow_suspect_and_busy_peers_weigh_less_but_something)
{
	coop_peer p{};
	p.origin = COOP_PEER_BY_HAND;
	const u32 full = coop_place_weight(&p, 100, 0);
	EXPECT_EQ(full, unsigned{COOP_WEIGHT_MAX});
	p.srtt_us = 110;
	EXPECT_EQ(coop_place_weight(&p, 100, 0), full)
		<< "a nearly equal round trip counts as equal";
	p.srtt_us = 100000;
	const u32 slow = coop_place_weight(&p, 100, 0);
	EXPECT_LT(slow, full);
	p.health = COOP_PEER_SUSPECT;
	const u32 suspect = coop_place_weight(&p, 100, 0);
	EXPECT_LT(suspect, slow);
	p.busy_until = 10;
	const u32 busy = coop_place_weight(&p, 100, 0);
	EXPECT_LT(busy, suspect);
	EXPECT_GE(busy, 1u);
	EXPECT_EQ(coop_place_weight(&p, 100, 10), suspect) << "no longer busy";
}

} // namespace
