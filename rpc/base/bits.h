/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * bits.h - small integer helpers that are the same in kernel, program and simulator.
 *
 * The compiler's popcount becomes a library call on baseline x86-64, and the
 * kernel's bitmaps use longs. The engine can link against neither, so the few
 * operations that it needs are written out here, on u64 words.
 */
#ifndef COOP_BITS_H
#define COOP_BITS_H

#include "host.h"

static inline u32 coop_min_u32(u32 a, u32 b)
{
	return a < b ? a : b;
}

static inline u32 coop_max_u32(u32 a, u32 b)
{
	return a > b ? a : b;
}

static inline u64 coop_min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

/* Bits set in v. */
static inline u32 coop_weight(u64 v)
{
	v -= (v >> 1) & 0x5555555555555555ull;
	v = (v & 0x3333333333333333ull) + ((v >> 2) & 0x3333333333333333ull);
	v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return (u32)((v * 0x0101010101010101ull) >> 56);
}

/* Number of the lowest set bit; v is not 0. */
static inline u32 coop_lowest(u64 v)
{
	return (u32)__builtin_ctzll(v);
}

/* floor(log2(v)); v is not 0. */
static inline u32 coop_ilog2(u64 v)
{
	return 63u - (u32)__builtin_clzll(v);
}

/* The lowest n bits, n of 0..64. */
static inline u64 coop_mask(u32 n)
{
	return n >= 64 ? ~0ull : (1ull << n) - 1;
}

static inline bool coop_bit(const u64 *map, u32 i)
{
	return (map[i >> 6] >> (i & 63)) & 1;
}

static inline void coop_bit_set(u64 *map, u32 i)
{
	map[i >> 6] |= 1ull << (i & 63);
}

static inline void coop_bit_clear(u64 *map, u32 i)
{
	map[i >> 6] &= ~(1ull << (i & 63));
}

/* A bijection that spreads every input bit over the result (for hashing, not for secrets). */
static inline u64 coop_mix(u64 v)
{
	v ^= v >> 30;
	v *= 0xbf58476d1ce4e5b9ull;
	v ^= v >> 27;
	v *= 0x94d049bb133111ebull;
	v ^= v >> 31;
	return v;
}

/* Next number of a sequence that the host's seed determines. */
static inline u64 coop_random(u64 *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	return coop_mix(*state);
}

#endif /* COOP_BITS_H */
