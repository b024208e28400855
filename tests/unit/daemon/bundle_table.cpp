// SPDX-License-Identifier: MIT
// bundle_table.cpp - which bundles a daemon has, who makes them, and when they are dropped.
#include "rig.hpp"

#include "userland/daemon/bundles.hpp"

using namespace rig;

class bundle_table_test : public daemon_test
{
protected:
	using clock = coop::daemon::bundle_table::clock;

	void SetUp() override
	{
		daemon_test::SetUp();
		start();
	}
	void TearDown() override
	{
		table_.reset(); // its bundles hold leases of the daemon
		daemon_test::TearDown();
	}
	std::shared_ptr<coop::daemon::bundle> make(std::size_t size)
	{
		auto b = coop::daemon::bundle::create(server_->files().leases);
		b->size = size;
		return b;
	}
	bool begin(const std::string &key, clock::time_point now, bool &makes)
	{
		return table_->begin(
			key, makes, [this] { woken_++; }, now);
	}

	std::unique_ptr<coop::daemon::bundle_table> table_ =
		std::make_unique<coop::daemon::bundle_table>(100);
	int woken_ = 0;
	bool makes_ = false;
	const clock::time_point t0_ = clock::now();
};

TEST_F(bundle_table_test, one_makes_it_and_the_others_wait)
{
	ASSERT_TRUE(begin("k", t0_, makes_));
	EXPECT_TRUE(makes_);
	EXPECT_FALSE(begin("k", t0_, makes_));
	EXPECT_FALSE(begin("k", t0_, makes_));
	EXPECT_EQ(woken_, 0);
	table_->made("k", make(1), t0_);
	EXPECT_EQ(woken_, 2);
	ASSERT_TRUE(begin("k", t0_, makes_));
	EXPECT_FALSE(makes_);
	EXPECT_TRUE(table_->find("k"));
}

TEST_F(bundle_table_test, the_longest_unused_is_dropped_for_lack_of_room)
{
	for (const char *key : {"a", "b"}) {
		ASSERT_TRUE(begin(key, t0_, makes_));
		table_->made(key, make(50), t0_);
	}
	EXPECT_TRUE(table_->find("a"));
	ASSERT_TRUE(begin("c", t0_, makes_));
	table_->made("c", make(50), t0_);
	EXPECT_TRUE(table_->find("a"));
	EXPECT_FALSE(table_->find("b"));
	EXPECT_EQ(table_->bytes(), 100u);
	ASSERT_TRUE(begin("b", t0_, makes_));
	EXPECT_TRUE(makes_) << "it may be made again";
}

TEST_F(bundle_table_test, what_fails_is_not_tried_again_at_once)
{
	clock::duration last{};
	clock::time_point now = t0_;
	for (int i = 0; i < 12; i++) {
		ASSERT_TRUE(begin("k", now, makes_));
		ASSERT_TRUE(makes_);
		table_->made("k", nullptr, now);
		clock::duration pause = coop::daemon::bundle_pause / 2;
		while (begin("k", now + pause, makes_) && !makes_)
			pause *= 2;
		EXPECT_GE(pause, last);
		EXPECT_LE(pause, 2 * coop::daemon::bundle_pause_max);
		last = pause;
		now += pause;
		table_->made("k", nullptr, now);
		now += coop::daemon::bundle_pause_max;
	}
	EXPECT_GE(last, coop::daemon::bundle_pause_max / 2);
}

TEST_F(bundle_table_test, a_few_are_sent_to_nodes_and_the_next_are_not)
{
	using few = coop::daemon::bundle_table::few;
	constexpr auto a_while = coop::daemon::bundle_few_within;
	for (std::size_t i = 0; i < coop::daemon::bundle_few; i++)
		EXPECT_EQ(table_->for_few("k", t0_), few::yes);
	EXPECT_EQ(table_->for_few("k", t0_), few::no);
	EXPECT_EQ(table_->for_few("other", t0_), few::yes);
	EXPECT_EQ(table_->for_few("k", t0_ + a_while), few::yes);

	ASSERT_TRUE(begin("m", t0_, makes_));
	for (std::size_t i = 0; i < coop::daemon::bundle_few; i++)
		EXPECT_EQ(table_->for_few("m", t0_), few::yes);
	EXPECT_EQ(table_->for_few("m", t0_), few::later) << "it may have all contents";
	auto b = make(10);
	b->left = b->contents = 10;
	table_->made("m", b, t0_);
	EXPECT_EQ(table_->for_few("m", t0_), few::yes) << "little is left to nodes";
	b->left = 11;
	EXPECT_EQ(table_->for_few("m", t0_), few::no);
}
