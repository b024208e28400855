/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * tag.h - the keyed hash of a page's bytes, as a COMMIT carries it.
 *
 * Segments travel without a MAC of their own, straight into the pages, so the
 * requester checks whole pages: the responder, which holds the fabric key, puts
 * a tag of each page into the COMMIT. A CRC is not enough, because anyone can
 * match one.
 *
 *   tag = SipHash-2-4(PRF key, request id | imm | page ordinal | length |
 *                              NH(block 0) | NH(block 1) | ...), its low 48 bits
 *
 * NH is the almost universal hash of UMAC (Black, Halevi, Krawczyk, Krovetz and
 * Rogaway, CRYPTO '99) with words of 64 bits: one multiplication for 16 bytes,
 * and two different blocks collide with probability 2^-64 under a random key.
 * It is not a MAC by itself, because its values would reveal the key. The PRF
 * hides them and binds them to the attempt, so that a tag proves nothing about
 * another attempt, another page or other bytes.
 */
#ifndef COOP_TAG_H
#define COOP_TAG_H

#include "rpc/base/mac.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_TAG_BLOCK 1024 /* bytes that one NH value covers, and bytes of the NH key */
#define COOP_TAG_BYTES 6    /* of a tag on the wire */

struct coop_tag_key {
	u64 nh[COOP_TAG_BLOCK / 8];
	u8 prf[COOP_MAC_KEY];
};

/* Derives both keys from the fabric key. */
void coop_tag_derive(struct coop_tag_key *k, const u8 fabric[COOP_MAC_KEY]);

/* The tag of the page with this ordinal in the attempt; len is a multiple of COOP_TAG_BLOCK. */
u64 coop_tag(const struct coop_tag_key *k, u64 id, u32 imm, u32 page, const void *bytes, u32 len);

/* Returns the high half of a * b, and the low half in *low, without 128-bit integers. */
static inline u64 coop_multiply_halves(u64 a, u64 b, u64 *low)
{
	const u64 al = (u32)a, ah = a >> 32, bl = (u32)b, bh = b >> 32;
	const u64 ll = al * bl, lh = al * bh, hl = ah * bl;
	const u64 middle = (ll >> 32) + (u32)lh + (u32)hl;

	*low = middle << 32 | (u32)ll;
	return ah * bh + (lh >> 32) + (hl >> 32) + (middle >> 32);
}

#ifdef __cplusplus
}
#endif

#endif /* COOP_TAG_H */
