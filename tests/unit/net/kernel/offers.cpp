// SPDX-License-Identifier: MIT
// What a machine with several rails offers on each (userland/net/kernel/offers.hpp); the rails are
// this test.
#include <cerrno>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <vector>

#include "tests/unit/net/kernel/core.hpp"
#include "userland/net/kernel/offers.hpp"

namespace
{

using namespace coop::net;

/// The first rail.
class first_rail final : public ud::offers
{
public:
	void begin(std::uint32_t index) override { open.insert(index); }
	void end(std::uint32_t index) override { ended.insert(index); }

	std::set<std::uint32_t> open, ended;
};

/// Another one.
class other_rail final : public kernel::further_offers
{
public:
	bool knows(spi::peer_number n) const override { return known.count(n) != 0; }
	bool begin(std::uint32_t index) override
	{
		if (!refuses)
			open.insert(index);
		return !refuses;
	}
	void end(std::uint32_t index) override { ended.insert(index); }

	std::set<spi::peer_number> known;
	std::set<std::uint32_t> open, ended;
	bool refuses = false;
};

class no_memory final : public ud::memory_lender
{
public:
	void lend(ud::op &) override {}
};

class KernelOffers : public testing::Test
{
protected:
	std::uint32_t operation(spi::peer_number peer = spi::no_peer)
	{
		spi::transfer x{};
		x.queue = queue_type::passive_bulk_send;
		x.peer = peer;
		const std::uint32_t index = operations_.add(0, x);
		operations_[index].lent = true;
		return index;
	}
	// What has ended everywhere, by index, and how.
	std::map<std::uint32_t, int> over()
	{
		std::map<std::uint32_t, int> all;
		for (kernel::all_offers::end_of e{}; all_.next_over(e);)
			EXPECT_TRUE(all.emplace(e.index, e.status).second) << "twice";
		return all;
	}

	ud::options options_;
	no_memory memory_;
	kernel_test::core core_;
	ud::operations operations_{options_, memory_, core_};
	first_rail first_;
	other_rail second_, third_;
	kernel::all_offers all_{first_, {&second_, &third_}, operations_};
};

using over_of = std::map<std::uint32_t, int>;

TEST_F(KernelOffers, are_on_all_rails_until_the_last_one_says_so)
{
	const std::uint32_t one = operation();
	all_.begin(one);
	EXPECT_TRUE(first_.open.count(one) && second_.open.count(one) && third_.open.count(one));
	all_.end(one);
	EXPECT_TRUE(first_.ended.count(one) && second_.ended.count(one) && third_.ended.count(one));
	all_.over(1, one, -ECANCELED);
	all_.over(0, one, -ECANCELED);
	EXPECT_TRUE(over().empty()) << "the third still reads its memory";
	all_.over(2, one, -ECANCELED);
	EXPECT_EQ(over(), (over_of{{one, 0}}));
}

TEST_F(KernelOffers, for_one_peer_are_where_that_one_has_proven_itself)
{
	second_.known.insert(7);
	const std::uint32_t one = operation(7), other = operation(8), gone = operation(7);
	all_.begin(one);
	all_.begin(other);
	all_.begin(gone);
	EXPECT_TRUE(second_.open.count(one));
	EXPECT_FALSE(third_.open.count(one));
	EXPECT_FALSE(second_.open.count(other));
	all_.end(gone);
	third_.known.insert(7);
	all_.proven(2, 7);
	EXPECT_TRUE(third_.open.count(one));
	EXPECT_FALSE(third_.open.count(other)) << "it is another peer's";
	EXPECT_FALSE(third_.open.count(gone)) << "it ends already";
	all_.over(0, gone, -ECANCELED);
	all_.over(1, gone, -ECANCELED);
	EXPECT_EQ(over(), (over_of{{gone, 0}}));
	all_.end(other); // on the first alone
	EXPECT_FALSE(second_.ended.count(other));
	all_.over(0, other, -ECANCELED);
	EXPECT_EQ(over(), (over_of{{other, 0}}));
}

TEST_F(KernelOffers, end_with_an_error_of_the_first_rail_alone)
{
	const std::uint32_t one = operation(), other = operation();
	all_.begin(one);
	all_.begin(other);
	all_.over(1, one, -ENOMEM);
	EXPECT_TRUE(over().empty());
	EXPECT_TRUE(third_.ended.empty());
	all_.over(0, other, -EEXIST);
	EXPECT_TRUE(second_.ended.count(other) && third_.ended.count(other));
	all_.over(1, other, -ECANCELED);
	all_.over(2, other, -ECANCELED);
	EXPECT_EQ(over(), (over_of{{other, -EEXIST}}));
	all_.end(one);
	EXPECT_FALSE(second_.ended.count(one)) << "it has ended there";
}

TEST_F(KernelOffers, outlive_a_rail_that_is_lost)
{
	const std::uint32_t one = operation(), other = operation(), ending = operation();
	for (const std::uint32_t index : {one, other, ending})
		all_.begin(index);
	EXPECT_TRUE(all_.reading(1, one, true));
	EXPECT_TRUE(all_.reading(1, other, true));
	EXPECT_TRUE(all_.reading(2, other, true));
	all_.end(ending);
	all_.over(0, ending, -ECANCELED);
	all_.over(2, ending, -ECANCELED);
	EXPECT_EQ(all_.lost(1), std::vector{one}) << "the third still reads the other";
	EXPECT_EQ(over(), (over_of{{ending, 0}}));
	EXPECT_FALSE(all_.reading(2, other, false));
	const std::uint32_t later = operation();
	second_.open.clear();
	all_.begin(later);
	EXPECT_FALSE(second_.open.count(later));
	all_.end(one);
	EXPECT_FALSE(second_.ended.count(one));
	all_.over(0, one, -ECANCELED);
	all_.over(2, one, -ECANCELED);
	EXPECT_EQ(over(), (over_of{{one, 0}}));
}

TEST_F(KernelOffers, that_a_rail_refuses_are_on_the_others)
{
	second_.refuses = true;
	const std::uint32_t one = operation();
	all_.begin(one);
	all_.end(one);
	EXPECT_TRUE(second_.ended.empty());
	all_.over(0, one, -ECANCELED);
	all_.over(2, one, -ECANCELED);
	EXPECT_EQ(over(), (over_of{{one, 0}}));
}

} // namespace
