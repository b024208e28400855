// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * receive.c - messages on their way in.
 *
 * Buffers take messages in the order in which they were given, each message
 * behind the last one. A buffer leaves the line when it has less room than it
 * wants for another message, has taken as many as it may, or the next one does
 * not fit; it is over when the messages that it has taken are.
 *
 * A message is refused, so that its sender tries again, if there is no buffer, if
 * the ring has no room for the event, or if its sender is not admitted.
 *
 * A message of the machine to itself takes its place among the others, and is there
 * at once: what has arrived in part stays where it is.
 *
 * Whether it is admitted is for the process to say, and a busy one says it late. A
 * message fails after a number of refusals, so few come before the process knows and
 * has had time to admit the peer. What arrives besides counts as lost: its sender
 * repeats it, as it would if the process served the queue pair by itself.
 */
#include <linux/slab.h>

#include "msg/machine.h"

#define SENDER_MASK ((1ULL << 56) - 1)

#define EARLY_REFUSALS 6       /* fewer than CHAN_RNR_TRIES */
#define REFUSAL_US     1000    /* between the first two, then eight times as long: a peer */
#define PAUSE_MOST_US  700000  /* that says nothing for a second may count as dead */
#define ADMIT_US       8000000 /* from when the process knows of the peer: it may have to ask it */
#define IGNORE         -1      /* beside enum coop_chan_refusal */

int coop_receive_create(struct coop_machine *m)
{
	u32 i;

	INIT_LIST_HEAD(&m->receivers);
	m->arrival = kvcalloc(COOP_NET_RECEIVES, sizeof(*m->arrival), GFP_KERNEL_ACCOUNT);
	if (!m->arrival)
		return -ENOMEM;
	for (i = 0; i < COOP_NET_RECEIVES; i++)
		m->arrival[i].next_free = i + 1 < COOP_NET_RECEIVES ? i + 1 : COOP_NONE;
	m->free_arrival = 0;
	return 0;
}

/* ---- buffers -------------------------------------------------------------------- */

static bool has_room(const struct coop_task *t)
{
	return t->u.recv.places && t->length - t->u.recv.filled >= t->u.recv.min_size;
}

static void shut(struct coop_task *t)
{
	if (!t->u.recv.open)
		return;
	list_del(&t->u.recv.link);
	t->u.recv.open = false;
}

/* It takes no more, and all that it took is there. */
static void conclude(struct coop_machine *m, struct coop_task *t)
{
	struct coop_net_event ev = {.length = t->u.recv.filled};

	if (!t->u.recv.open && !t->u.recv.landings)
		coop_task_over(m, t, &ev, COOP_NET_RECV_OVER, t->ending ? -ECANCELED : 0);
}

void coop_receive_begin(struct coop_machine *m, const struct coop_net_op *op)
{
	struct coop_task *t = coop_task_begin(m, op);
	struct coop_net_event ev = {};
	int err = -EINVAL;

	if (!t)
		return;
	if (op->u.recv.max_messages && !op->u.recv.zero && !op->flags && !op->zero)
		err = coop_task_use(m, t, op->buffer, op->offset, op->length);
	if (err) {
		coop_task_over(m, t, &ev, COOP_NET_RECV_OVER, err);
		return;
	}
	t->u.recv.min_size = op->u.recv.min_size;
	t->u.recv.places = op->u.recv.max_messages;
	t->u.recv.open = true;
	list_add_tail(&t->u.recv.link, &m->receivers);
}

void coop_receive_cancel(struct coop_machine *m, struct coop_task *t, u64 now)
{
	const u32 handle = coop_task_handle(m, t);
	u32 i;

	t->ending = true;
	shut(t);
	for (i = 0; t->u.recv.landings && i < COOP_NET_RECEIVES; i++)
		if (m->arrival[i].used && m->arrival[i].task == handle)
			(void)coop_chan_give_up(m->chan, m->arrival[i].receive, now);
	conclude(m, t); /* or with the last message */
}

/* The buffer for the next message, of this length. 0, or the reason to refuse it. */
static int find_room(struct coop_machine *m, u32 length, struct coop_task **out)
{
	struct coop_task *t;

	for (;;) {
		t = list_first_entry_or_null(&m->receivers, struct coop_task, u.recv.link);
		if (!t)
			return COOP_CHAN_NO_BUFFER;
		if (length <= t->length - t->u.recv.filled) {
			*out = t;
			return 0;
		}
		if (!t->u.recv.filled && !t->u.recv.messages && !t->u.recv.landings)
			return COOP_CHAN_TOO_LONG;
		shut(t);
		conclude(m, t);
	}
}

/* Gives the next bytes of the buffer to a message. */
static u64 occupy(struct coop_task *t, u32 length)
{
	const u64 at = t->u.recv.filled;

	t->u.recv.filled += length;
	t->u.recv.places--;
	if (!has_room(t))
		shut(t);
	return at;
}

static u32 land(struct coop_machine *m, struct coop_task *t, u32 length)
{
	const u32 index = m->free_arrival;
	struct coop_arrival *a = &m->arrival[index];

	m->free_arrival = a->next_free;
	a->used = true;
	a->task = COOP_NONE;
	if (!t)
		return index;
	a->task = coop_task_handle(m, t);
	a->offset = occupy(t, length);
	t->u.recv.landings++;
	return index;
}

/* The message did not come: its room is free again, if no other is behind it. */
static void abandon(struct coop_machine *m, struct coop_task *t, const struct coop_arrival *a,
		    u32 length)
{
	if (a->offset + length == t->u.recv.filled) {
		t->u.recv.filled = a->offset;
		t->u.recv.places++;
		if (!t->u.recv.open && !t->ending && has_room(t)) {
			t->u.recv.open = true;
			list_add(&t->u.recv.link, &m->receivers);
		}
	}
}

/* ---- messages ------------------------------------------------------------------- */

/* A message of a peer that is not admitted: the reason to refuse it, or IGNORE. */
static int stranger(struct coop_machine *m, struct coop_peer *p, u64 tag, u64 now)
{
	if (!p->known_at && p->refusals && coop_peer_known(m, p))
		p->known_at = now;
	if (!p->known_at || now - p->known_at < ADMIT_US) {
		const u64 pause = p->refusals ? REFUSAL_US << 3 * (p->refusals - 1) : 0;

		if (p->refusals == EARLY_REFUSALS ||
		    now - p->refused_at < min_t(u64, pause, PAUSE_MOST_US))
			return IGNORE;
		p->refusals++;
	}
	p->refused_at = now;
	p->stranger = tag;
	coop_peer_news(m, p, COOP_NET_STRANGER);
	return COOP_CHAN_NO_BUFFER;
}

/* Whether to take a message: 0, or the reason to refuse it, and where it goes; IGNORE. */
static int judge(struct coop_machine *m, const struct coop_chan_in *in, struct coop_task **to,
		 u64 now)
{
	struct coop_peer *p = coop_peer_of(m, in->peer);
	const bool text = in->tag >> 56 == COOP_NET_KIND_TEXT;

	*to = NULL;
	if (!p)
		return COOP_CHAN_NO_BUFFER;
	if (!p->cookie)
		return stranger(m, p, in->tag, now);
	if ((in->tag & SENDER_MASK) != p->sender || (text && in->length != COOP_NET_TEXT))
		return COOP_CHAN_NO_LISTENER;
	if (m->free_arrival == COOP_NONE || coop_rings_room(&m->rings) <= 0)
		return COOP_CHAN_NO_BUFFER;
	return text ? 0 : find_room(m, in->length, to);
}

static bool accept(struct coop_machine *m, struct coop_chan_in *in, u64 now)
{
	struct coop_task *t;
	const int refusal = judge(m, in, &t, now);
	u32 index;

	if (refusal) {
		m->figures.refused++;
		if (refusal == IGNORE)
			coop_chan_ignore(m->chan);
		else
			coop_chan_refuse(m->chan, refusal, now);
		return false;
	}
	coop_rings_reserve(&m->rings);
	index = land(m, t, in->length);
	coop_chan_place(m->chan, index, now, in);
	m->arrival[index].receive = in->receive;
	return true;
}

static void copy(struct coop_machine *m, const struct coop_chan_in *in, const u8 *datagram)
{
	struct coop_arrival *a = &m->arrival[in->cookie];
	const struct coop_task *t;

	if (!in->len)
		return;
	if (a->task == COOP_NONE) {
		if (in->offset <= sizeof(a->text) && in->len <= sizeof(a->text) - in->offset)
			memcpy(a->text + in->offset, datagram + in->from, in->len);
		return;
	}
	t = &m->task[a->task];
	coop_pinned_write(t->buffer, t->offset + a->offset + in->offset, datagram + in->from,
			  in->len);
}

void coop_receive_datagram(struct coop_machine *m, const struct coop_chan_dgram *d, u64 now)
{
	enum coop_chan_verdict verdict;
	struct coop_chan_in in;

	verdict = coop_chan_rx(m->chan, d, now, &in);
	if (verdict == COOP_CHAN_COPY || (verdict == COOP_CHAN_PLACE && accept(m, &in, now)))
		copy(m, &in, d->buf);
}

void coop_receive_over(struct coop_machine *m, const struct coop_chan_ev *ev)
{
	struct coop_arrival *a = &m->arrival[ev->cookie];
	struct coop_task *t = a->task == COOP_NONE ? NULL : &m->task[a->task];
	const struct coop_peer *p = coop_peer_at(m, ev->peer_cookie);
	struct coop_net_event out = {
		.code = t ? COOP_NET_RECEIVED : COOP_NET_TEXT_IN,
		.handle = t ? a->task : 0,
		.peer = ev->peer,
		.cookie = p ? p->cookie : 0,
		.offset = t ? a->offset : 0,
		.length = ev->length,
		.tag = ev->tag,
	};

	if (ev->kind == COOP_CHAN_EV_DELIVERED) {
		if (!t)
			memcpy(out.text, a->text, sizeof(out.text));
		m->figures.received++;
		m->figures.received_bytes += ev->length;
		coop_event(m, &out);
	} else {
		coop_rings_unreserve(&m->rings);
		if (t)
			abandon(m, t, a, ev->length);
	}
	a->used = false;
	a->next_free = m->free_arrival;
	m->free_arrival = (u32)ev->cookie;
	if (!t)
		return;
	t->u.recv.landings--;
	if (ev->kind == COOP_CHAN_EV_DELIVERED)
		t->u.recv.messages++;
	conclude(m, t);
}

int coop_receive_here(struct coop_machine *m, const struct coop_task *from,
		      const struct coop_net_op *op)
{
	struct coop_net_event ev = {.code = COOP_NET_RECEIVED, .tag = op->u.send.tag};
	const u32 length = (u32)op->length;
	struct coop_task *t;
	const int refusal = find_room(m, length, &t);

	if (refusal)
		return refusal == COOP_CHAN_TOO_LONG ? -EMSGSIZE : -ENOBUFS;
	ev.handle = coop_task_handle(m, t);
	ev.offset = occupy(t, length);
	ev.length = length;
	if (from->u.send.text_only)
		coop_pinned_write(t->buffer, t->offset + ev.offset, from->u.send.text, length);
	else if (length)
		coop_pinned_copy(from->buffer, from->offset, t->buffer, t->offset + ev.offset,
				 length);
	t->u.recv.messages++;
	coop_rings_reserve(&m->rings);
	coop_event(m, &ev);
	conclude(m, t);
	return 0;
}
