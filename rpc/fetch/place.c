// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Weighted rendezvous hashing in integers; see place.h. The textbook rule is to
 * minimise -ln(u)/w. The base of the logarithm does not matter, and cross
 * multiplication compares the quotients without a division.
 */
#include "place.h"

#include "peer.h"
#include "rpc/base/addr.h"
#include "rpc/base/bits.h"

#define FRACTION 16

/* -log2(u / 2^64), 16 fractional bits; within 0.6 % of one octave. */
static u32 minus_log2(u64 u)
{
	u32 octave, x, bow;

	if (!u)
		u = 1;
	octave = coop_ilog2(u);
	/* u = 2^octave * (1 + x); log2(1 + x) is near x + 0.344 x (1 - x). */
	u <<= 63 - octave;
	x = (u32)((u << 1) >> (64 - FRACTION));
	bow = (u32)((u64)x * ((1u << FRACTION) - x) >> FRACTION);
	bow = (u32)((u64)bow * 22544 >> FRACTION);
	return ((64 - octave) << FRACTION) - x - bow;
}

struct coop_draw coop_place_draw(const struct coop_fid *fid, u64 chunk,
				 const struct coop_addr *addr, u32 weight)
{
	u64 h = coop_mix(fid->hi ^ 0x706c616365ull);
	struct coop_draw d;

	h = coop_mix(h ^ fid->lo);
	h = coop_mix(h ^ chunk);
	h = coop_mix(h ^ coop_addr_hash(addr));
	d.cost = minus_log2(h);
	d.weight = weight;
	return d;
}

u32 coop_place_weight(const struct coop_peer *p, u32 best_srtt, u64 now)
{
	u32 weight = COOP_WEIGHT_MAX;

	/* A peer without a measured RTT has full weight. Halve the weight for each octave of RTT
	 * above the best, except the first: those are about equally near. */
	if (p->srtt_us && best_srtt) {
		u32 octaves = coop_ilog2(p->srtt_us / best_srtt + 1);

		if (octaves > 1)
			weight >>= coop_min_u32(octaves - 1, 5);
	}
	if (p->health != COOP_PEER_HEALTHY)
		weight >>= 3;
	if (p->busy_until > now)
		weight >>= 3;
	return coop_max_u32(weight, 1);
}
