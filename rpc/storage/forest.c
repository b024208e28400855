// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * forest.c - the roles of a file's members.
 *
 * A block has as many members as there are colours, so that each of them carries one. A block
 * exists only if all blocks before it are full. So only the last one can be short, and it has no
 * child blocks. There a member is the carrier in several colours.
 *
 * A member that comes or goes at the end changes the roles of its own block and of no other, and of
 * the leaves below it.
 */
#include "forest.h"

#include "rpc/base/bits.h"

#define BLOCK            COOP_FOREST_COLOURS
#define LEVELS_PER_DEPTH 4 /* one for each enum coop_forest_part */

/* Members of block b, of n members in all. */
static u32 members_of(u32 n, u32 b)
{
	return coop_min_u32(n - b * BLOCK, BLOCK);
}

static u32 carrier(u32 n, u32 b, u32 colour)
{
	return b * BLOCK + colour % members_of(n, b);
}

static u32 substitute(u32 n, u32 b, u32 colour)
{
	const u32 m = members_of(n, b);

	return m > 1 ? b * BLOCK + (colour + 1) % m : COOP_NONE;
}

/* Steps from block b to block 0. */
static u32 depth_of(u32 b)
{
	u32 depth = 0;

	while (b) {
		b = (b - 1) / COOP_FOREST_ARITY;
		depth++;
	}
	return depth;
}

void coop_forest_role(u32 n, u32 index, u32 colour, struct coop_role *out)
{
	const u32 b = index / BLOCK;
	const u32 above = b ? (b - 1) / COOP_FOREST_ARITY : COOP_NONE;
	const u32 first = carrier(n, b, colour), second = substitute(n, b, colour);

	out->level = COOP_LEVEL_ROOT + LEVELS_PER_DEPTH * depth_of(b);
	if (index == first) {
		out->parent = b ? carrier(n, above, colour) : COOP_NONE;
		out->alternate = b ? substitute(n, above, colour) : COOP_NONE;
	} else if (index == second) {
		out->parent = first;
		out->alternate = b ? carrier(n, above, colour) : COOP_NONE;
		out->level += COOP_PART_SUBSTITUTE;
	} else {
		out->parent = first;
		out->alternate = second;
		out->level += COOP_PART_OTHER;
	}
}

u32 coop_forest_blocks(u32 n)
{
	return (n + BLOCK - 1) / BLOCK;
}

/*
 * As in linear hashing: of the low bits of the number as many as there are blocks for. So the
 * leaves of a new block all come from one block. A block has at most twice as many leaves as
 * another one, and one more.
 */
u32 coop_forest_leaf_block(u32 blocks, u32 leaf)
{
	u32 bits = 1, b;

	while (bits < blocks)
		bits *= 2;
	b = leaf & (bits - 1);
	return b < blocks ? b : b - bits / 2;
}

void coop_forest_leaf_role(u32 n, u32 leaf, u32 colour, struct coop_role *out)
{
	const u32 b = coop_forest_leaf_block(coop_forest_blocks(n), leaf);

	out->parent = carrier(n, b, colour);
	out->alternate = substitute(n, b, colour);
	out->level = COOP_LEVEL_ROOT + LEVELS_PER_DEPTH * depth_of(b) + COOP_PART_LEAF;
}

u32 coop_forest_children(u32 n, u32 index, u32 colour)
{
	const u32 b = index / BLOCK;
	u32 i, sum;

	if (index != carrier(n, b, colour))
		return 0;
	sum = members_of(n, b) - 1;
	for (i = 1; i <= COOP_FOREST_ARITY; i++)
		sum += (COOP_FOREST_ARITY * b + i) * BLOCK < n;
	return sum;
}

enum coop_forest_part coop_forest_part_of(u32 level)
{
	return (enum coop_forest_part)((level - COOP_LEVEL_ROOT) % LEVELS_PER_DEPTH);
}

u32 coop_forest_depth(u32 n)
{
	const u32 last = n ? (n - 1) / BLOCK : 0;

	if (n <= 1)
		return 0;
	if (members_of(n, last) > 1)
		return depth_of(last) + 1;
	return depth_of(last - 1) + 1; /* the last block is one carrier */
}

u32 coop_forest_colour(const struct coop_fid *fid, u64 unit)
{
	return (u32)((coop_mix(fid->hi ^ coop_mix(fid->lo)) + unit) % COOP_FOREST_COLOURS);
}
