// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Encodes and decodes the datagrams of rpc/chan; see wire.h. The structures
 * below are the wire format: no padding, little endian, copied with memcpy
 * after a bounds check.
 */
#include "wire.h"

#include "chan.h"
#include "rpc/base/mac.h"

struct wire_header {
	__le32 magic;
	u8 version;
	u8 type;
	u8 flags;
	u8 words; /* length of header, OPEN block, body and MAC in 8 bytes */
	__le64 src_session;
	__le64 dst_session;
	__le32 dst_id;
	__le32 seq;
	__le32 ack;
	__le16 held;
	__le16 length; /* of the whole datagram */
	__le64 sack;
	__le32 stamp;
	__le32 echo;
};
static_assert(sizeof(struct wire_header) == COOP_CHAN_HEADER, "header layout");

struct wire_hello {
	__le32 id;
	__le32 first_seq;
	__le32 command_qpn, command_qkey;
	__le32 data_qpn, data_qkey;
	__le16 mtu[2];
	__le16 window;
	u8 sl;
	u8 zero;
};
static_assert(sizeof(struct wire_hello) == 32, "OPEN block layout");

struct wire_chunk {
	__le64 tag;
	__le32 first;
	__le32 offset;
	__le32 length;
	__le16 unit;
	__le16 size;
};
static_assert(sizeof(struct wire_chunk) == 24, "CHUNK layout");

struct wire_rnr {
	__le32 first;
	__le16 reason;
	__le16 zero;
};
static_assert(sizeof(struct wire_rnr) == 8, "RNR and VOID layout");

static_assert(sizeof(struct wire_header) + sizeof(struct wire_hello) + sizeof(struct wire_chunk) +
			      COOP_CHAN_MAC <=
		      COOP_CHAN_HEADER_MOST,
	      "room for the largest header before a payload");

static u32 body_len(u8 type, u32 n_map)
{
	switch (type) {
	case COOP_CHAN_T_MESSAGE:
	case COOP_CHAN_T_VOID:
	case COOP_CHAN_T_RNR:
	case COOP_CHAN_T_RESET:
		return 8;
	case COOP_CHAN_T_CHUNK:
		return (u32)sizeof(struct wire_chunk);
	case COOP_CHAN_T_ACK:
		return n_map * 8;
	default:
		return 0;
	}
}

u32 coop_chan_header_len(u8 type, bool open, u32 n_map)
{
	return COOP_CHAN_HEADER + (open ? (u32)sizeof(struct wire_hello) : 0) +
	       body_len(type, n_map) + COOP_CHAN_MAC;
}

static u8 *put(u8 *at, const void *from, size_t n)
{
	memcpy(at, from, n);
	return at + n;
}

static u8 *put_u64(u8 *at, u64 v)
{
	__le64 w = cpu_to_le64(v);

	return put(at, &w, sizeof(w));
}

static u8 *put_hello(u8 *at, const struct coop_chan_hello *h)
{
	struct wire_hello w = {
		.id = cpu_to_le32(h->id),
		.first_seq = cpu_to_le32(h->first_seq),
		.command_qpn = cpu_to_le32(h->command_qpn),
		.command_qkey = cpu_to_le32(h->command_qkey),
		.data_qpn = cpu_to_le32(h->data_qpn),
		.data_qkey = cpu_to_le32(h->data_qkey),
		.mtu = {cpu_to_le16(h->mtu[0]), cpu_to_le16(h->mtu[1])},
		.window = cpu_to_le16(h->window),
		.sl = h->sl,
	};

	return put(at, &w, sizeof(w));
}

static u8 *put_body(u8 *at, const struct coop_chan_packet *m)
{
	u32 i;

	switch (m->type) {
	case COOP_CHAN_T_MESSAGE:
		return put_u64(at, m->tag);
	case COOP_CHAN_T_CHUNK: {
		struct wire_chunk w = {
			.tag = cpu_to_le64(m->tag),
			.first = cpu_to_le32(m->first),
			.offset = cpu_to_le32(m->offset),
			.length = cpu_to_le32(m->length),
			.unit = cpu_to_le16(m->unit),
			.size = cpu_to_le16(m->size),
		};

		return put(at, &w, sizeof(w));
	}
	case COOP_CHAN_T_VOID:
	case COOP_CHAN_T_RNR: {
		struct wire_rnr w = {
			.first = cpu_to_le32(m->first),
			.reason = cpu_to_le16(m->reason),
		};

		return put(at, &w, sizeof(w));
	}
	case COOP_CHAN_T_RESET:
		return put_u64(at, m->session);
	case COOP_CHAN_T_ACK:
		for (i = 0; i < m->n_map; i++)
			at = put_u64(at, m->map[i]);
		return at;
	default:
		return at;
	}
}

u32 coop_chan_encode(struct coop_chan_packet *m, const u8 key[16], u8 *buf)
{
	bool open = m->flags & COOP_CHAN_W_OPEN;
	u32 len = coop_chan_header_len(m->type, open, m->n_map);
	struct wire_header h = {
		.magic = cpu_to_le32(COOP_CHAN_MAGIC),
		.version = m->version,
		.type = m->type,
		.flags = m->flags,
		.words = (u8)(len / 8),
		.src_session = cpu_to_le64(m->src_session),
		.dst_session = cpu_to_le64(m->dst_session),
		.dst_id = cpu_to_le32(m->dst_id),
		.seq = cpu_to_le32(m->seq),
		.ack = cpu_to_le32(m->ack),
		.held = cpu_to_le16(m->held),
		.length = cpu_to_le16((u16)(len + m->payload_len)),
		.sack = cpu_to_le64(m->sack),
		.stamp = cpu_to_le32(m->stamp),
		.echo = cpu_to_le32(m->echo),
	};
	u8 *at = put(buf, &h, sizeof(h));

	if (open)
		at = put_hello(at, &m->hello);
	at = put_body(at, m);
	put_u64(at, coop_mac(key, buf, (size_t)(at - buf)));
	m->header_len = len;
	return len;
}

static bool get_hello(struct coop_chan_hello *h, const u8 *at)
{
	struct wire_hello w;

	memcpy(&w, at, sizeof(w));
	h->id = le32_to_cpu(w.id);
	h->first_seq = le32_to_cpu(w.first_seq);
	h->command_qpn = le32_to_cpu(w.command_qpn);
	h->command_qkey = le32_to_cpu(w.command_qkey);
	h->data_qpn = le32_to_cpu(w.data_qpn);
	h->data_qkey = le32_to_cpu(w.data_qkey);
	h->mtu[0] = le16_to_cpu(w.mtu[0]);
	h->mtu[1] = le16_to_cpu(w.mtu[1]);
	h->window = le16_to_cpu(w.window);
	h->sl = w.sl;
	return !w.zero && h->id && h->id != COOP_NONE && h->mtu[0] >= COOP_MTU_MIN &&
	       h->mtu[0] % 8 == 0 && h->mtu[1] >= COOP_MTU_MIN && h->mtu[1] <= COOP_MTU_MAX &&
	       h->mtu[1] % 8 == 0 && h->window >= 64 && h->window <= COOP_CHAN_WINDOW &&
	       !(h->window & (h->window - 1));
}

static u64 get_u64(const u8 *at)
{
	__le64 w;

	memcpy(&w, at, sizeof(w));
	return le64_to_cpu(w);
}

/* Body of len bytes, a multiple of 8. */
static bool get_body(struct coop_chan_packet *m, const u8 *at, u32 len)
{
	bool payload = m->payload_len;
	struct wire_chunk chunk;
	struct wire_rnr rnr;
	u32 i;

	switch (m->type) {
	case COOP_CHAN_T_MESSAGE:
		if (len != 8)
			return false;
		m->tag = get_u64(at);
		m->length = m->payload_len;
		return true;
	case COOP_CHAN_T_CHUNK:
		if (len != sizeof(chunk))
			return false;
		memcpy(&chunk, at, sizeof(chunk));
		m->tag = le64_to_cpu(chunk.tag);
		m->first = le32_to_cpu(chunk.first);
		m->offset = le32_to_cpu(chunk.offset);
		m->length = le32_to_cpu(chunk.length);
		m->unit = le16_to_cpu(chunk.unit);
		m->size = le16_to_cpu(chunk.size);
		return m->size == m->payload_len;
	case COOP_CHAN_T_VOID:
	case COOP_CHAN_T_RNR:
		if (len != sizeof(rnr))
			return false;
		memcpy(&rnr, at, sizeof(rnr));
		m->first = le32_to_cpu(rnr.first);
		m->reason = le16_to_cpu(rnr.reason);
		return !rnr.zero && !payload;
	case COOP_CHAN_T_PROBE:
		return !len;
	case COOP_CHAN_T_ACK:
		m->n_map = len / 8;
		if (m->n_map > COOP_CHAN_MAP_WORDS - 1)
			return false;
		for (i = 0; i < m->n_map; i++)
			m->map[i] = get_u64(at + 8 * i);
		return !payload;
	case COOP_CHAN_T_RESET:
		if (len != 8)
			return false;
		m->session = get_u64(at);
		return !payload;
	case COOP_CHAN_T_CHALLENGE:
	case COOP_CHAN_T_VERSION:
		return !len && !payload;
	default:
		return false;
	}
}

enum coop_chan_decode coop_chan_decode(struct coop_chan_packet *m, const u8 key[16],
				       const void *buf, u32 len, bool any_mac)
{
	const u8 *at = buf;
	struct coop_mac_state mac;
	struct wire_header h;
	u32 header;

	if (len < COOP_CHAN_HEADER + COOP_CHAN_MAC || len > COOP_MTU_MAX)
		return COOP_CHAN_D_SHORT;
	memcpy(&h, at, sizeof(h));
	header = h.words * 8u;
	if (le32_to_cpu(h.magic) != COOP_CHAN_MAGIC || le16_to_cpu(h.length) != len ||
	    header < COOP_CHAN_HEADER + COOP_CHAN_MAC || header > len)
		return COOP_CHAN_D_SHORT;
	coop_mac_begin(&mac, key);
	coop_mac_add(&mac, at, header - COOP_CHAN_MAC);
	if (h.flags & COOP_CHAN_W_SEALED)
		coop_mac_add(&mac, at + header, len - header);
	if (get_u64(at + header - COOP_CHAN_MAC) != coop_mac_end(&mac) && !any_mac)
		return COOP_CHAN_D_MAC;

	m->version = h.version;
	m->type = h.type;
	m->flags = h.flags;
	m->src_session = le64_to_cpu(h.src_session);
	m->dst_session = le64_to_cpu(h.dst_session);
	m->dst_id = le32_to_cpu(h.dst_id);
	m->seq = le32_to_cpu(h.seq);
	m->ack = le32_to_cpu(h.ack);
	m->held = le16_to_cpu(h.held);
	m->sack = le64_to_cpu(h.sack);
	m->stamp = le32_to_cpu(h.stamp);
	m->echo = le32_to_cpu(h.echo);
	m->n_map = 0;
	m->header_len = header;
	m->payload_len = len - header;
	if (m->version != COOP_CHAN_VERSION)
		return COOP_CHAN_D_VERSION;
	if (m->flags & ~COOP_CHAN_W_KNOWN || !m->src_session)
		return COOP_CHAN_D_MALFORMED;

	at += COOP_CHAN_HEADER;
	header -= COOP_CHAN_HEADER + COOP_CHAN_MAC;
	if (m->flags & COOP_CHAN_W_OPEN) {
		if (header < sizeof(struct wire_hello) || !get_hello(&m->hello, at))
			return COOP_CHAN_D_MALFORMED;
		at += sizeof(struct wire_hello);
		header -= (u32)sizeof(struct wire_hello);
	}
	return get_body(m, at, header) ? COOP_CHAN_D_OK : COOP_CHAN_D_MALFORMED;
}
