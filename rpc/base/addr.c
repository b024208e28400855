// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Text and identity of a queue pair's address; see addr.h. The parser reads a
 * (pointer, end) pair and never past its end: its input is a user's write().
 */
#include "addr.h"

#include "bits.h"

struct cursor {
	const char *at, *end;
};

static bool blank(char c)
{
	return c == ' ' || c == '\t';
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Digits of a base up to a value of max; at least one digit, at most max_digits. */
static bool number(struct cursor *c, u32 base, u64 max, u32 max_digits, u64 *out)
{
	u64 v = 0;
	u32 n = 0;

	for (; c->at < c->end && n < max_digits; c->at++, n++) {
		int d = digit(*c->at);

		if (d < 0 || (u32)d >= base)
			break;
		v = v * base + (u32)d;
		if (v > max)
			return false;
	}
	*out = v;
	return n > 0;
}

static bool integer(struct cursor *c, u64 max, u64 *out)
{
	if (c->end - c->at > 2 && c->at[0] == '0' && (c->at[1] == 'x' || c->at[1] == 'X')) {
		c->at += 2;
		return number(c, 16, max, 16, out);
	}
	return number(c, 10, max, 20, out);
}

static bool dotted_quad(struct cursor *c, u8 out[4])
{
	u32 i;

	for (i = 0; i < 4; i++) {
		u64 v;

		if (i > 0) {
			if (c->at == c->end || *c->at != '.')
				return false;
			c->at++;
		}
		if (!number(c, 10, 255, 3, &v))
			return false;
		out[i] = (u8)v;
	}
	return true;
}

/* Is there a '.' before the next ':' or the end of the word? Then a dotted quad follows. */
static bool quad_follows(const struct cursor *c)
{
	const char *p;

	for (p = c->at; p < c->end && digit(*p) >= 0; p++)
		;
	return p < c->end && *p == '.';
}

/* IPv6 text form: groups, one "::", a dotted quad in the last four bytes. */
static bool gid(struct cursor *c, u8 out[16])
{
	u8 bytes[16];
	u32 n = 0, gap = COOP_NONE;

	memset(bytes, 0, sizeof(bytes));
	if (c->end - c->at >= 2 && c->at[0] == ':' && c->at[1] == ':') {
		gap = 0;
		c->at += 2;
	}
	while (c->at < c->end && digit(*c->at) >= 0) {
		u64 v;

		if (n == 16)
			return false;
		if (quad_follows(c)) {
			if (n > 12 || !dotted_quad(c, bytes + n))
				return false;
			n += 4;
			break;
		}
		if (!number(c, 16, 0xffff, 4, &v))
			return false;
		bytes[n++] = (u8)(v >> 8);
		bytes[n++] = (u8)v;
		if (c->at == c->end || *c->at != ':')
			break;
		c->at++;
		if (c->at < c->end && *c->at == ':') {
			if (gap != COOP_NONE)
				return false;
			gap = n;
			c->at++;
		} else if (c->at == c->end || digit(*c->at) < 0) {
			return false; /* a lone ':' at the end */
		}
	}
	if (gap == COOP_NONE)
		gap = n == 16 ? 16 : COOP_NONE;
	else if (n > 14)
		gap = COOP_NONE; /* "::" stands for one group at least */
	if (gap == COOP_NONE)
		return false;
	memset(out, 0, 16);
	memcpy(out, bytes, gap);
	memcpy(out + 16 - (n - gap), bytes + gap, n - gap);
	return true;
}

enum key {
	KEY_GID = 1,
	KEY_LID = 2,
	KEY_QPN = 4,
	KEY_QKEY = 8,
	KEY_SL = 16,
};

static u32 take_key(struct cursor *c)
{
	static const struct {
		char name[6];
		u8 len;
		u8 key;
	} keys[] = {
		{"gid=", 4, KEY_GID},   {"lid=", 4, KEY_LID}, {"qpn=", 4, KEY_QPN},
		{"qkey=", 5, KEY_QKEY}, {"sl=", 3, KEY_SL},
	};
	u32 i;

	for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if ((size_t)(c->end - c->at) >= keys[i].len &&
		    !memcmp(c->at, keys[i].name, keys[i].len)) {
			c->at += keys[i].len;
			return keys[i].key;
		}
	}
	return 0;
}

int coop_addr_parse(const char *text, size_t len, struct coop_addr *out)
{
	struct cursor c = {.at = text, .end = text + len};
	struct coop_addr a;
	u32 seen = 0;

	memset(&a, 0, sizeof(a));
	if (len && text[len - 1] == '\n')
		c.end--;
	for (;;) {
		u32 key;
		u64 v = 0;
		bool ok;

		while (c.at < c.end && blank(*c.at))
			c.at++;
		if (c.at == c.end)
			break;
		key = take_key(&c);
		if (!key || (seen & key))
			return -EINVAL;
		seen |= key;
		switch (key) {
		case KEY_GID:
			ok = gid(&c, a.gid);
			break;
		case KEY_LID:
			ok = integer(&c, 0xffff, &v);
			a.lid = (u16)v;
			break;
		case KEY_QPN:
			ok = integer(&c, COOP_QPN_MAX, &v);
			a.qpn = (u32)v;
			break;
		case KEY_QKEY:
			ok = integer(&c, 0xffffffffu, &v);
			a.qkey = (u32)v;
			break;
		default: /* KEY_SL */
			ok = integer(&c, COOP_SL_MAX, &v);
			a.sl = (u8)v;
			break;
		}
		if (!ok || (c.at < c.end && !blank(*c.at)))
			return -EINVAL;
	}
	if (!(seen & KEY_QPN) || !(seen & KEY_QKEY) || !coop_addr_valid(&a))
		return -EINVAL;
	*out = a;
	return 0;
}

struct sink {
	char *buf;
	size_t size, len; /* len may pass size: then the text did not fit */
};

static void put(struct sink *s, char c)
{
	if (s->len < s->size)
		s->buf[s->len] = c;
	s->len++;
}

static void put_text(struct sink *s, const char *text)
{
	while (*text)
		put(s, *text++);
}

static void put_hex(struct sink *s, u32 v, u32 min_digits)
{
	u32 n = 8;

	while (n > min_digits && n > 1 && !(v >> (4 * (n - 1))))
		n--;
	while (n--)
		put(s, "0123456789abcdef"[v >> (4 * n) & 15]);
}

static void put_decimal(struct sink *s, u32 v)
{
	if (v >= 10)
		put_decimal(s, v / 10);
	put(s, (char)('0' + v % 10));
}

static void put_gid(struct sink *s, const u8 g[16])
{
	static const u8 mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	u32 i, run, best = 8, best_len = 1; /* a single zero group is written out */

	if (!memcmp(g, mapped, sizeof(mapped))) {
		put_text(s, "::ffff:");
		for (i = 12; i < 16; i++) {
			put_decimal(s, g[i]);
			if (i < 15)
				put(s, '.');
		}
		return;
	}
	for (i = 0; i < 8; i++) {
		for (run = 0; i + run < 8 && !g[2 * (i + run)] && !g[2 * (i + run) + 1]; run++)
			;
		if (run > best_len) {
			best = i;
			best_len = run;
		}
	}
	for (i = 0; i < 8; i++) {
		if (i == best) {
			put_text(s, "::");
			i += best_len - 1;
			continue;
		}
		if (i > 0 && i != best + best_len)
			put(s, ':');
		put_hex(s, (u32)g[2 * i] << 8 | g[2 * i + 1], 1);
	}
}

int coop_addr_format(const struct coop_addr *a, char *buf, size_t size)
{
	struct sink s = {.buf = buf, .size = size, .len = 0};

	put_text(&s, "gid=");
	put_gid(&s, a->gid);
	put_text(&s, " lid=0x");
	put_hex(&s, a->lid, 4);
	put_text(&s, " qpn=0x");
	put_hex(&s, a->qpn, 6);
	put_text(&s, " qkey=0x");
	put_hex(&s, a->qkey, 8);
	put_text(&s, " sl=");
	put_decimal(&s, a->sl);
	if (s.len >= size)
		return -ENOSPC;
	buf[s.len] = '\0';
	return (int)s.len;
}

bool coop_addr_has_gid(const struct coop_addr *a)
{
	static const u8 zero[16];

	return memcmp(a->gid, zero, 16) != 0;
}

bool coop_addr_valid(const struct coop_addr *a)
{
	/* QPs 0 and 1 belong to fabric management, 0xffffff to multicast, as does a GID in
	 * ff00::/8. */
	if (a->qpn < 2 || a->qpn >= COOP_QPN_MAX || a->sl > COOP_SL_MAX)
		return false;
	if (coop_addr_has_gid(a))
		return a->gid[0] != 0xff;
	return a->lid > 0 && a->lid < 0xc000;
}

bool coop_addr_same_port(const struct coop_addr *a, const struct coop_addr *b)
{
	if (memcmp(a->gid, b->gid, 16))
		return false;
	return coop_addr_has_gid(a) || a->lid == b->lid;
}

bool coop_addr_same(const struct coop_addr *a, const struct coop_addr *b)
{
	return a->qpn == b->qpn && coop_addr_same_port(a, b);
}

u64 coop_addr_hash(const struct coop_addr *a)
{
	__le64 half[2];
	u64 h;

	memcpy(half, a->gid, 16);
	h = coop_mix(le64_to_cpu(half[0]) + 0x636f6f70u);
	h = coop_mix(h ^ le64_to_cpu(half[1]));
	return coop_mix(h ^ ((u64)a->qpn << 16 | (coop_addr_has_gid(a) ? 0 : a->lid)));
}
