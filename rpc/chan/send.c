// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Cuts messages into segments and sends them.
 *
 * A message takes all its sequence numbers at once, when the window has room
 * for them. So the number of its first segment names it, and a receiver can
 * check the place of each chunk by arithmetic. Tiny messages have their own
 * queue and overtake large ones; within a queue, urgent ones overtake others.
 *
 * Order of datagrams: retransmissions (by the data channel, so that they never
 * delay ACKs), then messages, the peers in turn, with ACKs riding on them, then
 * notes and the ACKs that are due. A peer leaves its queue when its window, its
 * congestion window or an empty pool stops it; an ACK or a freed pool entry puts
 * it back. A channel without credits stops its whole queue.
 */
#include "core.h"

#include "rpc/base/mac.h"

/* ---- segments ---------------------------------------------------------------------- */

void coop_chan_seg_to(struct coop_chan *c, struct coop_chan_peer *p, u32 seg, u8 state)
{
	struct coop_seg_tx *s = &c->seg[seg];

	if (s->state == COOP_SEG_FLIGHT) {
		coop_list_remove(&p->flight[s->channel], c->seg_link, seg);
		p->in_flight--;
	} else if (s->state == COOP_SEG_RESEND) {
		coop_list_remove(&p->resend, c->seg_link, seg);
	}
	s->state = state;
	if (state == COOP_SEG_FLIGHT) {
		coop_list_push(&p->flight[s->channel], c->seg_link, seg);
		p->in_flight++;
	} else if (state == COOP_SEG_RESEND) {
		coop_list_push(&p->resend, c->seg_link, seg);
		coop_fifo_push(&c->resend, coop_chan_slot(c, p));
	}
}

static bool cwnd_open(const struct coop_chan *c, const struct coop_chan_peer *p)
{
	return p->in_flight < p->cwnd >> 8 || (c->cfg.flags & COOP_CHAN_F_TEST_NO_CWND);
}

/* The message whose segment is next on this channel, or COOP_NONE. Messages that hold segments go
 * first: a message behind them may wait for the window that they occupy, so they must not wait for
 * it. */
static u32 next_message(const struct coop_chan *c, const struct coop_chan_peer *p, u32 ch)
{
	u32 plain = p->queue[ch].head, urgent = p->urgent[ch].head;

	if (plain == COOP_NONE || urgent == COOP_NONE)
		return plain == COOP_NONE ? urgent : plain;
	if (c->send[urgent].state == COOP_MSG_SENDING)
		return urgent;
	if (c->send[plain].state == COOP_MSG_SENDING || p->run[ch] >= COOP_CHAN_URGENT_RUN)
		return plain;
	return urgent;
}

static bool has_message(const struct coop_chan_peer *p, u32 ch)
{
	return p->queue[ch].head != COOP_NONE || p->urgent[ch].head != COOP_NONE;
}

void coop_chan_wake(struct coop_chan *c, struct coop_chan_peer *p)
{
	u32 slot = coop_chan_slot(c, p);

	if (p->resend.head != COOP_NONE)
		coop_fifo_push(&c->resend, slot);
	if (has_message(p, COOP_CHAN_COMMAND))
		coop_fifo_push(&c->ready[COOP_CHAN_COMMAND], slot);
	if (has_message(p, COOP_CHAN_DATA))
		coop_fifo_push(&c->ready[COOP_CHAN_DATA], slot);
}

/* ---- datagrams --------------------------------------------------------------------- */

static struct coop_chan_packet *begin(struct coop_chan *c, struct coop_chan_peer *p, u8 type,
				      u64 now)
{
	struct coop_chan_packet *m = c->out;
	u64 held = now - p->rx_at;

	memset(m, 0, offsetof(struct coop_chan_packet, map));
	m->version = COOP_CHAN_VERSION;
	m->type = type;
	m->src_session = p->session;
	m->dst_session = p->remote;
	m->dst_id = p->remote_id;
	m->payload_len = 0;
	m->stamp = (u32)now;
	/*
	 * A silent peer may have lost the session. It then knows our Q_Keys only from the OPEN
	 * block, and needs them to answer.
	 */
	if (!p->confirmed || p->tries >= COOP_CHAN_TELL_AGAIN) {
		m->flags |= COOP_CHAN_W_OPEN;
		m->hello.id = p->id;
		m->hello.first_seq = (u32)p->first;
		m->hello.command_qpn = c->cfg.self.qpn;
		m->hello.command_qkey = c->cfg.self.qkey;
		m->hello.data_qpn = c->cfg.data_qpn;
		m->hello.data_qkey = c->cfg.data_qkey;
		m->hello.mtu[0] = (u16)c->cfg.mtu[0];
		m->hello.mtu[1] = (u16)c->cfg.mtu[1];
		m->hello.window = (u16)c->cfg.window;
		m->hello.sl = c->cfg.self.sl;
	}
	if (!p->synced)
		return m;
	m->flags |= COOP_CHAN_W_ACK;
	m->ack = (u32)p->rx_next;
	m->echo = p->rx_stamp;
	m->held = (u16)coop_min_u64(held, 0xffff);
	m->sack = coop_chan_map_word(c, p, p->rx_next + 1);
	if (p->ack_due != COOP_ACK_NONE && type != COOP_CHAN_T_ACK)
		c->stats.tx_piggybacked++;
	if (!p->poll)
		p->ack_due = COOP_ACK_NONE;
	p->unacked = 0;
	coop_wheel_clear(c->wheel, c->cfg.max_peers + coop_chan_slot(c, p));
	return m;
}

static void finish(struct coop_chan *c, const struct coop_addr *to, u32 channel,
		   struct coop_chan_tx *tx)
{
	struct coop_chan_packet *m = c->out;

	tx->channel = channel;
	tx->addr = *to;
	tx->hdr = c->hdr;
	tx->hdr_len = coop_chan_encode(m, c->cfg.key, c->hdr);
	c->credits[channel]--;
	c->stats.tx_packets++;
}

static struct coop_addr address(const struct coop_chan_peer *p, u32 channel)
{
	struct coop_addr a = p->addr.command;

	if (channel == COOP_CHAN_DATA) {
		a.qpn = p->addr.data_qpn;
		a.qkey = p->addr.data_qkey;
	}
	return a;
}

static void send_segment(struct coop_chan *c, struct coop_chan_peer *p, u32 seg, u32 channel,
			 u64 now, struct coop_chan_tx *tx)
{
	struct coop_seg_tx *t = &c->seg[seg];
	struct coop_addr to = address(p, channel);
	u64 seq = coop_chan_seg_seq(c, seg);
	struct coop_chan_packet *m;

	memset(tx, 0, sizeof(*tx));
	t->channel = (u8)channel;
	t->again = t->tries > 0;
	if (t->tries < 255)
		t->tries++;
	t->sent_at = (u32)now;
	t->order = p->order++;
	if (p->flight[channel].head == COOP_NONE) /* so rack[] never outlives a wrap of order */
		p->racked[channel] = false;
	coop_chan_seg_to(c, p, seg, COOP_SEG_FLIGHT);
	p->tx_segments++;
	c->stats.tx_segments++;
	if (t->again) {
		p->retransmits++;
		c->stats.retransmits++;
	}
	if (t->msg == COOP_NONE) {
		m = begin(c, p, COOP_CHAN_T_VOID, now);
		m->first = t->first;
		m->flags |= COOP_CHAN_W_ACK_NOW;
		c->stats.tx_voids++;
	} else {
		struct coop_send *s = &c->send[t->msg];
		bool chunk = s->n_segs > 1;

		m = begin(c, p,
			  s->flags & COOP_CHAN_PROBE ? COOP_CHAN_T_PROBE
			  : chunk                    ? COOP_CHAN_T_CHUNK
						     : COOP_CHAN_T_MESSAGE,
			  now);
		tx->id = s->id;
		tx->cookie = s->cookie;
		tx->off = (u32)(seq - s->first) * s->unit;
		tx->len = coop_min_u32(s->unit, s->length - tx->off);
		m->tag = s->tag;
		if (chunk) {
			m->first = (u32)s->first;
			m->offset = tx->off;
			m->length = s->length;
			m->unit = s->unit;
			m->size = (u16)tx->len;
			c->stats.tx_chunks++;
			if (seq + 1 == s->first + s->n_segs)
				m->flags |= COOP_CHAN_W_ACK_NOW;
		}
		coop_chan_replied(c, p, now);
		if (s->flags & COOP_CHAN_PROBE)
			m->flags |= COOP_CHAN_W_ACK_NOW;
		s->wire++;
	}
	m->seq = (u32)seq;
	m->payload_len = tx->len;
	if (t->again || !cwnd_open(c, p) || p->next - p->una == p->window)
		m->flags |= COOP_CHAN_W_ACK_NOW;
	if (tx->len && (c->cfg.flags & COOP_CHAN_F_SEAL)) {
		m->flags |= COOP_CHAN_W_SEALED;
		tx->seal = true;
	}
	finish(c, &to, channel, tx);
	coop_chan_arm(c, p, now);
}

void coop_chan_seal(const struct coop_chan *c, struct coop_chan_tx *tx,
		    const struct coop_chan_piece *piece, u32 n)
{
	struct coop_mac_state s;
	__le64 mac;
	u32 i;

	coop_mac_begin(&s, c->cfg.key);
	coop_mac_add(&s, tx->hdr, tx->hdr_len - COOP_CHAN_MAC);
	for (i = 0; i < n; i++)
		coop_mac_add(&s, piece[i].at, piece[i].len);
	mac = cpu_to_le64(coop_mac_end(&s));
	memcpy(tx->hdr + tx->hdr_len - COOP_CHAN_MAC, &mac, sizeof(mac));
}

/* ---- which peer sends next --------------------------------------------------------- */

/*
 * The peer's next segment to send again. The next in order goes first: it is the one that a
 * receiver without a bitmap takes, and a peer that takes none is dead when that has been sent too
 * often.
 */
static u32 first_resend(const struct coop_chan *c, const struct coop_chan_peer *p)
{
	u32 seg = coop_chan_seg(c, p, p->una);

	return c->seg[seg].state == COOP_SEG_RESEND ? seg : p->resend.head;
}

static bool next_resend(struct coop_chan *c, u64 now, struct coop_chan_tx *tx)
{
	u32 slot;

	while ((slot = c->resend.head) != COOP_NONE) {
		struct coop_chan_peer *p = &c->peer[slot];
		u32 channel = p->addr.data_qpn ? COOP_CHAN_DATA : COOP_CHAN_COMMAND;

		if (!c->credits[channel])
			return false;
		coop_fifo_pop(&c->resend);
		if (p->resend.head == COOP_NONE || !cwnd_open(c, p))
			continue;
		send_segment(c, p, first_resend(c, p), channel, now, tx);
		if (p->resend.head != COOP_NONE)
			coop_fifo_push(&c->resend, slot);
		return true;
	}
	return false;
}

/*
 * Most starved peers that get a turn in one call. A peer with a closed congestion window goes back
 * to the queue at once, so a round of such peers would never end. ACKs and timers bring the next
 * call.
 */
#define FEED_TURNS 64

u64 coop_chan_ask(struct coop_chan *c, struct coop_chan_peer *p)
{
	u64 seq = p->next;
	u32 seg;

	if (coop_chan_reserve(c, p, 1))
		return 0;
	seg = coop_chan_seg(c, p, seq);
	c->seg[seg].first = (u32)seq;
	coop_chan_seg_to(c, p, seg, COOP_SEG_RESEND);
	coop_list_remove(&p->resend, c->seg_link, seg);
	coop_list_push_front(&p->resend, c->seg_link, seg);
	return seq;
}

/*
 * Asks a peer for its unknown data QP with an empty segment, unless segments are under way, whose
 * ACK tells it. -EAGAIN: an answer will come; -ENOSPC: a pool has no room for the segment.
 */
static int introduce(struct coop_chan *c, struct coop_chan_peer *p)
{
	if (p->una == p->next) {
		if (!coop_chan_ask(c, p))
			return -ENOSPC;
		c->introduced = true;
	}
	return -EAGAIN;
}

/* Gives the message its sequence numbers. 0, -EAGAIN, -ENOSPC; -EMSGSIZE: too long for the peer. */
static int admit(struct coop_chan *c, struct coop_chan_peer *p, u32 msg)
{
	struct coop_send *s = &c->send[msg];
	u32 mtu = coop_min_u32(c->cfg.mtu[COOP_CHAN_DATA], p->mtu[COOP_CHAN_DATA]), i;
	u32 large = next_message(c, p, COOP_CHAN_DATA);
	int err;

	if (s->channel == COOP_CHAN_DATA && !p->addr.data_qpn)
		return introduce(c, p);
	/* Leave the half of the window that a waiting large message may need. */
	if (s->channel == COOP_CHAN_COMMAND && large != COOP_NONE &&
	    c->send[large].state == COOP_MSG_QUEUED && p->next - p->una >= p->window / 2)
		return -EAGAIN;
	if (c->starved.head != COOP_NONE && c->fed != coop_chan_slot(c, p))
		return -ENOSPC;
	s->unit = (u16)((mtu - COOP_CHAN_HEADER_MOST) & ~7u);
	s->n_segs = s->length ? (s->length + s->unit - 1) / s->unit : 1;
	if (s->n_segs > p->window / 2u || (s->n_segs > 1 && (s->flags & COOP_CHAN_PROBE)))
		return -EMSGSIZE;
	err = coop_chan_reserve(c, p, s->n_segs);
	if (err)
		return err;
	s->first = p->next - s->n_segs;
	s->state = COOP_MSG_SENDING;
	if (!(s->flags & COOP_CHAN_URGENT) || p->queue[s->channel].head == COOP_NONE)
		p->run[s->channel] = 0;
	else
		p->run[s->channel]++;
	for (i = 0; i < s->n_segs; i++)
		c->seg[coop_chan_seg(c, p, s->first + i)].msg = msg;
	return 0;
}

/* Sends one datagram of the first message in this queue; false: the peer must wait and is no longer
 * queued. */
static bool send_one(struct coop_chan *c, struct coop_chan_peer *p, u32 ch, u64 now,
		     struct coop_chan_tx *tx)
{
	u32 msg, slot = coop_chan_slot(c, p);
	struct coop_send *s = NULL;
	int err = 0;

	for (;;) {
		msg = next_message(c, p, ch);
		if (msg == COOP_NONE)
			break;
		s = &c->send[msg];
		if (ch == COOP_CHAN_COMMAND && s->state == COOP_MSG_QUEUED &&
		    s->length + COOP_CHAN_HEADER_MOST > p->mtu[COOP_CHAN_COMMAND]) {
			coop_chan_dequeue(c, p, msg); /* too long for the peer's command MTU */
			s->channel = COOP_CHAN_DATA;
			coop_chan_enqueue(c, p, msg);
			continue;
		}
		err = s->state == COOP_MSG_QUEUED ? admit(c, p, msg) : 0;
		if (err != -EMSGSIZE)
			break;
		coop_chan_dequeue(c, p, msg);
		coop_chan_finish(c, msg, err);
	}
	if (err == -ENOSPC) {
		if (c->fed == slot)
			coop_fifo_push_front(&c->starved, slot);
		else
			coop_fifo_push(&c->starved, slot);
		if (c->fed == slot)
			c->fed = COOP_NONE;
		return false;
	}
	if (c->fed == slot) {
		c->fed = COOP_NONE;
		c->freed = true; /* the next starved peer may try */
	}
	if (msg == COOP_NONE || err || !cwnd_open(c, p))
		return false;
	send_segment(c, p, coop_chan_seg(c, p, s->first + s->next), ch, now, tx);
	if (++s->next == s->n_segs)
		coop_chan_dequeue(c, p, msg);
	if (has_message(p, ch))
		coop_fifo_push(&c->ready[ch], slot);
	return true;
}

static bool next_send(struct coop_chan *c, u64 now, struct coop_chan_tx *tx)
{
	u32 ch, slot;

	for (ch = 0; ch < COOP_CHAN_CHANNELS; ch++) {
		u32 reserve = ch == COOP_CHAN_COMMAND ? c->command_reserve : 0;

		while (c->credits[ch] > reserve) {
			slot = coop_fifo_pop(&c->ready[ch]);
			if (slot == COOP_NONE)
				break;
			if (send_one(c, &c->peer[slot], ch, now, tx))
				return true;
		}
	}
	return false;
}

static bool next_note(struct coop_chan *c, u64 now, struct coop_chan_tx *tx)
{
	while (c->note_tail != c->note_head) {
		struct coop_chan_note *n = &c->note[c->note_tail++ % COOP_CHAN_NOTES];
		struct coop_chan_packet *m = c->out;

		memset(tx, 0, sizeof(*tx));
		if (n->type == COOP_CHAN_T_RNR) {
			struct coop_chan_peer *p = coop_chan_by_id(c, n->peer_id);

			if (!p || !p->synced || p->session != n->session)
				continue;
			m = begin(c, p, n->type, now);
		} else {
			memset(m, 0, offsetof(struct coop_chan_packet, map));
			m->version = COOP_CHAN_VERSION;
			m->type = n->type;
			m->src_session = n->src_session;
			m->dst_session = n->dst_session;
			m->session = n->session;
			m->payload_len = 0;
		}
		m->seq = n->seq;
		m->first = n->first;
		m->reason = n->reason;
		finish(c, &n->to, COOP_CHAN_COMMAND, tx);
		return true;
	}
	return false;
}

static bool next_ack(struct coop_chan *c, u64 now, struct coop_chan_tx *tx)
{
	u32 slot;

	while ((slot = coop_fifo_pop(&c->ack)) != COOP_NONE) {
		struct coop_chan_peer *p = &c->peer[slot];
		struct coop_chan_packet *m;
		struct coop_addr to;
		u32 most;

		if (!p->used || p->ack_due != COOP_ACK_NOW || !p->session)
			continue;
		memset(tx, 0, sizeof(*tx));
		to = address(p, COOP_CHAN_COMMAND);
		m = begin(c, p, COOP_CHAN_T_ACK, now);
		p->ack_due = COOP_ACK_NONE; /* begin() clears it only for a synced peer */
		if (p->poll)
			m->flags |= COOP_CHAN_W_ACK_NOW;
		p->poll = false;
		most = (coop_min_u32(c->cfg.mtu[0], p->mtu[0]) -
			coop_chan_header_len(COOP_CHAN_T_ACK, m->flags & COOP_CHAN_W_OPEN, 0)) /
		       8;
		while (p->reordered && m->n_map < most && m->n_map < COOP_CHAN_MAP_WORDS - 1) {
			u64 from = p->rx_next + 1 + 64ull * (m->n_map + 1);

			if (from > p->rx_high)
				break;
			m->map[m->n_map++] = coop_chan_map_word(c, p, from);
		}
		finish(c, &to, COOP_CHAN_COMMAND, tx);
		c->stats.tx_acks++;
		return true;
	}
	return false;
}

/* A pool has room again: lets the next starved peer try. */
static void feed(struct coop_chan *c)
{
	u32 slot, ch;

	if (!c->freed || c->fed != COOP_NONE)
		return;
	c->freed = false;
	slot = coop_fifo_pop(&c->starved);
	if (slot == COOP_NONE)
		return;
	for (ch = 0; ch < COOP_CHAN_CHANNELS; ch++) {
		if (!has_message(&c->peer[slot], ch))
			continue;
		c->fed = slot;
		coop_fifo_push_front(&c->ready[ch], slot);
	}
	if (c->fed == COOP_NONE)
		c->freed = true;
}

bool coop_chan_next_tx(struct coop_chan *c, u64 now, struct coop_chan_tx *tx)
{
	u32 turns = FEED_TURNS;

	do {
		feed(c);
		c->introduced = false;
		if (next_resend(c, now, tx) || next_send(c, now, tx))
			return true;
	} while (--turns && (c->introduced ||
			     (c->freed && c->fed == COOP_NONE && c->starved.head != COOP_NONE)));
	return c->credits[COOP_CHAN_COMMAND] && (next_note(c, now, tx) || next_ack(c, now, tx));
}

void coop_chan_tx_done(struct coop_chan *c, u32 channel, u32 id, int err, u64 now)
{
	u32 msg;

	if (WARN_ON_ONCE(channel >= COOP_CHAN_CHANNELS ||
			 c->credits[channel] >= c->cfg.credits[channel]))
		return;
	c->credits[channel]++;
	if (err < 0)
		c->stats.tx_errors++;
	if (!id)
		return;
	msg = coop_idtab_slot(&c->send_ids, id);
	if (WARN_ON_ONCE(msg == COOP_NONE || !c->send[msg].wire))
		return;
	if (!--c->send[msg].wire && c->send[msg].state == COOP_MSG_ENDING)
		coop_chan_finish(c, msg, c->send[msg].err);
}
