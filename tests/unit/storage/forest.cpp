// SPDX-License-Identifier: MIT
// forest.cpp - the roles of a file's members: in each colour a tree, none of whose members is
// burdened, and which changes little when a member comes or goes.
#include <algorithm>
#include <bit>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <vector>

#include "rpc/storage/forest.h"

namespace
{

constexpr u32 colours = COOP_FOREST_COLOURS;

// All roles of n members, computed once for all tests.
struct forest {
	std::vector<coop_role> roles;
	const coop_role *of(u32 member) const { return roles.data() + member * colours; }
};

const forest &forest_of(u32 n)
{
	static std::map<u32, forest> known;
	forest &f = known[n];
	if (f.roles.empty()) {
		f.roles.resize(n * colours);
		for (u32 i = 0; i < n * colours; i++)
			coop_forest_role(n, i / colours, i % colours, &f.roles[i]);
	}
	return f;
}

std::vector<u32> sizes()
{
	std::vector<u32> n;
	for (u32 i = 1; i <= 600; i++)
		n.push_back(i);
	for (u32 i : {991u, 1024u, 1025u, 4096u, 9999u, 10000u})
		n.push_back(i);
	return n;
}

} // namespace

TEST(forest, each_colour_is_a_tree_with_one_root)
{
	for (u32 n : sizes()) {
		const forest &f = forest_of(n);
		u32 most = 0;
		for (u32 c = 0; c < colours; c++) {
			u32 roots = 0;
			for (u32 i = 0; i < n; i++) {
				u32 walked = 0, at = i, up;
				while ((up = f.of(at)[c].parent) < n && walked <= n) {
					at = up;
					walked++;
				}
				if (up != COOP_NONE)
					FAIL() << "a cycle, or no member: " << n << " " << i;
				roots += !walked;
				most = std::max(most, walked);
			}
			ASSERT_EQ(roots, 1u) << n;
		}
		ASSERT_EQ(most, coop_forest_depth(n)) << n;
	}
	EXPECT_EQ(coop_forest_depth(1), 0u);
	EXPECT_EQ(coop_forest_depth(16), 1u);
	EXPECT_EQ(coop_forest_depth(17), 1u);
	EXPECT_EQ(coop_forest_depth(18), 2u);
	EXPECT_EQ(coop_forest_depth(10000), 10u);
}

TEST(forest, parents_and_alternates_have_smaller_levels)
{
	for (u32 n : sizes()) {
		const forest &f = forest_of(n);
		for (u32 i = 0; i < n; i++)
			for (u32 c = 0; c < colours; c++) {
				const coop_role &r = f.of(i)[c];
				const auto below = [&](u32 up) {
					return up == COOP_NONE ||
					       (up < n && f.of(up)[c].level < r.level);
				};
				const bool root = r.parent == COOP_NONE;
				if (r.level < COOP_LEVEL_ROOT || r.level >= COOP_LEVEL_NO_ROLE ||
				    !below(r.parent) || !below(r.alternate))
					FAIL() << n << " " << i << " " << c;
				if (root ? r.alternate != COOP_NONE : r.alternate == r.parent)
					FAIL() << n << " " << i << " " << c;
			}
	}
}

TEST(forest, a_member_forwards_about_one_copy)
{
	u32 worst = 0;
	for (u32 n : sizes()) {
		const forest &f = forest_of(n);
		std::vector<u32> children(n);
		std::vector<u32> inside(n); // colours in which the member has children, a bit each
		for (u32 i = 0; i < n; i++)
			for (u32 c = 0; c < colours; c++)
				if (const u32 p = f.of(i)[c].parent; p != COOP_NONE) {
					children[p]++;
					inside[p] |= 1u << c;
				}
		for (u32 i = 0; i < n; i++) {
			u32 said = 0;
			for (u32 c = 0; c < colours; c++)
				said += coop_forest_children(n, i, c);
			ASSERT_EQ(said, children[i]) << n << " " << i;
			const bool full = i < n / colours * colours;
			const u32 m = n % colours; // members of a short last block
			ASSERT_LE(children[i],
				  full ? COOP_FOREST_CHILDREN_FULL + 0u : COOP_FOREST_CHILDREN + 0u)
				<< n << " " << i;
			const u32 in_most = full ? 1 : (colours + m - 1) / m;
			ASSERT_LE(std::popcount(inside[i]), static_cast<int>(in_most))
				<< n << " " << i;
			worst = std::max(worst, children[i]);
		}
	}
	EXPECT_EQ(worst, COOP_FOREST_CHILDREN + 0u) << "the bound is not reached";
}

TEST(forest, a_newcomer_changes_only_the_roles_of_its_block)
{
	u32 most = 0, sum = 0, joins = 0;
	for (u32 n = 2; n <= 600; n++) {
		const forest &before = forest_of(n - 1), &after = forest_of(n);
		const u32 block = (n - 1) / colours * colours;
		u32 changed = 0;
		for (u32 i = 0; i < n - 1; i++) {
			const bool same = !std::memcmp(before.of(i), after.of(i),
						       colours * sizeof(coop_role));
			changed += !same;
			ASSERT_TRUE(same || i >= block) << n << " " << i;
		}
		most = std::max(most, changed);
		sum += changed;
		joins++;
	}
	EXPECT_LE(most, colours - 1);
	EXPECT_LE(sum, joins * colours / 2) << "7.5 on average";
}

TEST(forest, leaves_hang_below_members_and_have_greater_levels)
{
	for (u32 n : sizes()) {
		const forest &f = forest_of(n);
		const u32 blocks = (n + colours - 1) / colours;
		ASSERT_EQ(coop_forest_blocks(n), blocks);
		for (u32 leaf = 0; leaf < 3 * blocks; leaf++)
			for (u32 c = 0; c < colours; c++) {
				coop_role r;
				coop_forest_leaf_role(n, leaf, c, &r);
				ASSERT_LT(r.parent, n);
				ASSERT_EQ(coop_forest_part_of(r.level), COOP_PART_LEAF);
				ASSERT_LT(f.of(r.parent)[c].level, r.level);
				ASSERT_EQ(coop_forest_part_of(f.of(r.parent)[c].level),
					  COOP_PART_CARRIER);
				if (r.alternate == COOP_NONE)
					continue; // a block of one member
				ASSERT_LT(r.alternate, n);
				ASSERT_LT(f.of(r.alternate)[c].level, r.level);
				ASSERT_EQ(coop_forest_part_of(f.of(r.alternate)[c].level),
					  COOP_PART_SUBSTITUTE);
			}
	}
}

TEST(forest, leaves_are_spread_and_few_move_when_a_block_comes)
{
	for (u32 blocks = 1; blocks <= 200; blocks++) {
		std::vector<u32> below(blocks), to, from;
		for (u32 leaf = 0; leaf < 4096; leaf++) {
			const u32 b = coop_forest_leaf_block(blocks, leaf);
			ASSERT_LT(b, blocks);
			below[b]++;
			if (const u32 next = coop_forest_leaf_block(blocks + 1, leaf); next != b) {
				ASSERT_EQ(next, blocks);
				from.push_back(b);
			}
		}
		const auto [least, most] = std::minmax_element(below.begin(), below.end());
		EXPECT_LE(*most, 2 * *least + 1) << blocks;
		ASSERT_FALSE(from.empty());
		EXPECT_EQ(std::count(from.begin(), from.end(), from[0]),
			  static_cast<long>(from.size()))
			<< "they come from several blocks: " << blocks;
	}
}

TEST(forest, adjacent_units_have_all_colours_in_turn)
{
	for (u64 file = 0; file < 64; file++) {
		const coop_fid fid = {file, ~file};
		std::set<u32> seen;
		for (u64 unit = 1000; unit < 1000 + colours; unit++) {
			const u32 c = coop_forest_colour(&fid, unit);
			ASSERT_LT(c, colours);
			seen.insert(c);
			EXPECT_EQ(coop_forest_colour(&fid, unit + 1), (c + 1) % colours);
		}
		EXPECT_EQ(seen.size(), colours);
	}
	std::set<u32> first;
	for (u64 file = 0; file < 256; file++) {
		const coop_fid fid = {0, file};
		first.insert(coop_forest_colour(&fid, 0));
	}
	EXPECT_EQ(first.size(), colours) << "files of one unit do not all have one root";
}
