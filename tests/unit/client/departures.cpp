// SPDX-License-Identifier: MIT
// departures.cpp - which blocks are offered when they leave, and what is remembered of them.
#include <gtest/gtest.h>

#include "userland/client/departures.hpp"
#include "userland/client/page_store.hpp"

namespace
{

using namespace coop::client;

constexpr std::uint64_t all = ~std::uint64_t{0};
constexpr std::uint64_t file = 8192 * 64 * 4096ull;
const content_key key = {{1, 2}, 3};

struct rig {
	std::unique_ptr<page_store> store = page_store::create(64 * 64 * 4096, 12);
	int news = 0;
	departures gone{2, [this] { news++; }};
	rig() { gone.set_peers(true); }

	block_ref filled(std::uint64_t index, std::uint64_t pages = all)
	{
		block_ref b = store->get(key, index, file);
		b->publish(b->claim(pages), origin::storage);
		return b;
	}
};

TEST(Departures, TheLastCopyIsKeptForAnOffer)
{
	rig r;
	const block_ref b = r.filled(0);
	EXPECT_TRUE(r.gone.leaves(*b));
	EXPECT_EQ(r.news, 1);
	EXPECT_EQ(r.gone.kept(), 1u);
	EXPECT_EQ(r.gone.take().size(), 1u);
	EXPECT_TRUE(r.gone.take().empty());
	EXPECT_EQ(r.gone.holder(key, 0, all), COOP_NONE);
	r.gone.ended();
	EXPECT_EQ(r.gone.kept(), 0u);
}

TEST(Departures, ACopyIsNotAndItsHolderIsRemembered)
{
	rig r;
	const block_ref b = r.filled(0);
	b->held_by(7, all);
	EXPECT_FALSE(r.gone.leaves(*b));
	EXPECT_EQ(r.gone.holder(key, 0, all), 7u);
	EXPECT_EQ(r.gone.holder(key, 1, all), COOP_NONE);
	EXPECT_EQ(r.gone.holder({key.fid, 4}, 0, all), COOP_NONE) << "of another version";
}

TEST(Departures, AHolderOfSomePagesIsNotOneOfOthers)
{
	rig r;
	const block_ref b = r.filled(0);
	b->held_by(7, 0xff);
	EXPECT_TRUE(r.gone.leaves(*b));
	EXPECT_EQ(r.gone.holder(key, 0, 0x0f), 7u);
	EXPECT_EQ(r.gone.holder(key, 0, 0x1f0), COOP_NONE);
}

TEST(Departures, WithoutPeersNothingIsKept)
{
	rig r;
	r.gone.set_peers(false);
	EXPECT_FALSE(r.gone.leaves(*r.filled(0)));
	EXPECT_EQ(r.news, 0);
}

TEST(Departures, NeitherIsOneWithFewPagesOrWithoutChances)
{
	rig r;
	EXPECT_FALSE(r.gone.leaves(*r.filled(0, 0xfff)));
	const block_ref mostly = r.filled(1);
	mostly->held_by(7, all << 8);
	EXPECT_FALSE(r.gone.leaves(*mostly));
	const block_ref tired = r.filled(2);
	tired->set_chances(0);
	EXPECT_FALSE(r.gone.leaves(*tired));
}

TEST(Departures, AFewAreKeptAtATime)
{
	rig r;
	const block_ref a = r.filled(0), b = r.filled(1), c = r.filled(2);
	EXPECT_TRUE(r.gone.leaves(*a));
	EXPECT_TRUE(r.gone.leaves(*b));
	EXPECT_FALSE(r.gone.leaves(*c));
	r.gone.ended();
	EXPECT_TRUE(r.gone.leaves(*c));
}

TEST(Departures, TheOldestIsForgottenFirst)
{
	rig r;
	for (std::uint64_t i = 0; i <= 4096; i++) {
		const block_ref b = r.filled(i);
		b->held_by(7, all);
		EXPECT_FALSE(r.gone.leaves(*b));
	}
	EXPECT_EQ(r.gone.holder(key, 0, all), COOP_NONE);
	EXPECT_EQ(r.gone.holder(key, 1, all), 7u);
	EXPECT_EQ(r.gone.holder(key, 4096, all), 7u);
}

} // namespace
