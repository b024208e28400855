/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * place.h - which of several peers to ask for a chunk of a file.
 *
 * Weighted rendezvous hashing: a hash of (file, chunk, address) gives each
 * candidate a number, and the best number for its weight wins. Every node
 * computes the same numbers, so all readers of a chunk ask the same holder. A
 * candidate that joins or leaves moves only its own share. Chunks spread over
 * the candidates in proportion to their weights. The search for the next best
 * skips the peers that the fetch has asked.
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

/* Weight of a usable peer; best_srtt: smallest RTT among the candidates, 0: unknown. */
u32 coop_place_weight(const struct coop_peer *p, u32 best_srtt, u64 now);
struct coop_draw coop_place_draw(const struct coop_fid *fid, u64 chunk,
				 const struct coop_addr *addr, u32 weight);
/* Does a come before b? */
static inline bool coop_place_better(struct coop_draw a, struct coop_draw b)
{
	return (u64)a.cost * b.weight < (u64)b.cost * a.weight;
}

#ifdef __cplusplus
}
#endif

#endif /* COOP_PLACE_H */
