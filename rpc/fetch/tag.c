// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * tag.c - see tag.h. Words are little endian on every machine. The inner loop
 * keeps two sums, so that an addition does not wait for the previous one.
 */
#include "tag.h"

/* The derivation's input is shorter than any control message and does not start with "coop", so no
 * MAC on the wire equals a part of a key. */
#define DERIVE_LABEL 0x0067617465676170ull /* "pagetag" in memory order */

/* A sum of products, modulo 2^128. */
struct sum {
#ifdef COOP_U128
	COOP_U128 v;
#else
	u64 high, low;
#endif
};

#ifdef COOP_U128

static inline void add_product(struct sum *s, u64 a, u64 b)
{
	s->v += (COOP_U128)a * b;
}

static inline u64 low_half(const struct sum *s)
{
	return (u64)s->v;
}

static inline u64 high_half(const struct sum *s)
{
	return (u64)(s->v >> 64);
}

static inline void add_sum(struct sum *s, const struct sum *t)
{
	s->v += t->v;
}

#else

static inline void add_halves(struct sum *s, u64 high, u64 low)
{
	s->low += low;
	s->high += high + (s->low < low);
}

static inline void add_product(struct sum *s, u64 a, u64 b)
{
	u64 low, high = coop_multiply_halves(a, b, &low);

	add_halves(s, high, low);
}

static inline u64 low_half(const struct sum *s)
{
	return s->low;
}

static inline u64 high_half(const struct sum *s)
{
	return s->high;
}

static inline void add_sum(struct sum *s, const struct sum *t)
{
	add_halves(s, t->high, t->low);
}

#endif

static inline u64 word(const u8 *p)
{
	__le64 v;

	memcpy(&v, p, sizeof(v));
	return le64_to_cpu(v);
}

/* NH of one block: the sum over its pairs of words of (m0 + k0) * (m1 + k1). */
static void hash_block(const u64 *k, const u8 *p, __le64 out[2])
{
	struct sum even = {0}, odd = {0};
	u32 i;

	for (i = 0; i < COOP_TAG_BLOCK / 8; i += 4, p += 32) {
		add_product(&even, word(p) + k[i], word(p + 8) + k[i + 1]);
		add_product(&odd, word(p + 16) + k[i + 2], word(p + 24) + k[i + 3]);
	}
	add_sum(&even, &odd);
	out[0] = cpu_to_le64(low_half(&even));
	out[1] = cpu_to_le64(high_half(&even));
}

static u64 derived(const u8 fabric[COOP_MAC_KEY], u64 number)
{
	const __le64 text[2] = {cpu_to_le64(DERIVE_LABEL), cpu_to_le64(number)};

	return coop_mac(fabric, text, sizeof(text));
}

void coop_tag_derive(struct coop_tag_key *k, const u8 fabric[COOP_MAC_KEY])
{
	__le64 v;
	u32 i;

	for (i = 0; i < COOP_MAC_KEY / 8; i++) {
		v = cpu_to_le64(derived(fabric, i));
		memcpy(k->prf + i * sizeof(v), &v, sizeof(v));
	}
	for (i = 0; i < COOP_TAG_BLOCK / 8; i++)
		k->nh[i] = derived(fabric, COOP_MAC_KEY / 8 + i);
}

u64 coop_tag(const struct coop_tag_key *k, u64 id, u32 imm, u32 page, const void *bytes, u32 len)
{
	const __le64 attempt[3] = {
		cpu_to_le64(id),
		cpu_to_le64((u64)page << 32 | imm),
		cpu_to_le64(len),
	};
	struct coop_mac_state s;
	const u8 *p = bytes;
	__le64 nh[2];
	u32 at;

	coop_mac_begin(&s, k->prf);
	coop_mac_add(&s, attempt, sizeof(attempt));
	for (at = 0; at + COOP_TAG_BLOCK <= len; at += COOP_TAG_BLOCK) {
		hash_block(k->nh, p + at, nh);
		coop_mac_add(&s, nh, sizeof(nh));
	}
	return coop_mac_end(&s) & ((1ull << (8 * COOP_TAG_BYTES)) - 1);
}
