// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * receive.c - the receiver's work: reads the daemon's messages from the socket.
 *
 * Normal operation: the protocol's state machine (coop_st_incoming) says which part
 * comes next, and this file decides where its bytes go. Data of a reply go from the
 * socket's buffers straight to the call's pages. The work takes the available bytes
 * and ends; further bytes start it again in the middle of a message.
 *
 * A streamed READ is not complete when its bytes are here: the daemon sent them
 * from the file itself, which may have changed in between. The same call then sends
 * a CHECK, and only its positive answer completes the READ.
 *
 * The daemon is not trusted. A reply without a request, of another operation, with
 * more data than there is room for, or to a request that is not completely sent,
 * ends the connection, and every request is sent again on the next one. The
 * receiver writes only to memory of calls.
 */
#include <linux/sched/mm.h>

#include "fs/storage/impl.h"

#define PARTS_MOST  128       /* message parts before the mutex is released for others */
#define STATUS_MOST EHWPOISON /* the last errno of errno(3); larger ones are internal */

int coop_storage_errno(u32 status)
{
	if (!status)
		return 0;
	return status <= STATUS_MOST ? -(int)status : -EIO;
}

int coop_rx_push(struct coop_storage *s, const struct coop_st_header *h, const u8 *body,
		 struct coop_st_body *scratch)
{
	if (!coop_st_op_is_push(h->op))
		return 0; /* unknown, from a newer daemon */
	if (coop_st_body_get(scratch, coop_st_reply_fields(h->op), body, h->body_len))
		return -EPROTO;
	if (h->op == COOP_ST_LOCK_GRANTED) {
		s->ops->granted(s->host, scratch->cookie);
		return 0;
	}
	if (h->op == COOP_ST_LEASE_RECALL) {
		s->ops->recalled(s->host, &scratch->fid);
		return 0;
	}
	if (h->op == COOP_ST_ROLES) {
		s->ops->roles(s->host, &scratch->fid, scratch->version, &scratch->roles);
		return 0;
	}
	if (scratch->flags & 1)
		s->ops->join(s->host, scratch->node_id, &scratch->addr);
	else
		s->ops->leave(s->host, scratch->node_id);
	return 0;
}

static struct coop_call *find_call(struct coop_storage *s, u64 id)
{
	struct coop_call *call;

	lockdep_assert_held(&s->lock);
	list_for_each_entry(call, &s->wire[id % COOP_WIRE_BUCKETS], link) {
		if (call->id == id)
			return call;
	}
	return NULL;
}

/* The call that a reply answers, or NULL. It stays on 'wire' while rx.mutex is held. */
static struct coop_call *take_call(struct coop_storage *s, const struct coop_st_header *h)
{
	struct coop_call *call;
	bool sending;

	spin_lock_bh(&s->lock);
	call = find_call(s, h->id);
	sending = call && call->state == COOP_CALL_SENDING;
	spin_unlock_bh(&s->lock);
	if (sending) {
		/* The daemon may answer before the sender has noted that the last byte left. */
		mutex_lock(&s->tx.mutex);
		if (s->tx.data == call && !iov_iter_count(&s->tx.iter) && s->tx.sent == s->tx.len) {
			spin_lock_bh(&s->lock);
			call->state = COOP_CALL_SENT;
			spin_unlock_bh(&s->lock);
			s->tx.data = NULL;
		}
		sending = call->state == COOP_CALL_SENDING;
		mutex_unlock(&s->tx.mutex);
	}
	return call && !sending && call->wire_op == h->op ? call : NULL;
}

static bool abandoned(const struct coop_call *call)
{
	return call->state == COOP_CALL_ABANDONED; /* set only under rx.mutex */
}

/* ---- parts of a message ------------------------------------------------------ */

static int take_header(struct coop_storage *s)
{
	struct coop_storage_rx *rx = &s->rx;
	const struct coop_st_header *h = &rx->in.head;
	u32 most = 0;

	rx->error = 0;
	rx->call = NULL;
	if (!h->id)
		return 0;
	rx->call = take_call(s, h);
	if (!rx->call)
		return -EPROTO;
	rx->error = coop_storage_errno(h->status);
	if (h->status ? h->body_len : !h->body_len && coop_st_reply_fields(h->op))
		return -EPROTO;
	if (h->op == rx->call->op && !coop_st_request_data_max(h->op))
		most = rx->call->data_max;
	if (h->op == COOP_ST_READ || h->op == COOP_ST_READ_SHARED)
		most = min(most, rx->call->arg.count);
	return h->data_len > most ? -EPROTO : 0;
}

/* Decodes the body into the call, and copies its string to the call's own memory. */
static int take_body(struct coop_storage *s)
{
	struct coop_storage_rx *rx = &s->rx;
	const struct coop_st_header *h = &rx->in.head;
	struct coop_call *call = rx->call;
	struct coop_st_body *to = rx->scratch;
	struct coop_st_bytes *string;

	if (!call)
		return coop_rx_push(s, h, rx->body, rx->scratch);
	if (h->status)
		return 0;
	if (!abandoned(call) && h->op == call->op)
		to = &call->res;
	if (coop_st_body_get(to, coop_st_reply_fields(h->op), rx->body, h->body_len))
		return -EPROTO;
	string = to->text.len ? &to->text : &to->fh;
	if (to == &call->res && string->len) {
		memcpy(call->reply, string->p, string->len);
		string->p = call->reply;
	}
	return 0;
}

static int take_tail(struct coop_storage *s)
{
	struct coop_storage_rx *rx = &s->rx;
	u64 version;
	u32 status;

	if (coop_st_tail_get(&status, &version, rx->small))
		return -EPROTO;
	rx->error = coop_storage_errno(status);
	if (!rx->error && !abandoned(rx->call) && version != rx->call->res.version)
		rx->error = -ESTALE;
	return 0;
}

/* A message is complete: completes its call, or queues it again. */
static void finish(struct coop_storage *s)
{
	struct coop_storage_rx *rx = &s->rx;
	const struct coop_st_header *h = &rx->in.head;
	struct coop_call *call = rx->call, *orphan = NULL;
	bool tell = false, kept = false, leased = false;
	int error = rx->error;

	rx->call = NULL;
	if (!call)
		return;
	if (call->repeated && error == -ENOENT &&
	    (h->op == COOP_ST_UNLINK || h->op == COOP_ST_RMDIR))
		error = 0; /* the name is gone as wanted; the first run may have removed it */
	spin_lock_bh(&s->lock);
	/* Behind the gate we do not know yet which of our files and locks are lost. */
	if (call->begun > s->vouched && !s->gate)
		WRITE_ONCE(s->vouched, call->begun);
	if (!abandoned(call))
		call->shared_dir = h->flags & COOP_ST_F_SHARED_DIR;
	if (abandoned(call)) {
		if (!error) {
			swap(orphan, call->orphan);
			leased = call->op == COOP_ST_BUNDLE;
		}
		coop_call_unlink_locked(call);
	} else if (h->flags & COOP_ST_F_STREAM && !error) {
		/* The READ continues as a CHECK, ahead of the queue: a reader is waiting. */
		call->data_len = h->data_len;
		call->arg.version = call->res.version;
		call->wire_op = COOP_ST_CHECK;
		call->id = 0;
		call->repeated = false;
		call->state = COOP_CALL_QUEUED;
		s->in_flight--;
		list_move(&call->link, &s->queue);
		kept = true;
	} else if (error == -EAGAIN && !call->internal) {
		/* A process on the daemon's machine must give back a lease; nothing was done. */
		call->id = 0;
		call->repeated = false;
		call->state = COOP_CALL_QUEUED;
		s->in_flight--;
		if (list_empty(&s->later)) {
			s->later_at = jiffies + COOP_LATER_TIME;
			mod_delayed_work(s->wq, &s->watch, COOP_LATER_TIME);
		}
		list_move_tail(&call->link, &s->later);
		kept = true;
	} else {
		if (h->op == call->op)
			call->data_len = error ? 0 : h->data_len;
		call->error = error;
		call->run = s->run_verifier;
		coop_call_unlink_locked(call);
		tell = true;
	}
	spin_unlock_bh(&s->lock);
	if (tell)
		coop_call_tell_here(call);
	else if (!kept)
		coop_call_put(call);
	if (orphan) {
		coop_call_submit(orphan);
		coop_call_put(orphan);
	}
	if (leased)
		s->ops->leased(s->host);
}

/* ---- bytes -------------------------------------------------------------------- */

/* Points the iterator at the memory for the wanted bytes. */
static void aim(struct coop_storage *s)
{
	struct coop_storage_rx *rx = &s->rx;
	const u32 want = rx->in.want;

	switch ((enum coop_st_part)rx->in.part) {
	case COOP_ST_PART_HEADER:
	case COOP_ST_PART_TAIL:
		rx->vec.iov_base = rx->small;
		break;
	case COOP_ST_PART_BODY:
		rx->vec.iov_base = rx->body;
		break;
	case COOP_ST_PART_DATA:
		if (abandoned(rx->call)) {
			iov_iter_discard(&rx->iter, ITER_DEST, want);
		} else {
			spin_lock_bh(&s->lock);
			rx->call->state = COOP_CALL_RECEIVING;
			spin_unlock_bh(&s->lock);
			iov_iter_bvec(&rx->iter, ITER_DEST, rx->call->bvec, rx->call->n_bvec, want);
		}
		return;
	}
	rx->vec.iov_len = want;
	iov_iter_kvec(&rx->iter, ITER_DEST, &rx->vec, 1, want);
}

void coop_rx_reset(struct coop_storage *s)
{
	struct coop_storage_rx *rx = &s->rx;

	lockdep_assert_held(&rx->mutex);
	rx->call = NULL;
	coop_st_incoming_init(&rx->in);
	aim(s);
}

void coop_rx_forget(struct coop_storage *s, struct coop_call *call)
{
	struct coop_storage_rx *rx = &s->rx;

	lockdep_assert_held(&rx->mutex);
	if (rx->call == call && rx->in.part == COOP_ST_PART_DATA)
		iov_iter_discard(&rx->iter, ITER_DEST, iov_iter_count(&rx->iter));
}

/* The wanted part has arrived. Returns 0 or the reason to end the connection. */
static int take_part(struct coop_storage *s)
{
	struct coop_storage_rx *rx = &s->rx;
	const u32 part = rx->in.part, bytes = rx->in.want;
	int whole, err = 0;

	if (part == COOP_ST_PART_BODY)
		err = take_body(s);
	else if (part == COOP_ST_PART_TAIL)
		err = take_tail(s);
	else if (part == COOP_ST_PART_DATA)
		coop_count(s->stats, COOP_C_STORAGE_RX_DATA, bytes);
	if (err)
		return err;
	whole = coop_st_incoming_next(&rx->in, rx->small);
	if (whole >= 0 && part == COOP_ST_PART_HEADER)
		err = take_header(s);
	if (whole < 0 || err)
		return whole < 0 ? whole : err;
	if (whole) {
		finish(s);
		coop_tx_kick(s); /* the window has room, or a CHECK is queued */
	}
	aim(s);
	return 0;
}

/* 0: there may be more; -EAGAIN: not now; other errors: the connection ends. */
static int receive_some(struct coop_storage *s)
{
	struct coop_storage_rx *rx = &s->rx;
	u32 parts;
	int n, err;

	for (parts = 0; parts < PARTS_MOST; parts++) {
		while (iov_iter_count(&rx->iter)) {
			n = coop_sock_recv(s, s->sock, &rx->iter, MSG_DONTWAIT);
			if (n <= 0)
				return n ? n : -ECONNRESET;
			WRITE_ONCE(s->heard, jiffies);
		}
		err = take_part(s);
		if (err)
			return err;
		cond_resched();
	}
	return 0;
}

void coop_rx_work(struct work_struct *work)
{
	struct coop_storage *s = container_of(work, struct coop_storage, rx_work);
	const unsigned int nofs = memalloc_nofs_save();
	char why[48];
	int err = -EAGAIN;

	mutex_lock(&s->rx.mutex);
	if (s->sock && READ_ONCE(s->state) == COOP_STORAGE_UP)
		err = receive_some(s);
	mutex_unlock(&s->rx.mutex);
	if (!err) {
		queue_work(s->wq, &s->rx_work);
	} else if (err == -EPROTO || err == -EMSGSIZE) {
		/* After close() this is the answer to BYE, and the connection is not up. */
		if (coop_storage_lost(s, "it sent something that is not our protocol"))
			coop_count(s->stats, COOP_C_STORAGE_BAD_REPLIES, 1);
	} else if (err == -ECONNRESET) {
		coop_storage_lost(s, "ended by the other side");
	} else if (err != -EAGAIN) {
		snprintf(why, sizeof(why), "receiving: %pe", ERR_PTR(err));
		coop_storage_lost(s, why);
	}
	memalloc_nofs_restore(nofs);
}
