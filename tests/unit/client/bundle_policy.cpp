// SPDX-License-Identifier: MIT
// bundle_policy.cpp - when a mount asks for bundles.
#include "userland/client/bundle_policy.hpp"

#include <gtest/gtest.h>

using coop::client::bundle_policy;
using coop::client::handle;

namespace
{

class policy : public testing::Test
{
protected:
	using clock = bundle_policy::clock;

	bool asks(const handle &dir, const handle &want, bool subtree, std::uint32_t part = 0)
	{
		last_ = p_.noticed(dir, now_);
		return last_ && last_->dir == want && last_->subtree == subtree &&
		       last_->part == part;
	}
	bool quiet(const handle &dir) { return !p_.noticed(dir, now_); }
	void came(bool used = true, bool more = false) { p_.came(*last_, used, more, now_); }
	// Three directories of one parent have been of use.
	void three(const handle &parent)
	{
		for (const char *d : {"1", "2", "3"}) {
			p_.placed(parent, parent + d);
			EXPECT_TRUE(quiet(parent + d));
			EXPECT_TRUE(asks(parent + d, parent + d, false));
			came();
		}
	}

	bundle_policy p_;
	std::optional<bundle_policy::want> last_;
	clock::time_point now_ = clock::now();
};

} // namespace

TEST_F(policy, wants_the_second_notice)
{
	EXPECT_TRUE(quiet("d"));
	EXPECT_TRUE(quiet("e"));
	EXPECT_TRUE(asks("d", "d", false));
	EXPECT_TRUE(quiet("d")) << "it is on its way";
	EXPECT_TRUE(asks("e", "e", false));
}

TEST_F(policy, parts_of_a_subtree_are_all_of_the_kind_of_the_first)
{
	for (const bool kind : {false, true}) {
		const handle top = kind ? "x" : "t";
		three(top);
		for (const char *d : {"4", "5"})
			p_.placed(top, top + d);
		EXPECT_TRUE(quiet(top + "4"));
		EXPECT_TRUE(asks(top + "4", top, true));
		EXPECT_TRUE(last_->at_nodes) << "the first one is asked for so";
		last_->at_nodes = kind;
		p_.had(top + "4");
		came(true, true);
		EXPECT_TRUE(asks(top + "5", top, true, 1));
		EXPECT_EQ(last_->at_nodes, kind);
		p_.had(top + "5");
		came(true, false);
	}
}

TEST_F(policy, wants_the_second_open_of_what_was_listed)
{
	p_.listed("d", "d1");
	p_.listed("d", "d2");
	EXPECT_FALSE(p_.opened("d1")) << "storage has said nothing";
	EXPECT_TRUE(quiet("d")); // it says it with the listing
	EXPECT_FALSE(p_.opened("d1"));
	EXPECT_FALSE(p_.opened("other"));
	EXPECT_EQ(p_.opened("d2"), "d");
	EXPECT_TRUE(asks("d", "d", false));
	came();
	EXPECT_FALSE(p_.opened("d1")) << "the bundle did not have it";
	EXPECT_FALSE(p_.opened("d2"));
}

TEST_F(policy, forgets_listings_that_are_too_long)
{
	EXPECT_TRUE(quiet("d"));
	for (std::size_t i = 0; i <= bundle_policy::files_max; i++)
		p_.listed("d", std::to_string(i));
	EXPECT_FALSE(p_.opened("0"));
	EXPECT_FALSE(p_.opened("1"));
	EXPECT_FALSE(p_.opened(std::to_string(bundle_policy::files_max)));
	EXPECT_TRUE(p_.opened(std::to_string(bundle_policy::files_max)));
}

TEST_F(policy, asks_again_only_later_and_later)
{
	constexpr std::chrono::milliseconds step{100};
	std::chrono::milliseconds expected = bundle_policy::pause;
	EXPECT_TRUE(quiet("d"));
	ASSERT_TRUE(asks("d", "d", false));
	for (int i = 0; i < 10; i++) {
		came(i % 2);
		const auto asked = now_;
		while (!asks("d", "d", false))
			now_ += step;
		EXPECT_GE(now_ - asked, expected);
		EXPECT_LE(now_ - asked, expected + step);
		expected = std::min(2 * expected, bundle_policy::pause_max);
	}
	came();
	now_ += 3 * bundle_policy::pause_max;
	EXPECT_TRUE(quiet("d"));
	ASSERT_TRUE(asks("d", "d", false));
	came();
	now_ += bundle_policy::pause + step;
	EXPECT_TRUE(quiet("d"));
	EXPECT_TRUE(asks("d", "d", false)) << "the first pause again";
}

TEST_F(policy, wants_the_subtree_after_three_of_its_directories)
{
	three("p");
	p_.placed("p", "p4");
	EXPECT_TRUE(quiet("p4"));
	EXPECT_TRUE(asks("p4", "p", true));
	came(true, false);
	p_.placed("p", "p5");
	EXPECT_TRUE(quiet("p5"));
	EXPECT_TRUE(asks("p5", "p5", false)) << "the subtree was asked for just now";
}

TEST_F(policy, wants_the_next_part_when_a_directory_below_needs_it)
{
	three("p");
	p_.placed("p", "p4");
	p_.placed("p4", "deep");
	EXPECT_TRUE(quiet("p4"));
	EXPECT_TRUE(asks("p4", "p", true, 0));
	EXPECT_TRUE(quiet("p4"));
	came(true, true);
	EXPECT_TRUE(asks("deep", "p", true, 1));
	EXPECT_TRUE(quiet("deep")) << "the part is on its way";
	came(true, true);
	EXPECT_TRUE(asks("deep", "p", true, 2));
	came(true, false);
	EXPECT_TRUE(asks("deep", "deep", false));
}

TEST_F(policy, gives_up_a_subtree_whose_parts_lack_what_it_wants)
{
	three("p");
	p_.placed("p", "p4");
	EXPECT_TRUE(quiet("p4"));
	for (std::uint32_t part = 0; part < 2 * bundle_policy::misses_most; part++) {
		ASSERT_TRUE(asks("p4", "p", true, part));
		if (part == bundle_policy::misses_most - 1)
			p_.had("p4");
		came(true, true);
	}
	EXPECT_TRUE(asks("p4", "p4", false));
}

TEST_F(policy, counts_bundles_two_levels_up)
{
	for (const char *d : {"1", "2", "3", "4"}) {
		const handle dir = handle("p") + d;
		p_.placed("p", dir);
		p_.placed(dir, dir + "sub");
		EXPECT_TRUE(quiet(dir + "sub"));
		if (*d == '4')
			EXPECT_TRUE(asks(dir + "sub", "p", true));
		else
			EXPECT_TRUE(asks(dir + "sub", dir + "sub", false));
		came();
	}
}

TEST_F(policy, gives_up_a_subtree_that_fails)
{
	three("p");
	p_.placed("p", "p4");
	EXPECT_TRUE(quiet("p4"));
	EXPECT_TRUE(asks("p4", "p", true));
	came(false, true);
	EXPECT_TRUE(asks("p4", "p4", false));
}

TEST_F(policy, ends_in_a_circle_of_directories)
{
	p_.placed("a", "b");
	p_.placed("b", "a");
	EXPECT_TRUE(quiet("a"));
	EXPECT_TRUE(asks("a", "a", false));
}

TEST_F(policy, forgets_when_it_knows_too_many)
{
	for (std::size_t i = 0; i < 2 * bundle_policy::dirs_max; i++)
		EXPECT_TRUE(quiet(std::to_string(i)));
	EXPECT_TRUE(quiet("0")) << "its first notice is forgotten";
	EXPECT_TRUE(asks("0", "0", false));
}
