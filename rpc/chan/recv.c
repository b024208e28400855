// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Receives segments and assembles messages.
 *
 * A sequence number is acknowledged once its payload has a place, never before.
 * A segment that the host has no buffer for stays unacknowledged, and an RNR
 * tells the sender why. So an acknowledged message is delivered, or EV_ABORTED
 * reports it when the session ends, and the engine keeps no payload itself.
 * Arithmetic checks a chunk's place: (its number - the first number) * unit is
 * its offset. The receiver accepts each number once, so chunks never overlap.
 */
#include "core.h"

void coop_chan_recv_init(struct coop_chan *c)
{
	u32 i;

	coop_list_init(&c->recv_free);
	for (i = 0; i < c->cfg.max_receives; i++)
		coop_list_push(&c->recv_free, c->recv_link, i);
	for (i = 0; i < c->n_recv_buckets; i++)
		c->recv_bucket[i] = COOP_NONE;
}

static u32 *bucket(const struct coop_chan *c, u32 peer, u32 first)
{
	return &c->recv_bucket[coop_mix((u64)peer << 32 | first) & (c->n_recv_buckets - 1)];
}

static u32 find(const struct coop_chan *c, u32 peer, u32 first)
{
	u32 i = *bucket(c, peer, first);

	while (i != COOP_NONE && (c->recv[i].peer != peer || c->recv[i].first != first))
		i = c->recv[i].next_hash;
	return i;
}

/* Removes the receive from the index: no further segment belongs to it. */
static void forget(struct coop_chan *c, u32 i)
{
	struct coop_recv *r = &c->recv[i];
	u32 *link = bucket(c, r->peer, r->first);

	while (*link != i)
		link = &c->recv[*link].next_hash;
	*link = r->next_hash;
	coop_list_remove(&c->peer[r->peer].receiving, c->recv_link, i);
	c->peer[r->peer].n_receiving--;
}

static void put(struct coop_chan *c, u32 i)
{
	c->recv[i].state = COOP_RECV_FREE;
	coop_list_push(&c->recv_free, c->recv_link, i);
	c->stats.receives_used--;
}

/* The message is complete or aborted: queues its event. */
static void conclude(struct coop_chan *c, u32 i, u8 state, int err)
{
	forget(c, i);
	c->recv[i].state = state;
	c->recv[i].err = err;
	coop_fifo_push(&c->received, i);
}

void coop_chan_recv_abort(struct coop_chan *c, u32 recv, int err)
{
	switch (c->recv[recv].state) {
	case COOP_RECV_GIVEN_UP: /* its event is already queued */
		forget(c, recv);
		c->recv[recv].state = COOP_RECV_ABORTED;
		break;
	case COOP_RECV_REFUSING:
		forget(c, recv);
		put(c, recv);
		break;
	default:
		c->stats.aborted++;
		conclude(c, recv, COOP_RECV_ABORTED, err);
	}
}

/* The host has pulled the event of this receive. */
void coop_chan_recv_told(struct coop_chan *c, u32 recv)
{
	if (c->recv[recv].state == COOP_RECV_GIVEN_UP)
		c->recv[recv].state = COOP_RECV_REFUSING;
	else
		put(c, recv);
}

/* ---- acknowledging ----------------------------------------------------------------- */

/* How long an ACK may wait for a reply: never until the peer's timeout expires. */
static u32 reply_us(const struct coop_chan *c)
{
	return coop_max_u32(c->cfg.ack_us,
			    coop_min_u32(c->cfg.ack_us * COOP_CHAN_REPLY, c->cfg.rto_min_us / 2));
}

/* Where replies come in time, the ACK rides on one; but word of a gap is urgent, and that it has
 * closed, too: for patience() of the sender what was overtaken is lost after ack_us. */
static u32 ack_wait(const struct coop_chan *c, const struct coop_chan_peer *p, bool gap)
{
	return p->replies < COOP_CHAN_REPLIES || gap ? c->cfg.ack_us : reply_us(c);
}

void coop_chan_owe_ack(struct coop_chan *c, struct coop_chan_peer *p)
{
	p->ack_due = COOP_ACK_NOW;
	coop_fifo_push(&c->ack, coop_chan_slot(c, p));
}

/* An ACK with the next reply, or in a while, which a gap may shorten. */
static void owe_ack_later(struct coop_chan *c, struct coop_chan_peer *p, bool gap, u64 now)
{
	u32 timer = c->cfg.max_peers + coop_chan_slot(c, p);
	u64 at = now + ack_wait(c, p, gap);

	if (++p->unacked >= COOP_CHAN_ACK_EVERY) {
		coop_chan_owe_ack(c, p);
	} else if (p->ack_due == COOP_ACK_NONE ||
		   (p->ack_due == COOP_ACK_TIMER && gap && coop_wheel_when(c->wheel, timer) > at)) {
		p->ack_due = COOP_ACK_TIMER;
		coop_wheel_set(c->wheel, timer, at);
	}
}

void coop_chan_replied(struct coop_chan *c, struct coop_chan_peer *p, u64 now)
{
	if (!p->to_reply)
		return;
	p->to_reply = false;
	if (now - p->rx_at > reply_us(c))
		p->replies = 0;
	else if (p->replies < COOP_CHAN_REPLIES)
		p->replies++;
}

void coop_chan_ack_late(struct coop_chan *c, struct coop_chan_peer *p, u64 now)
{
	if (p->replies >= COOP_CHAN_REPLIES)
		p->replies = 0;
	coop_chan_owe_ack(c, p);
}

/* Accepts the segment's number: it will be acknowledged and never accepted again. */
static void accept(struct coop_chan *c, struct coop_chan_peer *p, u64 seq, bool ack_now, u64 now)
{
	bool gap = p->map != COOP_NONE; /* it may end here */

	if (seq == p->rx_next)
		c->stats.rx_in_order++;
	else
		c->stats.rx_reordered++;
	if (!(c->cfg.flags & COOP_CHAN_F_TEST_NO_DEDUP) ||
	    (seq >= p->rx_next && !coop_chan_has(c, p, seq)))
		coop_chan_mark(c, p, seq);
	if (p->map != COOP_NONE && !coop_wheel_is_set(c->wheel, coop_chan_slot(c, p)))
		coop_chan_arm(c, p, now);
	if (ack_now)
		coop_chan_owe_ack(c, p);
	else
		owe_ack_later(c, p, gap || p->map != COOP_NONE, now);
}

static void refuse(struct coop_chan *c, const struct coop_chan_peer *p, u32 seq, u32 first,
		   u16 reason)
{
	struct coop_chan_note *n = coop_chan_note(c, COOP_CHAN_T_RNR, &p->addr.command);

	if (!n)
		return;
	n->peer_id = p->id;
	n->session = p->session;
	n->seq = seq;
	n->first = first;
	n->reason = reason;
	if (reason == COOP_CHAN_NO_BUFFER)
		c->stats.rnr_tx++;
	else
		c->stats.refused_tx++;
}

/* Answers the current segment with RNR. */
static void not_ready(struct coop_chan *c, const struct coop_chan_peer *p, u16 reason)
{
	const struct coop_chan_packet *m = c->packet;

	refuse(c, p, m->seq, m->type == COOP_CHAN_T_CHUNK ? m->first : m->seq, reason);
}

/* ---- messages ---------------------------------------------------------------------- */

static void copy(struct coop_chan *c, u32 i, u64 now, struct coop_chan_in *in)
{
	const struct coop_chan_packet *m = c->packet;
	struct coop_recv *r = &c->recv[i];
	struct coop_chan_peer *p = &c->peer[r->peer];

	in->cookie = r->cookie;
	in->offset = m->type == COOP_CHAN_T_CHUNK ? m->offset : 0;
	in->from = m->header_len;
	in->len = m->payload_len;
	r->got += m->payload_len;
	in->last = r->got >= r->length;
	r->came_at = now;
	if (!in->last) {
		coop_list_remove(&p->receiving, c->recv_link, i);
		coop_list_push(&p->receiving, c->recv_link, i);
		return;
	}
	c->stats.delivered++;
	c->stats.delivered_bytes += r->length;
	p->rx_messages++;
	p->rx_bytes += r->length;
	conclude(c, i, COOP_RECV_WHOLE, 0);
}

void coop_chan_place(struct coop_chan *c, u64 cookie, u64 now, struct coop_chan_in *in)
{
	const struct coop_chan_packet *m = c->packet;
	struct coop_chan_peer *p = &c->peer[c->ask_peer];
	struct coop_recv *r;
	u32 i, *link;

	if (WARN_ON_ONCE(!c->asked))
		return;
	c->asked = false;
	i = coop_list_pop(&c->recv_free, c->recv_link);
	r = &c->recv[i];
	memset(r, 0, sizeof(*r));
	r->cookie = cookie;
	r->tag = m->tag;
	r->peer = c->ask_peer;
	r->peer_id = p->id;
	r->first = m->type == COOP_CHAN_T_CHUNK ? m->first : m->seq;
	r->length = m->length;
	r->unit = m->unit;
	r->state = COOP_RECV_PARTLY;
	link = bucket(c, r->peer, r->first);
	r->next_hash = *link;
	*link = i;
	coop_list_push(&p->receiving, c->recv_link, i);
	p->n_receiving++;
	c->stats.placed++;
	c->stats.receives_used++;
	in->receive = i;
	accept(c, p, c->ask_seq, m->flags & COOP_CHAN_W_ACK_NOW, now);
	copy(c, i, now, in);
	coop_chan_arm(c, p, now);
}

void coop_chan_refuse(struct coop_chan *c, enum coop_chan_refusal why, u64 now)
{
	if (WARN_ON_ONCE(!c->asked))
		return;
	c->asked = false;
	not_ready(c, &c->peer[c->ask_peer], (u16)why);
}

void coop_chan_ignore(struct coop_chan *c)
{
	(void)WARN_ON_ONCE(!c->asked);
	c->asked = false;
}

int coop_chan_give_up(struct coop_chan *c, u32 receive, u64 now)
{
	struct coop_recv *r = &c->recv[receive < c->cfg.max_receives ? receive : 0];
	const struct coop_chan_peer *p = &c->peer[r->peer];
	u64 seq, end;

	if (receive >= c->cfg.max_receives || r->state != COOP_RECV_PARTLY)
		return -ENOENT;
	r->state = COOP_RECV_GIVEN_UP;
	r->err = -ECANCELED;
	c->stats.aborted++;
	coop_fifo_push(&c->received, receive);
	/* Tell the sender now, for the first missing segment (it ignores the RNR if it has not sent
	 * that one), and again with every segment that arrives. */
	seq = coop_seq_near(p->rx_next, r->first);
	end = seq + (r->length - 1) / r->unit + 1;
	if (seq < p->rx_next)
		seq = p->rx_next;
	while (seq < end && coop_chan_has(c, p, seq))
		seq++;
	if (seq < end)
		refuse(c, p, (u32)seq, r->first, COOP_CHAN_GIVEN_UP);
	return 0;
}

static enum coop_chan_verdict ask(struct coop_chan *c, struct coop_chan_peer *p, u64 seq)
{
	/*
	 * A peer holds at most as many half-received messages as it leaves free: half of all when
	 * it is alone. So a peer that never completes its messages leaves places to others.
	 */
	if (p->n_receiving >= c->cfg.max_receives - c->stats.receives_used) {
		not_ready(c, p, COOP_CHAN_NO_BUFFER);
		return COOP_CHAN_DONE;
	}
	c->asked = true;
	c->ask_peer = coop_chan_slot(c, p);
	c->ask_seq = seq;
	return COOP_CHAN_PLACE;
}

/* Do the chunk's offset and size agree with its sequence number? */
static bool chunk_valid(const struct coop_chan_packet *m)
{
	u32 index = m->seq - m->first;

	return m->length && m->unit && m->size && index < COOP_CHAN_MSG_SEGS &&
	       m->offset < m->length && m->offset == index * m->unit &&
	       (m->length - 1) / m->unit < COOP_CHAN_MSG_SEGS &&
	       m->size == coop_min_u32(m->unit, m->length - m->offset);
}

/* Is the message void? It is if one of its numbers was accepted, and it is not placed. */
static bool is_void(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq)
{
	const struct coop_chan_packet *m = c->packet;
	u64 at = seq - (u32)(m->seq - m->first), end = at + (m->length - 1) / m->unit + 1;

	if (at < p->rx_next)
		return true;
	for (; at < end && p->reordered; at += 64) {
		u64 word = coop_chan_map_word(c, p, at);

		if (word & coop_mask((u32)coop_min_u64(end - at, 64)))
			return true;
	}
	return false;
}

static enum coop_chan_verdict chunk(struct coop_chan *c, struct coop_chan_peer *p, u64 seq, u64 now,
				    struct coop_chan_in *in)
{
	const struct coop_chan_packet *m = c->packet;
	bool at_once = m->flags & COOP_CHAN_W_ACK_NOW;
	u32 i;

	if (!chunk_valid(m)) {
		c->stats.rx_bad_chunk++;
		return COOP_CHAN_DONE;
	}
	i = find(c, coop_chan_slot(c, p), m->first);
	if (i == COOP_NONE) {
		if (!is_void(c, p, seq))
			return ask(c, p, seq);
		accept(c, p, seq, at_once, now);
		return COOP_CHAN_DONE;
	}
	if (c->recv[i].state != COOP_RECV_PARTLY) {
		not_ready(c, p, COOP_CHAN_GIVEN_UP);
		return COOP_CHAN_DONE;
	}
	if (c->recv[i].length != m->length || c->recv[i].unit != m->unit ||
	    c->recv[i].tag != m->tag) {
		c->stats.rx_bad_chunk++;
		return COOP_CHAN_DONE;
	}
	accept(c, p, seq, at_once, now);
	copy(c, i, now, in);
	return COOP_CHAN_COPY;
}

static enum coop_chan_verdict segment(struct coop_chan *c, struct coop_chan_peer *p, u64 now,
				      struct coop_chan_in *in)
{
	const struct coop_chan_packet *m = c->packet;
	u64 seq = coop_seq_near(p->rx_next, m->seq);
	bool again = !(c->cfg.flags & COOP_CHAN_F_TEST_NO_DEDUP), at_once;
	u32 i;

	at_once = m->flags & COOP_CHAN_W_ACK_NOW;
	c->stats.rx_segments++;
	p->rx_at = now;
	p->to_reply = true;
	p->rx_stamp = m->stamp;
	if (seq >= p->rx_next + c->cfg.window) {
		c->stats.rx_out_of_window++;
		coop_chan_owe_ack(c, p);
		return COOP_CHAN_DONE;
	}
	if ((seq < p->rx_next || coop_chan_has(c, p, seq)) && again) {
		c->stats.rx_duplicate++;
		coop_chan_owe_ack(c, p);
		return COOP_CHAN_DONE;
	}
	if (!coop_chan_may_mark(c, p, seq)) {
		c->stats.rx_no_reorder++;
		if (m->type == COOP_CHAN_T_MESSAGE || m->type == COOP_CHAN_T_CHUNK)
			not_ready(c, p, COOP_CHAN_NO_BUFFER);
		return COOP_CHAN_DONE;
	}
	in->peer = p->id;
	in->peer_cookie = p->cookie;
	in->tag = m->tag;
	in->length = m->length;
	in->from = m->header_len;
	in->len = m->payload_len;
	switch (m->type) {
	case COOP_CHAN_T_MESSAGE:
		return ask(c, p, seq);
	case COOP_CHAN_T_CHUNK:
		return chunk(c, p, seq, now, in);
	case COOP_CHAN_T_VOID:
		i = find(c, coop_chan_slot(c, p), m->first);
		if (i != COOP_NONE)
			coop_chan_recv_abort(c, i, -ECANCELED);
		coop_fallthrough;
	case COOP_CHAN_T_PROBE:
	default:
		accept(c, p, seq, at_once, now);
		return COOP_CHAN_DONE;
	}
}

/* ---- datagrams --------------------------------------------------------------------- */

/* Answers a datagram of another protocol version with VERSION, unless it is a VERSION itself. */
static void other_version(struct coop_chan *c, const struct coop_chan_dgram *rx, u64 now)
{
	const struct coop_chan_packet *m = c->packet;
	struct coop_chan_note *n;
	u32 slot;

	c->stats.rx_version++;
	if (m->type == COOP_CHAN_T_VERSION) {
		slot = coop_chan_by_address(c, &rx->src);
		if (slot != COOP_NONE && c->peer[slot].session &&
		    c->peer[slot].session == m->dst_session)
			coop_chan_dead(c, &c->peer[slot], COOP_CHAN_WHY_VERSION, now);
		return;
	}
	n = coop_chan_note(c, COOP_CHAN_T_VERSION, &rx->src);
	if (!n)
		return;
	n->to.qkey = rx->channel == COOP_CHAN_DATA ? c->cfg.data_qkey : c->cfg.self.qkey;
	n->src_session = coop_chan_session_id(c, &rx->src, m->src_session);
	n->dst_session = m->src_session;
}

enum coop_chan_verdict coop_chan_rx(struct coop_chan *c, const struct coop_chan_dgram *rx, u64 now,
				    struct coop_chan_in *in)
{
	struct coop_chan_packet *m = c->packet;
	struct coop_chan_peer *p;

	if (c->asked) {
		c->stats.unanswered++;
		coop_chan_refuse(c, COOP_CHAN_NO_BUFFER, now);
	}
	memset(in, 0, sizeof(*in));
	c->stats.rx_packets++;
	/* The sender counts on it: see coop_chan_recut(). */
	if (rx->len > c->cfg.mtu[rx->channel]) {
		c->stats.rx_too_long++;
		return COOP_CHAN_DONE;
	}
	switch (coop_chan_decode(m, c->cfg.key, rx->buf, rx->len,
				 c->cfg.flags & COOP_CHAN_F_TEST_NO_MAC)) {
	case COOP_CHAN_D_OK:
		break;
	case COOP_CHAN_D_SHORT:
		c->stats.rx_short++;
		return COOP_CHAN_DONE;
	case COOP_CHAN_D_MAC:
		c->stats.rx_mac++;
		return COOP_CHAN_DONE;
	case COOP_CHAN_D_VERSION:
		other_version(c, rx, now);
		return COOP_CHAN_DONE;
	case COOP_CHAN_D_MALFORMED:
	default:
		c->stats.rx_malformed++;
		return COOP_CHAN_DONE;
	}
	if (m->payload_len && (c->cfg.flags & COOP_CHAN_F_SEAL) &&
	    !(m->flags & COOP_CHAN_W_SEALED)) {
		c->stats.rx_unsealed++;
		return COOP_CHAN_DONE;
	}
	if (m->type == COOP_CHAN_T_VERSION)
		return COOP_CHAN_DONE;
	p = coop_chan_session(c, rx, m, now);
	if (!p)
		return COOP_CHAN_DONE;
	if (m->flags & COOP_CHAN_W_ACK)
		coop_chan_acked(c, p, m, now);
	switch (m->type) {
	case COOP_CHAN_T_ACK:
		c->stats.rx_acks++;
		if (m->flags & COOP_CHAN_W_ACK_NOW)
			coop_chan_owe_ack(c, p);
		return COOP_CHAN_DONE;
	case COOP_CHAN_T_RNR:
		coop_chan_rnr(c, p, m, now);
		return COOP_CHAN_DONE;
	default:
		return segment(c, p, now, in);
	}
}
