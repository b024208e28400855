// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * SipHash-2-4 after Aumasson and Bernstein, "SipHash: a fast short-input PRF"
 * (2012): two rounds a word, four to finish. The unit tests check the vectors
 * of that paper.
 */
#include "mac.h"

static inline u64 rotl(u64 v, u32 n)
{
	return (v << n) | (v >> (64 - n));
}

static inline void sip_round(struct coop_mac_state *s)
{
	s->a += s->b;
	s->c += s->d;
	s->b = rotl(s->b, 13) ^ s->a;
	s->d = rotl(s->d, 16) ^ s->c;
	s->a = rotl(s->a, 32);
	s->c += s->b;
	s->a += s->d;
	s->b = rotl(s->b, 17) ^ s->c;
	s->d = rotl(s->d, 21) ^ s->a;
	s->c = rotl(s->c, 32);
}

static inline void sip_word(struct coop_mac_state *s, u64 w)
{
	s->d ^= w;
	sip_round(s);
	sip_round(s);
	s->a ^= w;
}

static inline u64 load64(const u8 *p)
{
	__le64 v;

	memcpy(&v, p, sizeof(v));
	return le64_to_cpu(v);
}

void coop_mac_begin(struct coop_mac_state *s, const u8 key[COOP_MAC_KEY])
{
	const u64 k0 = load64(key), k1 = load64(key + 8);

	s->a = k0 ^ 0x736f6d6570736575ull;
	s->b = k1 ^ 0x646f72616e646f6dull;
	s->c = k0 ^ 0x6c7967656e657261ull;
	s->d = k1 ^ 0x7465646279746573ull;
	s->tail = 0;
	s->n_tail = 0;
	s->total = 0;
}

static inline void tail_byte(struct coop_mac_state *s, u8 v)
{
	s->tail |= (u64)v << (8 * s->n_tail++);
	if (s->n_tail < 8)
		return;
	sip_word(s, s->tail);
	s->tail = 0;
	s->n_tail = 0;
}

void coop_mac_add(struct coop_mac_state *s, const void *data, size_t len)
{
	const u8 *p = data;
	size_t left = len;

	s->total += (u32)len;
	for (; left && s->n_tail; left--)
		tail_byte(s, *p++);
	for (; left >= 8; left -= 8, p += 8)
		sip_word(s, load64(p));
	for (; left; left--)
		tail_byte(s, *p++);
}

u64 coop_mac_end(struct coop_mac_state *s)
{
	u32 i;

	sip_word(s, s->tail | (u64)s->total << 56);
	s->c ^= 0xff;
	for (i = 0; i < 4; i++)
		sip_round(s);
	return s->a ^ s->b ^ s->c ^ s->d;
}

/*
 * SipHash-2-4 of len bytes at data.
 *
 * To check an untrusted message, compare the result as one u64: the time then
 * does not depend on where the two values differ.
 */
u64 coop_mac(const u8 key[COOP_MAC_KEY], const void *data, size_t len)
{
	struct coop_mac_state s;

	coop_mac_begin(&s, key);
	coop_mac_add(&s, data, len);
	return coop_mac_end(&s);
}
