/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * forest.h - who asks whom for the pages of a file that many nodes read at once.
 *
 * The nodes that have one version of a file open are its members, numbered 0 to n - 1. A forest of
 * COOP_FOREST_COLOURS trees spans them. Each unit of the file has a colour, and a member that lacks
 * a unit asks its parent in the tree of that colour; the root takes the unit from storage. So
 * storage sends each byte once.
 *
 * Members 16b to 16b + 15 are block b; the last block may be shorter. Blocks form a tree in which
 * each block has COOP_FOREST_ARITY children. In each colour one member of a block, the carrier,
 * asks the carrier of the parent block, and the others of the block ask the carrier. Another one,
 * the substitute, is the alternate parent. In a full block each member is the carrier in one colour
 * and has no children in the other 15, so all members send about as much as they receive.
 *
 * A leaf is a node that has the file open and passes nothing on, because it is slow or does not
 * want to. Leaves have numbers of their own, 0 to l - 1, and stand outside the blocks. Each hangs
 * below one block, with the carrier and the substitute as its parents, and is nobody's parent.
 *
 * Pure functions without state: the daemon and the simulator compute the same roles.
 */
#ifndef COOP_FOREST_H
#define COOP_FOREST_H

#include "rpc/base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_FOREST_COLOURS    16 /* trees of a file, and members of a full block */
#define COOP_FOREST_ARITY      2  /* child blocks of a block */
#define COOP_FOREST_UNIT_PAGES 64 /* pages of a unit; a page has 4096 bytes */
#define COOP_FOREST_UNIT       (COOP_FOREST_UNIT_PAGES * 4096u)

/*
 * Most children of a member, over all colours: of the carrier of one colour in a full block, and of
 * any member. A child takes a sixteenth of the file, so these are 1.06 and 1.75 copies sent.
 */
#define COOP_FOREST_CHILDREN_FULL (COOP_FOREST_COLOURS - 1 + COOP_FOREST_ARITY)
#define COOP_FOREST_CHILDREN      28

/*
 * The level of a load of pages says whose it is. A request carries the level of the load that it is
 * for, and waits at a peer only for a load of a smaller level. So waits cannot form a cycle,
 * whichever roles change meanwhile.
 */
enum coop_forest_level {
	COOP_LEVEL_SENDING = 0,    /* storage is sending the bytes; in a request: do not wait */
	COOP_LEVEL_STORAGE = 1,    /* storage was asked and may redirect */
	COOP_LEVEL_REDIRECTED = 2, /* storage has named peers that were sent the bytes; up to 7:
				    * peers that were redirected themselves */
	COOP_LEVEL_ROOT = 8,       /* the lowest level of a role */
};
#define COOP_LEVEL_NO_ROLE 0xffff0000u /* the loader has no role; above the levels of all roles */

/* A member's place in the tree of one colour. */
struct coop_role {
	u32 parent;    /* member number; COOP_NONE: the member is the root */
	u32 alternate; /* to be asked if the parent fails; COOP_NONE: storage */
	u32 level;     /* parent and alternate have smaller ones */
};

/* The role of member 'index' of n in the tree of 'colour'; index < n, colour < 16. */
void coop_forest_role(u32 n, u32 index, u32 colour, struct coop_role *out);

/*
 * The block that leaf 'leaf' hangs below, of a forest with 'blocks' blocks; blocks > 0. When a
 * block comes or goes, only leaves between it and one other block move.
 */
u32 coop_forest_leaf_block(u32 blocks, u32 leaf);

/* Blocks of n members. */
u32 coop_forest_blocks(u32 n);

/* The role of leaf 'leaf' below a forest of n members; n > 0, colour < 16. */
void coop_forest_leaf_role(u32 n, u32 leaf, u32 colour, struct coop_role *out);

/* Children of member 'index' of n in the tree of 'colour', without leaves. */
u32 coop_forest_children(u32 n, u32 index, u32 colour);

/* The most steps from any of n members to a root, by parents. */
u32 coop_forest_depth(u32 n);

/* What a member or leaf is in the tree of a colour in which it has this level. */
enum coop_forest_part {
	COOP_PART_CARRIER,    /* asks the parent block for its own, or storage */
	COOP_PART_SUBSTITUTE, /* asks the carrier, and takes its place if that fails */
	COOP_PART_OTHER,
	COOP_PART_LEAF,
};
enum coop_forest_part coop_forest_part_of(u32 level);

/* The colour of a unit: the file's first COOP_FOREST_UNIT bytes are unit 0. */
u32 coop_forest_colour(const struct coop_fid *fid, u64 unit);

#ifdef __cplusplus
}
#endif

#endif /* COOP_FOREST_H */
