// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Encodes and decodes control messages; see wire.h. The structures below are
 * the wire format: no padding, little endian, copied with memcpy after a bounds
 * check. A receive buffer is never cast.
 */
#include "wire.h"

#include "rpc/base/addr.h"
#include "rpc/base/bits.h"
#include "rpc/base/mac.h"
#include "tag.h"

struct wire_header {
	__le32 magic;
	u8 version;
	u8 command;
	u8 hops;
	u8 flags;
	__le64 id;
	__le32 imm;
	__le16 length; /* of the whole datagram, MAC included */
	__le16 reason;
};
static_assert(sizeof(struct wire_header) == COOP_WIRE_HEADER, "header layout");

struct wire_addr {
	u8 gid[16];
	__le32 qpn;
	__le32 qkey;
	__le16 lid;
	u8 sl;
	u8 zero;
};
static_assert(sizeof(struct wire_addr) == 28, "address layout");

struct wire_request {
	__le64 fid_hi, fid_lo;
	__le64 version;
	__le64 size;
	struct wire_addr data;
	struct wire_addr reply;
	__le32 budget_us;
	__le16 mtu;
	__le16 options;
	u8 page_shift;
	u8 attempt;
	u8 n_ext;
	u8 zero;
	__le32 level;
};
static_assert(sizeof(struct wire_request) == 104, "REQUEST layout");

struct wire_extent {
	__le32 index_lo, index_hi;
	__le32 count;
};
static_assert(sizeof(struct wire_extent) == 12, "extent layout");

struct wire_commit {
	__le64 fid_hi, fid_lo;
	__le64 version;
	__le64 size;
	__le64 pages;
	u8 gid[16];
	__le32 qpn;
	__le16 lid;
	u8 n_sums;
	u8 tags; /* 0 or 1 */
};
static_assert(sizeof(struct wire_commit) == 64, "COMMIT layout");

struct wire_offer {
	__le64 fid_hi, fid_lo;
	__le64 version;
	__le64 size;
	__le64 index;
	__le32 count;
	u8 chances;
	u8 page_shift;
	u8 zero[2];
};
static_assert(sizeof(struct wire_offer) == 48, "OFFER layout");

struct wire_note {
	__le32 value;
	__le32 zero;
};
static_assert(sizeof(struct wire_note) == 8, "note layout");

#define FRAME (COOP_WIRE_HEADER + COOP_WIRE_MAC)
#define REQUEST_MOST \
	(FRAME + sizeof(struct wire_request) + COOP_MAX_EXTENTS * sizeof(struct wire_extent))
#define PAGE_INDEX_BITS 52
#define CRC_BYTES       4

u32 coop_wire_room(u32 mtu)
{
	return coop_min_u32(mtu, COOP_CTRL_MAX);
}

u32 coop_wire_max_segs(u32 mtu)
{
	return coop_min_u32(COOP_MAX_SEGS, (coop_wire_room(mtu) - (u32)REQUEST_MOST) / 4 * 32);
}

static u32 sum_bytes(bool tags)
{
	return tags ? COOP_TAG_BYTES : CRC_BYTES;
}

u32 coop_wire_max_pages(u32 mtu, bool tags)
{
	u32 room = coop_wire_room(mtu) - FRAME - (u32)sizeof(struct wire_commit);

	return coop_min_u32(COOP_MAX_PAGES, room / sum_bytes(tags));
}

u32 coop_extents_pages(const struct coop_extent *ext, u32 n_ext)
{
	u64 end = 0;
	u32 i, pages = 0;

	if (!n_ext || n_ext > COOP_MAX_EXTENTS)
		return 0;
	for (i = 0; i < n_ext; i++) {
		if (!ext[i].count || ext[i].count > COOP_MAX_PAGES)
			return 0;
		if (ext[i].index >> PAGE_INDEX_BITS || ext[i].index < end)
			return 0;
		end = ext[i].index + ext[i].count;
		pages += ext[i].count;
	}
	return pages <= COOP_MAX_PAGES ? pages : 0;
}

/* 32-bit words of a bitmap of n_segs on the wire. */
static u32 want_words(u32 n_segs)
{
	return (n_segs + 31) / 32;
}

static void put_addr(struct wire_addr *w, const struct coop_addr *a)
{
	memset(w, 0, sizeof(*w));
	memcpy(w->gid, a->gid, 16);
	w->qpn = cpu_to_le32(a->qpn);
	w->qkey = cpu_to_le32(a->qkey);
	w->lid = cpu_to_le16(a->lid);
	w->sl = a->sl;
}

static bool get_addr(struct coop_addr *a, const struct wire_addr *w)
{
	memset(a, 0, sizeof(*a));
	memcpy(a->gid, w->gid, 16);
	a->qpn = le32_to_cpu(w->qpn);
	a->qkey = le32_to_cpu(w->qkey);
	a->lid = le16_to_cpu(w->lid);
	a->sl = w->sl;
	return !w->zero && coop_addr_valid(a);
}

static u8 *put(u8 *at, const void *from, size_t n)
{
	memcpy(at, from, n);
	return at + n;
}

static u8 *put_request(u8 *at, const struct coop_msg *m)
{
	const struct coop_msg_request *r = &m->u.request;
	struct wire_request w;
	u32 i;

	memset(&w, 0, sizeof(w));
	w.fid_hi = cpu_to_le64(r->fid.hi);
	w.fid_lo = cpu_to_le64(r->fid.lo);
	w.version = cpu_to_le64(r->version);
	w.size = cpu_to_le64(r->size);
	put_addr(&w.data, &r->data);
	put_addr(&w.reply, &r->reply);
	w.budget_us = cpu_to_le32(r->budget_us);
	w.mtu = cpu_to_le16(r->mtu);
	w.options = cpu_to_le16(r->options);
	w.page_shift = r->page_shift;
	w.attempt = r->attempt;
	w.n_ext = (u8)r->n_ext;
	w.level = cpu_to_le32(r->level);
	at = put(at, &w, sizeof(w));

	for (i = 0; i < r->n_ext; i++) {
		struct wire_extent x = {
			.index_lo = cpu_to_le32((u32)r->ext[i].index),
			.index_hi = cpu_to_le32((u32)(r->ext[i].index >> 32)),
			.count = cpu_to_le32(r->ext[i].count),
		};

		at = put(at, &x, sizeof(x));
	}
	if (!(r->options & COOP_OPT_SELECTIVE))
		return at;
	for (i = 0; i < want_words(m->n_segs); i++) {
		__le32 word = cpu_to_le32((u32)(r->want[i / 2] >> (i & 1 ? 32 : 0)));

		at = put(at, &word, sizeof(word));
	}
	return at;
}

static u8 *put_commit(u8 *at, const struct coop_msg_commit *c)
{
	struct wire_commit w;
	u32 i;

	memset(&w, 0, sizeof(w));
	w.fid_hi = cpu_to_le64(c->fid.hi);
	w.fid_lo = cpu_to_le64(c->fid.lo);
	w.version = cpu_to_le64(c->version);
	w.size = cpu_to_le64(c->size);
	w.pages = cpu_to_le64(c->pages);
	memcpy(w.gid, c->source.gid, 16);
	w.qpn = cpu_to_le32(c->source.qpn);
	w.lid = cpu_to_le16(c->source.lid);
	w.n_sums = (u8)c->n_sums;
	w.tags = c->tags;
	at = put(at, &w, sizeof(w));
	for (i = 0; i < c->n_sums; i++) {
		__le64 sum = cpu_to_le64(c->sum[i]); /* the low bytes come first */

		at = put(at, &sum, sum_bytes(c->tags));
	}
	return at;
}

static u8 *put_offer(u8 *at, const struct coop_offer *o)
{
	struct wire_offer w;

	memset(&w, 0, sizeof(w));
	w.fid_hi = cpu_to_le64(o->fid.hi);
	w.fid_lo = cpu_to_le64(o->fid.lo);
	w.version = cpu_to_le64(o->version);
	w.size = cpu_to_le64(o->size);
	w.index = cpu_to_le64(o->ext.index);
	w.count = cpu_to_le32(o->ext.count);
	w.chances = (u8)o->chances;
	w.page_shift = (u8)o->page_shift;
	return put(at, &w, sizeof(w));
}

static u32 body_length(const struct coop_msg *m)
{
	switch (m->command) {
	case COOP_CMD_REQUEST:
	case COOP_CMD_FORWARD: {
		u32 n = (u32)sizeof(struct wire_request) +
			m->u.request.n_ext * (u32)sizeof(struct wire_extent);

		if (m->u.request.options & COOP_OPT_SELECTIVE)
			n += want_words(m->n_segs) * 4;
		return n;
	}
	case COOP_CMD_COMMIT:
		return (u32)sizeof(struct wire_commit) +
		       m->u.commit.n_sums * sum_bytes(m->u.commit.tags);
	case COOP_CMD_QUERY:
		return 0;
	case COOP_CMD_OFFER:
		return (u32)sizeof(struct wire_offer);
	case COOP_CMD_PASSED:
		return (u32)sizeof(struct wire_addr);
	default:
		return (u32)sizeof(struct wire_note);
	}
}

u32 coop_wire_encode(const struct coop_msg *m, const u8 key[16], u8 *buf, u32 size)
{
	u32 len = FRAME + body_length(m);
	struct wire_header h = {
		.magic = cpu_to_le32(COOP_WIRE_MAGIC),
		.version = m->version,
		.command = m->command,
		.hops = m->hops,
		.flags = m->flags,
		.id = cpu_to_le64(m->id),
		.imm = cpu_to_le32(m->imm),
		.length = cpu_to_le16((u16)len),
		.reason = cpu_to_le16(m->reason),
	};
	struct wire_note note = {.value = cpu_to_le32(m->value)};
	struct wire_addr to;
	__le64 mac;
	u8 *at;

	if (len > size)
		return 0;
	at = put(buf, &h, sizeof(h));
	switch (m->command) {
	case COOP_CMD_REQUEST:
	case COOP_CMD_FORWARD:
		at = put_request(at, m);
		break;
	case COOP_CMD_COMMIT:
		at = put_commit(at, &m->u.commit);
		break;
	case COOP_CMD_QUERY:
		break;
	case COOP_CMD_OFFER:
		at = put_offer(at, &m->u.offer);
		break;
	case COOP_CMD_PASSED:
		put_addr(&to, &m->u.passed_to);
		at = put(at, &to, sizeof(to));
		break;
	default:
		at = put(at, &note, sizeof(note));
		break;
	}
	mac = cpu_to_le64(coop_mac(key, buf, (size_t)(at - buf)));
	put(at, &mac, sizeof(mac));
	return len;
}

/* Decodes a body of len bytes; true if it follows all rules that do not depend on the node. */
static bool get_request(struct coop_msg *m, const u8 *at, u32 len)
{
	struct coop_msg_request *r = &m->u.request;
	struct coop_plan plan;
	struct wire_request w;
	u32 i, pages;

	if (len < sizeof(w))
		return false;
	memcpy(&w, at, sizeof(w));
	at += sizeof(w);
	len -= (u32)sizeof(w);
	if (w.zero || !w.n_ext || w.n_ext > COOP_MAX_EXTENTS)
		return false;
	r->fid.hi = le64_to_cpu(w.fid_hi);
	r->fid.lo = le64_to_cpu(w.fid_lo);
	r->version = le64_to_cpu(w.version);
	r->size = le64_to_cpu(w.size);
	r->budget_us = le32_to_cpu(w.budget_us);
	r->mtu = le16_to_cpu(w.mtu);
	r->options = le16_to_cpu(w.options);
	r->page_shift = w.page_shift;
	r->attempt = w.attempt;
	r->n_ext = w.n_ext;
	r->level = le32_to_cpu(w.level);
	if (!r->version || (r->options & ~COOP_OPT_KNOWN) ||
	    ((r->options & COOP_OPT_CRC) && (r->options & COOP_OPT_TAG)))
		return false;
	if (!(r->options & COOP_OPT_WAIT) != !r->level ||
	    (r->options & (COOP_OPT_WAIT | COOP_OPT_LOAD)) == COOP_OPT_LOAD)
		return false;
	if (!get_addr(&r->data, &w.data) || !get_addr(&r->reply, &w.reply))
		return false;

	if (len < r->n_ext * sizeof(struct wire_extent))
		return false;
	memset(r->ext, 0, sizeof(r->ext));
	for (i = 0; i < r->n_ext; i++) {
		struct wire_extent x;

		memcpy(&x, at, sizeof(x));
		at += sizeof(x);
		len -= (u32)sizeof(x);
		r->ext[i].index = (u64)le32_to_cpu(x.index_hi) << 32 | le32_to_cpu(x.index_lo);
		r->ext[i].count = le32_to_cpu(x.count);
	}
	pages = coop_extents_pages(r->ext, r->n_ext);
	if (!pages || coop_plan_init(&plan, r->page_shift, r->mtu, r->mtu, pages,
				     r->options & COOP_OPT_PACKED))
		return false;
	if (m->imm & (u32)coop_mask(plan.seg_bits))
		return false;

	m->n_segs = plan.n_segs;
	memset(r->want, 0, sizeof(r->want));
	if (!(r->options & COOP_OPT_SELECTIVE)) {
		for (i = 0; i < plan.n_segs; i += 64)
			r->want[i / 64] = coop_mask(coop_min_u32(64, plan.n_segs - i));
		return len == 0;
	}
	if (len != want_words(plan.n_segs) * 4)
		return false;
	for (i = 0; i < want_words(plan.n_segs); i++) {
		__le32 word;

		memcpy(&word, at, sizeof(word));
		at += sizeof(word);
		r->want[i / 2] |= (u64)le32_to_cpu(word) << (i & 1 ? 32 : 0);
	}
	if (plan.n_segs % 64 && (r->want[plan.n_segs / 64] & ~coop_mask(plan.n_segs % 64)))
		return false;
	for (i = 0; i < COOP_SEG_WORDS; i++)
		if (r->want[i])
			return true;
	return false;
}

static bool get_commit(struct coop_msg_commit *c, const u8 *at, u32 len)
{
	struct wire_commit w;
	u32 i;

	if (len < sizeof(w))
		return false;
	memcpy(&w, at, sizeof(w));
	at += sizeof(w);
	len -= (u32)sizeof(w);
	c->fid.hi = le64_to_cpu(w.fid_hi);
	c->fid.lo = le64_to_cpu(w.fid_lo);
	c->version = le64_to_cpu(w.version);
	c->size = le64_to_cpu(w.size);
	c->pages = le64_to_cpu(w.pages);
	memset(&c->source, 0, sizeof(c->source));
	memcpy(c->source.gid, w.gid, 16);
	c->source.qpn = le32_to_cpu(w.qpn);
	c->source.lid = le16_to_cpu(w.lid);
	c->n_sums = w.n_sums;
	c->tags = w.tags;
	if (w.tags > 1 || c->source.qpn > COOP_QPN_MAX || c->n_sums > COOP_MAX_PAGES)
		return false;
	if ((c->tags && !c->n_sums) || len != c->n_sums * sum_bytes(c->tags))
		return false;
	for (i = 0; i < c->n_sums; i++) {
		__le64 sum = 0;

		memcpy(&sum, at, sum_bytes(c->tags));
		at += sum_bytes(c->tags);
		c->sum[i] = le64_to_cpu(sum);
	}
	return true;
}

static bool get_offer(struct coop_offer *o, const u8 *at, u32 len)
{
	struct wire_offer w;

	if (len != sizeof(w))
		return false;
	memcpy(&w, at, sizeof(w));
	memset(o, 0, sizeof(*o));
	o->fid.hi = le64_to_cpu(w.fid_hi);
	o->fid.lo = le64_to_cpu(w.fid_lo);
	o->version = le64_to_cpu(w.version);
	o->size = le64_to_cpu(w.size);
	o->ext.index = le64_to_cpu(w.index);
	o->ext.count = le32_to_cpu(w.count);
	o->chances = w.chances;
	o->page_shift = w.page_shift;
	return o->version && !(w.zero[0] | w.zero[1]) && coop_extents_pages(&o->ext, 1);
}

static bool get_passed(struct coop_addr *to, const u8 *at, u32 len)
{
	struct wire_addr w;

	if (len != sizeof(w))
		return false;
	memcpy(&w, at, sizeof(w));
	return get_addr(to, &w);
}

static bool get_note(struct coop_msg *m, const u8 *at, u32 len)
{
	struct wire_note w;

	if (len != sizeof(w))
		return false;
	memcpy(&w, at, sizeof(w));
	m->value = le32_to_cpu(w.value);
	return !w.zero;
}

enum coop_decode coop_wire_decode(struct coop_msg *m, const u8 key[16], const u8 *buf, u32 len)
{
	struct wire_header h;
	const u8 *body;
	u32 body_len;
	__le64 mac;
	bool ok;

	if (len < FRAME || len > COOP_CTRL_MAX)
		return COOP_DECODE_SHORT;
	memcpy(&h, buf, sizeof(h));
	if (le32_to_cpu(h.magic) != COOP_WIRE_MAGIC || le16_to_cpu(h.length) != len)
		return COOP_DECODE_SHORT;
	memcpy(&mac, buf + len - COOP_WIRE_MAC, sizeof(mac));
	if (le64_to_cpu(mac) != coop_mac(key, buf, len - COOP_WIRE_MAC))
		return COOP_DECODE_MAC;

	m->version = h.version;
	m->command = h.command;
	m->hops = h.hops;
	m->flags = h.flags;
	m->id = le64_to_cpu(h.id);
	m->imm = le32_to_cpu(h.imm);
	m->reason = le16_to_cpu(h.reason);
	m->value = 0;
	m->n_segs = 0;
	if (m->version != COOP_WIRE_VERSION)
		return COOP_DECODE_VERSION;

	body = buf + COOP_WIRE_HEADER;
	body_len = len - FRAME;
	switch (m->command) {
	case COOP_CMD_REQUEST:
	case COOP_CMD_FORWARD:
		ok = get_request(m, body, body_len);
		break;
	case COOP_CMD_OFFER:
		ok = get_offer(&m->u.offer, body, body_len);
		break;
	case COOP_CMD_PASSED:
		ok = get_passed(&m->u.passed_to, body, body_len);
		break;
	case COOP_CMD_COMMIT:
		ok = get_commit(&m->u.commit, body, body_len);
		break;
	case COOP_CMD_QUERY:
		ok = body_len == 0;
		break;
	case COOP_CMD_PING:
	case COOP_CMD_PONG:
	case COOP_CMD_BUSY:
	case COOP_CMD_AGAIN:
	case COOP_CMD_REFUSED:
		ok = get_note(m, body, body_len);
		break;
	default:
		return COOP_DECODE_COMMAND;
	}
	if (m->flags)
		return COOP_DECODE_FLAGS;
	if (m->command == COOP_CMD_REFUSED ? m->reason >= COOP_REASON_MAX : m->reason != 0)
		ok = false;
	return ok ? COOP_DECODE_OK : COOP_DECODE_MALFORMED;
}
