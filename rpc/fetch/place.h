/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * place.h - which of several peers to ask for a chunk of a file.
 *
 * Weighted rendezvous hashing: each candidate draws a number from (file, chunk,
 * its address) and the one with the best number for its weight wins. Every node
 * draws the same numbers, so a chunk's readers meet at the same holder; a
 * candidate that comes or goes moves only its own share; chunks spread over the
 * candidates in proportion to their weights. Asking for the next best excludes
 * those already asked.
 */
#ifndef COOP_PLACE_H
#define COOP_PLACE_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct coop_peer;

struct coop_draw {
	u32 cost;   /* -log2 of the number drawn, 16 fractional bits */
	u32 weight; /* 1 .. COOP_WEIGHT_MAX */
};

#define COOP_WEIGHT_MAX 4096

/* Weight of a usable peer; best_srtt: the smallest among the candidates, 0 unknown. */
u32 coop_place_weight(const struct coop_peer *p, u32 best_srtt, u64 now);
struct coop_draw coop_place_draw(const struct coop_fid *fid, u64 chunk,
				 const struct coop_addr *addr, u32 weight);
/* Is a to be asked before b? */
static inline bool coop_place_better(struct coop_draw a, struct coop_draw b)
{
	return (u64)a.cost * b.weight < (u64)b.cost * a.weight;
}

#ifdef __cplusplus
}
#endif

#endif /* COOP_PLACE_H */
