// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Messages, from the host's send to their end: queued, sending, paused, given up.
 *
 * send.c gives a message its sequence numbers and sends its segments. Here are
 * the changes of its state for other reasons: the host cancels it, the receiver
 * is not ready, or its datagrams turn out to be too long for the receiver. A message that ends
 * early leaves its unacknowledged numbers void; the receiver must accept them like any others.
 */
#include "core.h"

static struct coop_list *list_of(struct coop_chan_peer *p, const struct coop_send *s)
{
	return s->flags & COOP_CHAN_URGENT ? &p->urgent[s->channel] : &p->queue[s->channel];
}

void coop_chan_enqueue(struct coop_chan *c, struct coop_chan_peer *p, u32 msg)
{
	struct coop_send *s = &c->send[msg];

	if (s->state == COOP_MSG_SENDING)
		coop_list_push_front(list_of(p, s), c->send_queue, msg);
	else
		coop_list_push(list_of(p, s), c->send_queue, msg);
	s->queued = true;
	p->queued++;
	coop_fifo_push(&c->ready[s->channel], coop_chan_slot(c, p));
}

void coop_chan_dequeue(struct coop_chan *c, struct coop_chan_peer *p, u32 msg)
{
	struct coop_send *s = &c->send[msg];

	if (!s->queued)
		return;
	coop_list_remove(list_of(p, s), c->send_queue, msg);
	s->queued = false;
	p->queued--;
}

int coop_chan_send(struct coop_chan *c, const struct coop_chan_msg *req, u64 now, u32 *id)
{
	struct coop_chan_peer *p = coop_chan_by_id(c, req->peer);
	struct coop_send *s;
	u32 msg;

	if (!p)
		return -ENOENT;
	if (req->flags & ~(COOP_CHAN_PROBE | COOP_CHAN_BY_DATA | COOP_CHAN_URGENT))
		return -EINVAL;
	if (req->length > c->cfg.max_length ||
	    ((req->flags & COOP_CHAN_PROBE) && req->length > c->unit))
		return -EMSGSIZE;
	*id = coop_idtab_get(&c->send_ids);
	if (*id == COOP_NONE)
		return -EAGAIN;
	msg = coop_idtab_slot(&c->send_ids, *id);
	s = &c->send[msg];
	memset(s, 0, sizeof(*s));
	s->cookie = req->cookie;
	s->tag = req->tag;
	s->at = now;
	s->id = *id;
	s->peer_id = req->peer;
	s->peer = coop_chan_slot(c, p);
	s->length = req->length;
	s->flags = (u8)req->flags;
	s->state = COOP_MSG_QUEUED;
	s->channel = req->length <= c->tiny && !(req->flags & COOP_CHAN_BY_DATA) ? COOP_CHAN_COMMAND
										 : COOP_CHAN_DATA;
	c->stats.sends++;
	coop_list_push(&p->all, c->send_all, msg);
	coop_chan_enqueue(c, p, msg);
	if (p->state == COOP_CHAN_IDLE)
		coop_chan_begin(c, p);
	return 0;
}

/* Stops sending a message. Its unacknowledged segments become void (give_up) or HELD. */
static void withdraw(struct coop_chan *c, struct coop_chan_peer *p, u32 msg, bool give_up)
{
	struct coop_send *s = &c->send[msg];
	u32 i;

	coop_chan_dequeue(c, p, msg);
	coop_wheel_clear(c->wheel, 2 * c->cfg.max_peers + msg);
	if (s->state == COOP_MSG_QUEUED)
		return;
	for (i = 0; i < s->n_segs; i++) {
		struct coop_seg_tx *t;
		u32 seg;

		if (s->first + i < p->una)
			continue; /* its segment was freed */
		seg = coop_chan_seg(c, p, s->first + i);
		t = &c->seg[seg];
		if (t->state == COOP_SEG_DONE)
			continue;
		if (give_up) {
			t->msg = COOP_NONE;
			t->first = (u32)s->first;
			coop_chan_seg_to(c, p, seg, COOP_SEG_RESEND);
		} else if (t->state != COOP_SEG_TO_SEND) {
			coop_chan_seg_to(c, p, seg, COOP_SEG_HELD);
		}
	}
}

void coop_chan_abandon(struct coop_chan *c, u32 msg, int err, u64 now)
{
	struct coop_chan_peer *p = &c->peer[c->send[msg].peer];

	withdraw(c, p, msg, true);
	coop_chan_finish(c, msg, err);
	coop_chan_arm(c, p, now);
	coop_chan_wake(c, p);
}

int coop_chan_cancel(struct coop_chan *c, u32 id, u64 now)
{
	u32 msg = coop_idtab_slot(&c->send_ids, id);

	if (msg == COOP_NONE || c->send[msg].state >= COOP_MSG_ENDING)
		return -ENOENT;
	coop_chan_abandon(c, msg, -ECANCELED, now);
	return 0;
}

/*
 * Is a segment of the message longer than the datagrams that the peer takes? A receiver drops
 * these, so the message cannot have been delivered. All datagrams so far carried the OPEN block. A
 * message of the command channel may have been sent again by the other.
 */
static bool cut_too_long(const struct coop_chan_peer *p, const struct coop_send *s)
{
	u8 type = s->flags & COOP_CHAN_PROBE ? COOP_CHAN_T_PROBE
		  : s->n_segs > 1            ? COOP_CHAN_T_CHUNK
					     : COOP_CHAN_T_MESSAGE;
	u32 most = p->mtu[COOP_CHAN_DATA];

	if (s->channel == COOP_CHAN_COMMAND)
		most = coop_max_u32(most, p->mtu[COOP_CHAN_COMMAND]);
	return coop_chan_header_len(type, true, 0) + coop_min_u32(s->unit, s->length) > most;
}

void coop_chan_recut(struct coop_chan *c, struct coop_chan_peer *p)
{
	u32 msg;

	for (msg = p->all.head; msg != COOP_NONE; msg = c->send_all[msg].next) {
		struct coop_send *s = &c->send[msg];

		if (s->state != COOP_MSG_SENDING || !cut_too_long(p, s))
			continue;
		withdraw(c, p, msg, true);
		s->state = COOP_MSG_QUEUED;
		s->next = 0;
		s->acked = 0;
		coop_chan_enqueue(c, p, msg);
		p->stuck = 0; /* the path is not to blame */
	}
}

void coop_chan_pause(struct coop_chan *c, u32 msg, u64 now)
{
	struct coop_send *s = &c->send[msg];
	struct coop_chan_peer *p = &c->peer[s->peer];
	u64 us = (u64)c->cfg.rnr_us << coop_min_u32(s->rnr, COOP_CHAN_RNR_DOUBLE);

	withdraw(c, p, msg, false);
	s->state = COOP_MSG_PAUSED;
	s->rnr++;
	/* Up to a quarter more, so that messages refused together do not return together. */
	us += (us >> 2) * (coop_random(&c->random) & 0xffff) >> 16;
	coop_wheel_set(c->wheel, 2 * c->cfg.max_peers + msg, now + us);
	coop_chan_arm(c, p, now);
	coop_chan_wake(c, p);
}

void coop_chan_knock(struct coop_chan *c, u32 msg)
{
	struct coop_send *s = &c->send[msg];
	struct coop_chan_peer *p = &c->peer[s->peer];
	u32 i;

	s->state = COOP_MSG_KNOCKING;
	for (i = 0; i < s->n_segs; i++) {
		u32 seg;

		if (s->first + i < p->una)
			continue;
		seg = coop_chan_seg(c, p, s->first + i);
		if (c->seg[seg].state != COOP_SEG_HELD)
			continue;
		c->seg[seg].tries = 1;
		coop_chan_seg_to(c, p, seg, COOP_SEG_RESEND);
		return;
	}
}

void coop_chan_resume(struct coop_chan *c, u32 msg)
{
	struct coop_send *s = &c->send[msg];
	struct coop_chan_peer *p = &c->peer[s->peer];
	u32 i;

	coop_wheel_clear(c->wheel, 2 * c->cfg.max_peers + msg);
	s->state = COOP_MSG_SENDING;
	s->rnr = 0;
	for (i = 0; i < s->n_segs; i++) {
		u32 seg;

		if (s->first + i < p->una)
			continue;
		seg = coop_chan_seg(c, p, s->first + i);
		if (c->seg[seg].state == COOP_SEG_HELD)
			coop_chan_seg_to(c, p, seg, COOP_SEG_RESEND);
	}
	if (s->next < s->n_segs && !s->queued)
		coop_chan_enqueue(c, p, msg);
}
