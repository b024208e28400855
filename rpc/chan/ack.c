// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Processes ACKs: arrivals, round trip time, losses, congestion window.
 *
 * Losses are found by time within a channel, as in RACK (RFC 8985): a segment is
 * lost when one that was sent later by the same channel has arrived and a round
 * trip plus a share for reordering has passed; the round trip is the smoothed
 * one or that of the later segment. So tiny messages that overtake large ones by
 * the other queue pair cause no retransmission, and any ACK triggers one as soon
 * as it is due. The timeout (RFC 6298) finds losses that no later segment
 * reveals. One timer a peer is enough, because each channel's flight list is in
 * the order of sending.
 *
 * The congestion window grows by a segment for each segment acknowledged, above
 * ssthresh by one a round trip. A loss halves it, once for all that was in
 * flight; a timeout leaves the minimum. It grows only while it is used.
 */
#include "core.h"

#define REORDER_LEAST_US 200

u32 coop_chan_rto(const struct coop_chan *c, const struct coop_chan_peer *p)
{
	u64 us = c->cfg.rto_first_us;

	if (p->srtt)
		us = p->srtt + 4ull * p->rttvar + c->cfg.ack_us;
	if (us < c->cfg.rto_min_us)
		us = c->cfg.rto_min_us;
	us <<= p->backoff;
	return (u32)coop_min_u64(us, c->cfg.rto_max_us);
}

static void measure(struct coop_chan *c, struct coop_chan_peer *p, u32 us)
{
	u32 error;

	if ((s32)us <= 0) /* the two clocks differ in rate */
		us = 1;
	if (us > c->cfg.rto_max_us)
		us = c->cfg.rto_max_us;
	p->backoff = 0;
	if (!p->srtt) {
		p->srtt = us;
		p->rttvar = us / 2;
		return;
	}
	error = us > p->srtt ? us - p->srtt : p->srtt - us;
	p->rttvar = (3 * p->rttvar + error) / 4;
	p->srtt = coop_max_u32((7 * p->srtt + us) / 8, 1);
}

/*
 * How long after its transmission an overtaken segment counts as lost: a round trip, the delay that
 * its receiver may add to the ACK, and a share for reordering. Where a queue builds up, the later
 * segment took longer than the smoothed round trip, and so may this one. Never longer than the
 * timeout, which would mistake an overtaken segment for silence.
 */
static u32 patience(const struct coop_chan *c, const struct coop_chan_peer *p, u32 ch)
{
	u32 us = coop_max_u32(p->srtt + c->cfg.ack_us, p->rack_us[ch]) +
		 coop_max_u32(coop_max_u32(p->srtt / 4, p->rttvar), REORDER_LEAST_US);

	return coop_min_u32(us, coop_chan_rto(c, p));
}

/* ---- congestion window ------------------------------------------------------------- */

static void grow(struct coop_chan *c, struct coop_chan_peer *p, u32 segments, u32 in_flight)
{
	/* Less than half of the window was in use: the ACK proves nothing about the rest. */
	if (in_flight < p->cwnd >> 9)
		return;
	while (segments--) {
		if (p->cwnd < p->ssthresh)
			p->cwnd += 256;
		else
			p->cwnd += coop_max_u32(65536 / p->cwnd, 1);
	}
	p->cwnd = coop_min_u32(p->cwnd, (u32)p->window << 8);
}

/*
 * Restores the window after a spurious timeout (RFC 3522): if the ACK echoes a
 * segment from before the timeout, nothing was lost, and the host or the path
 * was slow. If it echoes a later one, the timeout was right.
 */
static void undo(struct coop_chan *c, struct coop_chan_peer *p, u32 echo)
{
	if (!p->undo)
		return;
	p->undo = false;
	if (!coop_before(echo, p->undo_at))
		return;
	p->cwnd = coop_max_u32(p->cwnd, p->undo_cwnd);
	p->ssthresh = coop_max_u32(p->ssthresh, p->undo_ssthresh);
	c->stats.timeouts_undone++;
}

/* The full time of a segment in flight, which is much younger than the 71 minutes after which
 * sent_at wraps. The times that it is compared with may be older. */
static u64 sent_when(u32 sent_at, u64 now)
{
	return now - ((u32)now - sent_at);
}

static void cut(struct coop_chan *c, struct coop_chan_peer *p, u32 sent_at, u64 now)
{
	if (sent_when(sent_at, now) < p->cut_at)
		return;
	p->cut_at = now;
	p->ssthresh = coop_max_u32(p->cwnd / 2, COOP_CHAN_CWND_LEAST << 8);
	p->cwnd = p->ssthresh;
	c->stats.cwnd_cuts++;
}

/* ---- arrivals ---------------------------------------------------------------------- */

/* Payload bytes of a segment. */
static u32 payload(const struct coop_chan *c, u32 seg)
{
	const struct coop_send *s;
	u32 msg = c->seg[seg].msg, off;

	if (msg == COOP_NONE)
		return 0;
	s = &c->send[msg];
	off = (u32)(coop_chan_seg_seq(c, seg) - s->first) * s->unit;
	return coop_min_u32(s->unit, s->length - off);
}

/* A segment of that length arrived, so the path carries them. */
static void carried(struct coop_chan_peer *p, u32 len)
{
	if (len <= p->carried)
		return;
	p->carried = (u16)len;
	p->stuck = 0;
}

/* The segment was acknowledged. False: it was never sent, so the ACK is wrong. */
static bool arrived(struct coop_chan *c, struct coop_chan_peer *p, u64 seq, u64 now, u32 *n)
{
	u32 seg = coop_chan_seg(c, p, seq), age;
	struct coop_seg_tx *t = &c->seg[seg];
	u32 msg = t->msg, ch = t->channel, len;

	if (t->state == COOP_SEG_DONE)
		return true;
	if (!t->tries)
		return false;
	age = (u32)now - t->sent_at;
	/* The ACK of a retransmission may be for the first transmission, unless a round trip has
	 * passed. */
	if (!t->again || (p->srtt && age >= p->srtt)) {
		if (!p->racked[ch] || coop_before(p->rack[ch], t->order)) {
			p->rack[ch] = t->order;
			p->rack_us[ch] = age;
		}
		p->racked[ch] = true;
	}
	++*n;
	len = payload(c, seg);
	carried(p, len);
	p->answered |= p->asked && seq >= p->asked;
	coop_chan_seg_to(c, p, seg, COOP_SEG_DONE);
	if (msg == COOP_NONE)
		return true;
	if (c->send[msg].state == COOP_MSG_PAUSED || c->send[msg].state == COOP_MSG_KNOCKING)
		coop_chan_resume(c, msg);
	if (++c->send[msg].acked < c->send[msg].n_segs)
		return true;
	p->tx_messages++;
	p->tx_bytes += c->send[msg].length;
	coop_chan_finish(c, msg, 0);
	return true;
}

static void selective(struct coop_chan *c, struct coop_chan_peer *p, u64 from, u64 bits, u64 now,
		      u32 *n)
{
	while (bits) {
		u64 seq = from + coop_lowest(bits);

		bits &= bits - 1;
		if (seq >= p->next || !arrived(c, p, seq, now, n)) {
			c->stats.rx_bad_ack++;
			return;
		}
	}
}

/* Moves lost segments to the resend list: later ones overtook them long enough ago. */
static void detect(struct coop_chan *c, struct coop_chan_peer *p, u64 now)
{
	u32 ch, seg;

	for (ch = 0; ch < COOP_CHAN_CHANNELS; ch++) {
		while (p->racked[ch] && p->srtt && (seg = p->flight[ch].head) != COOP_NONE) {
			u32 sent_at = c->seg[seg].sent_at;

			if (!coop_before(c->seg[seg].order, p->rack[ch]) ||
			    (u32)now - sent_at < patience(c, p, ch))
				break;
			coop_chan_seg_to(c, p, seg, COOP_SEG_RESEND);
			cut(c, p, sent_at, now);
			c->stats.retransmits_fast++;
		}
	}
}

void coop_chan_acked(struct coop_chan *c, struct coop_chan_peer *p,
		     const struct coop_chan_packet *m, u64 now)
{
	u64 ack = coop_seq_near(p->una, m->ack), seq;
	u32 in_flight = p->in_flight, i;
	u32 n = 0;

	if (ack > p->next) {
		c->stats.rx_bad_ack++;
		return;
	}
	if (ack < p->una)
		return; /* an old ACK, overtaken by a newer one */
	for (seq = p->una; seq < ack; seq++) {
		if (!arrived(c, p, seq, now, &n)) {
			c->stats.rx_bad_ack++;
			break;
		}
	}
	if (seq > p->una)
		coop_chan_advance(c, p, seq);
	if (seq == ack && !(c->cfg.flags & COOP_CHAN_F_TEST_NO_SACK)) {
		selective(c, p, ack + 1, m->sack, now, &n);
		for (i = 0; i < m->n_map; i++)
			selective(c, p, ack + 65 + 64ull * i, m->map[i], now, &n);
	}
	/* una must be a segment that has not arrived, or nothing might be in flight and no timer
	 * set. It can only be one that arrived if the peer contradicts its earlier ACKs. */
	for (seq = p->una; seq < p->next; seq++)
		if (c->seg[coop_chan_seg(c, p, seq)].state != COOP_SEG_DONE)
			break;
	if (seq > p->una)
		coop_chan_advance(c, p, seq);
	/* The echo names one transmission, so retransmissions give a sample too. An ACK without
	 * news gives none: it may have been delayed for any time. */
	if (n && m->held != 0xffff) {
		undo(c, p, m->echo);
		measure(c, p, (u32)now - m->echo - m->held);
	}
	if (n)
		grow(c, p, n, in_flight);
	detect(c, p, now);
	coop_chan_arm(c, p, now);
	coop_chan_wake(c, p);
}

void coop_chan_rnr(struct coop_chan *c, struct coop_chan_peer *p, const struct coop_chan_packet *m,
		   u64 now)
{
	u64 seq = coop_seq_near(p->una, m->seq);
	struct coop_seg_tx *t;
	struct coop_send *s;
	u32 msg, seg;

	if (seq < p->una || seq >= p->next)
		return;
	seg = coop_chan_seg(c, p, seq);
	t = &c->seg[seg];
	msg = t->msg;
	/* Once all segments of a message have arrived, its slot may hold another message. */
	if (msg == COOP_NONE || t->state == COOP_SEG_DONE)
		return;
	s = &c->send[msg];
	if ((u32)s->first != m->first || !t->tries)
		return;
	if (m->reason == COOP_CHAN_GIVEN_UP) {
		c->stats.refused_rx++;
		coop_chan_abandon(c, msg, -ENOBUFS, now);
		return;
	}
	carried(p, payload(c, seg)); /* it arrived, or the peer could not refuse it */
	/*
	 * The message has a place. The RNR is an old one, or the receiver has no bitmap left for a
	 * segment out of order: the timeout repeats the segment until the receiver accepts it. The
	 * next in order needs no bitmap, so its tries go on to count: a peer that never accepts it
	 * would hold our segments for ever.
	 */
	if (s->acked) {
		if (seq != p->una)
			t->tries = 1;
		return;
	}
	if (m->reason == COOP_CHAN_NO_BUFFER) {
		c->stats.rnr_rx++;
		if (s->state == COOP_MSG_PAUSED)
			return;
		if (s->rnr >= c->cfg.rnr_tries)
			coop_chan_abandon(c, msg, -ENOBUFS, now);
		else
			coop_chan_pause(c, msg, now);
		return;
	}
	c->stats.refused_rx++;
	coop_chan_abandon(c, msg, m->reason == COOP_CHAN_TOO_LONG ? -EMSGSIZE : -ECONNREFUSED, now);
}

/* ---- time -------------------------------------------------------------------------- */

static u64 silence_limit(const struct coop_chan *c)
{
	return (u64)c->cfg.max_tries * c->cfg.rto_max_us;
}

/*
 * When to give up a half-received message whose sender is alive but sends no more of it. The limit
 * is longer than any sender tries. Without it a peer that lies could hold all places forever.
 */
static u64 stalled_at(const struct coop_chan *c, const struct coop_chan_peer *p)
{
	if (p->receiving.head == COOP_NONE)
		return ~0ull;
	return c->recv[p->receiving.head].came_at + 2 * COOP_CHAN_SEG_TRIES * silence_limit(c);
}

/* Must the peer send more: the rest of a message, or the segments in a gap? */
static bool owing(const struct coop_chan_peer *p)
{
	return p->receiving.head != COOP_NONE || p->map != COOP_NONE;
}

void coop_chan_arm(struct coop_chan *c, struct coop_chan_peer *p, u64 now)
{
	u32 ch, i = coop_chan_slot(c, p), rto = coop_chan_rto(c, p);
	u64 at = ~0ull;

	for (ch = 0; ch < COOP_CHAN_CHANNELS; ch++) {
		u32 seg = p->flight[ch].head, age, limit = rto;

		if (seg == COOP_NONE)
			continue;
		age = (u32)now - c->seg[seg].sent_at;
		if (p->racked[ch] && p->srtt && coop_before(c->seg[seg].order, p->rack[ch]))
			limit = coop_min_u32(limit, patience(c, p, ch));
		at = coop_min_u64(at, now + (limit > age ? limit - age : 0));
	}
	if (c->cfg.flags & COOP_CHAN_F_TEST_NO_RTO)
		at = ~0ull;
	if (owing(p))
		at = coop_min_u64(at, p->heard_at + silence_limit(c));
	at = coop_min_u64(at, stalled_at(c, p));
	/* A timer that expires early finds no work and is set again, which is cheaper than moving
	 * it with every ACK. */
	if (at == ~0ull)
		coop_wheel_clear(c->wheel, i);
	else if (!coop_wheel_is_set(c->wheel, i) || coop_wheel_when(c->wheel, i) > at)
		coop_wheel_set(c->wheel, i, at);
}

void coop_chan_all_lost(struct coop_chan *c, struct coop_chan_peer *p, u64 now)
{
	u32 ch;

	for (ch = 0; ch < COOP_CHAN_CHANNELS; ch++)
		while (p->flight[ch].head != COOP_NONE)
			coop_chan_seg_to(c, p, p->flight[ch].head, COOP_SEG_RESEND);
	coop_chan_arm(c, p, now);
	coop_chan_wake(c, p);
}

/*
 * Called when a segment timed out that is longer than all that arrived in this session. After
 * several of these, over at least the longest timeout, the MTU of the path is too small; a path
 * that has carried such segments only loses some. Datagrams from the peer alone do not prove that
 * ours reach it, so we send an empty segment, which the peer must acknowledge in that time. If we
 * called the peer dead without that proof, it would continue its messages and come back as an
 * unknown sender.
 */
static bool too_narrow(struct coop_chan *c, struct coop_chan_peer *p, u64 now)
{
	u32 most = coop_max_u32(2 * c->cfg.max_tries / 3, COOP_CHAN_STUCK);

	if (p->tries > COOP_CHAN_POLL) {
		p->stuck =
			0; /* no datagram at all arrives: the peer is silent, not the path narrow */
		return false;
	}
	if (!p->stuck || (u32)now - p->stuck_at > (u64)most * c->cfg.rto_max_us) {
		p->stuck = 0;
		p->stuck_at = (u32)now;
		p->asked = 0;
		p->answered = false;
	}
	if (p->stuck < most)
		p->stuck++;
	if (p->stuck > 1 && !p->asked)
		p->asked = coop_chan_ask(c, p);
	return p->stuck == most && p->answered && (u32)now - p->stuck_at >= c->cfg.rto_max_us;
}

void coop_chan_timeout(struct coop_chan *c, struct coop_chan_peer *p, u64 now)
{
	u32 ch, seg, rto = coop_chan_rto(c, p), lost = 0, worst = 0;
	bool again = false; /* a segment sent after the last timeout timed out */
	bool longer = false;

	detect(c, p, now);
	for (ch = 0; ch < COOP_CHAN_CHANNELS; ch++) {
		while ((seg = p->flight[ch].head) != COOP_NONE &&
		       (u32)now - c->seg[seg].sent_at >= rto) {
			worst = coop_max_u32(worst, c->seg[seg].tries);
			longer |= payload(c, seg) > p->carried;
			again |= sent_when(c->seg[seg].sent_at, now) >= p->timeout_at;
			coop_chan_seg_to(c, p, seg, COOP_SEG_RESEND);
			lost++;
		}
	}
	c->stats.retransmits_timeout += lost;
	/* Segments of one burst expire one after the other: they count as one timeout. */
	if (again) {
		c->stats.timeouts++;
		p->timeout_at = now;
		if (!p->undo) {
			p->undo_cwnd = p->cwnd;
			p->undo_ssthresh = p->ssthresh;
			p->undo_at = (u32)now;
			p->undo = true;
		}
		p->ssthresh = coop_max_u32(p->cwnd / 2, COOP_CHAN_CWND_LEAST << 8);
		p->cwnd = COOP_CHAN_CWND_LEAST << 8;
		p->cut_at = now;
		if (p->backoff < 16)
			p->backoff++;
		if (++p->tries > c->cfg.max_tries) {
			coop_chan_dead(c, p,
				       p->heard_at ? COOP_CHAN_WHY_SILENT : COOP_CHAN_WHY_NO_ANSWER,
				       now);
			return;
		}
		/* Find out whether only the data channel is silent. */
		if (p->tries >= COOP_CHAN_POLL) {
			p->poll = true;
			coop_chan_owe_ack(c, p);
		}
		if (worst >= coop_min_u32(COOP_CHAN_SEG_TRIES * c->cfg.max_tries, 250) ||
		    (longer && too_narrow(c, p, now))) {
			coop_chan_dead(c, p, COOP_CHAN_WHY_DATA_PATH, now);
			return;
		}
	}
	if (owing(p) && now - p->heard_at >= silence_limit(c)) {
		coop_chan_dead(c, p, COOP_CHAN_WHY_SILENT, now);
		return;
	}
	if (now >= stalled_at(c, p)) {
		coop_chan_dead(c, p, COOP_CHAN_WHY_DATA_PATH, now);
		return;
	}
	coop_chan_arm(c, p, now);
	coop_chan_wake(c, p);
}
