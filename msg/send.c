// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * send.c - messages on their way out.
 *
 * rpc/chan cuts them into datagrams, and names the task again for each of them,
 * also when it sends one again. A datagram is a copy: header, then its part of
 * the buffer, which the process may change meanwhile, so a MAC is made of the
 * copy. With that copy the memory is free again, and rpc/chan is told so at once;
 * how much it sends is bounded by the lines.
 */
#include "msg/machine.h"

static int prepare(struct coop_machine *m, struct coop_task *t, const struct coop_net_op *op,
		   struct coop_chan_msg *msg)
{
	const u8 known = COOP_NET_IN_TEXT | COOP_NET_PROBE | COOP_NET_BY_DATA | COOP_NET_URGENT |
			 COOP_NET_HERE;

	if (op->flags & ~known || op->zero)
		return -EINVAL;
	if (op->flags & COOP_NET_HERE && (op->flags & COOP_NET_PROBE || op->peer))
		return -EINVAL;
	if (op->length > m->max_message)
		return -EMSGSIZE;
	msg->peer = op->peer;
	msg->cookie = coop_task_handle(m, t);
	msg->tag = op->u.send.tag;
	msg->length = (u32)op->length;
	if (op->flags & COOP_NET_BY_DATA)
		msg->flags |= COOP_CHAN_BY_DATA;
	if (op->flags & COOP_NET_URGENT)
		msg->flags |= COOP_CHAN_URGENT;
	if (op->flags & COOP_NET_PROBE) {
		msg->flags |= COOP_CHAN_PROBE;
		t->u.send.blank = true;
		return 0;
	}
	if (op->flags & COOP_NET_IN_TEXT) {
		if (op->length > COOP_NET_TEXT)
			return -EINVAL;
		t->u.send.text_only = true;
		memcpy(t->u.send.text, op->u.send.text, op->length);
		return 0;
	}
	return op->length ? coop_task_use(m, t, op->buffer, op->offset, op->length) : 0;
}

void coop_send_begin(struct coop_machine *m, const struct coop_net_op *op, u64 now)
{
	struct coop_task *t = coop_task_begin(m, op);
	struct coop_net_event ev = {.peer = op->peer, .tag = op->u.send.tag};
	struct coop_chan_msg msg = {};
	int err;

	if (!t)
		return;
	err = prepare(m, t, op, &msg);
	if (!err && op->flags & COOP_NET_HERE) {
		err = coop_receive_here(m, t, op);
		ev.length = err ? 0 : op->length;
		coop_task_over(m, t, &ev, COOP_NET_SENT, err);
		return;
	}
	if (!err)
		err = coop_chan_send(m->chan, &msg, now, &t->u.send.id);
	if (err)
		coop_task_over(m, t, &ev, COOP_NET_SENT, err);
}

void coop_send_cancel(struct coop_machine *m, struct coop_task *t, u64 now)
{
	(void)coop_chan_cancel(m->chan, t->u.send.id, now); /* stale: its end is on the way */
}

void coop_send_over(struct coop_machine *m, const struct coop_chan_ev *ev)
{
	const struct coop_peer *p = coop_peer_at(m, ev->peer_cookie);
	struct coop_net_event out = {
		.peer = ev->peer,
		.cookie = p ? p->cookie : 0,
		.length = ev->err ? 0 : ev->length,
		.tag = ev->tag,
	};

	if (!ev->err) {
		m->figures.sent++;
		m->figures.sent_bytes += ev->length;
	}
	coop_task_over(m, &m->task[ev->cookie], &out, COOP_NET_SENT, ev->err);
}

static void copy_payload(const struct coop_machine *m, const struct coop_chan_tx *tx, void *to)
{
	const struct coop_task *t = &m->task[tx->cookie];

	if (t->u.send.blank)
		memset(to, 0, tx->len);
	else if (t->u.send.text_only)
		memcpy(to, t->u.send.text + tx->off, tx->len);
	else
		coop_pinned_read(t->buffer, t->offset + tx->off, to, tx->len);
}

bool coop_send_datagrams(struct coop_machine *m, u64 now)
{
	struct coop_chan_tx tx;
	bool any = false;
	u32 slot;
	u8 *to;

	while (coop_lines_room(m->node) && coop_chan_next_tx(m->chan, now, &tx)) {
		const enum coop_line line =
			tx.channel == COOP_CHAN_DATA ? COOP_LINE_DATA : COOP_LINE_COMMAND;

		any = true;
		to = coop_lines_claim(m->node, line, &slot);
		if (tx.len)
			copy_payload(m, &tx, to + tx.hdr_len);
		if (tx.seal) {
			const struct coop_chan_piece piece = {to + tx.hdr_len, tx.len};

			coop_chan_seal(m->chan, &tx, &piece, 1);
		}
		memcpy(to, tx.hdr, tx.hdr_len);
		coop_lines_send(m->node, line, slot, tx.hdr_len + tx.len, &tx.addr, now);
		coop_chan_tx_done(m->chan, tx.channel, tx.id, 0, now);
	}
	return any;
}
