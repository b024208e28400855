// SPDX-License-Identifier: MIT
// trees.hpp - the forest of a file, with the number of trees and the arity open.
//
// The product has both as constants (rpc/storage/forest.h, which this uses for them); the simulator
// varies them to find out what they do.
#pragma once

#include "rpc/storage/forest.h"
#include "tests/sim/scale/agenda.hpp"

namespace coop::scale
{

constexpr u32 nobody = COOP_NONE;

struct place {
	u32 parent = nobody, alternate = nobody; // members; nobody as parent: the root
	u32 level = 0;
};

class trees
{
public:
	trees(u32 count, u32 arity) : count_(count), arity_(arity) {}

	u32 count() const { return count_; }
	// Where member i of n stands in the tree of this colour.
	place of(u32 n, u32 i, u32 colour) const
	{
		if (count_ == COOP_FOREST_COLOURS && arity_ == COOP_FOREST_ARITY) {
			coop_role r;
			coop_forest_role(n, i, colour, &r);
			return {r.parent, r.alternate, r.level};
		}
		const u32 b = i / count_;
		place p = below(n, b, colour);
		if (i == p.parent) {
			p.level -= 2;
			p.parent = b ? carrier_of(n, above(b), colour) : nobody;
			p.alternate = b ? substitute_of(n, above(b), colour) : nobody;
		} else if (i == p.alternate) {
			p.level -= 1;
			p.alternate = b ? carrier_of(n, above(b), colour) : nobody;
		}
		return p;
	}
	// Where leaf j stands below the tree of n members.
	place of_leaf(u32 n, u32 j, u32 colour) const
	{
		if (count_ == COOP_FOREST_COLOURS && arity_ == COOP_FOREST_ARITY) {
			coop_role r;
			coop_forest_leaf_role(n, j, colour, &r);
			return {r.parent, r.alternate, r.level};
		}
		place p = below(n, block_of_leaf(n, j), colour);
		p.level += COOP_PART_LEAF - COOP_PART_OTHER;
		return p;
	}
	// The block that leaf j hangs below; n > 0.
	u32 block_of_leaf(u32 n, u32 j) const { return coop_forest_leaf_block(blocks(n), j); }
	u32 blocks(u32 n) const { return (n + count_ - 1) / count_; }
	u32 block(u32 i) const { return i / count_; }
	u32 first_below(u32 b) const { return b * arity_ + 1; }
	u32 arity() const { return arity_; }

private:
	// The place of a member of block b that carries no colour.
	place below(u32 n, u32 b, u32 colour) const
	{
		return {carrier_of(n, b, colour), substitute_of(n, b, colour),
			COOP_LEVEL_ROOT + 4 * depth(b) + COOP_PART_OTHER};
	}
	u32 above(u32 b) const { return (b - 1) / arity_; }
	u32 depth(u32 b) const
	{
		u32 d = 0;
		for (; b; b = above(b))
			++d;
		return d;
	}
	u32 size(u32 n, u32 b) const { return std::min(count_, n - b * count_); }
	u32 carrier_of(u32 n, u32 b, u32 colour) const { return b * count_ + colour % size(n, b); }
	u32 substitute_of(u32 n, u32 b, u32 colour) const
	{
		const u32 m = size(n, b);
		return m == 1 ? nobody : b * count_ + (colour + 1) % m;
	}

	u32 count_, arity_;
};

} // namespace coop::scale
