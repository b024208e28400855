// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * send.c - the sender's work: writes requests to the socket, in the order of their
 * ids, as far as the daemon's window and the socket's buffer allow.
 *
 * Small requests are encoded one after another into one buffer and sent together;
 * the data of a WRITE follow straight from their pages. A request is encoded when
 * its turn comes, so a repeat needs only the call. Once a request is encoded, the
 * sender reads only its data from the caller's memory.
 *
 * A task that waits for a reply sends by itself, if no other task is sending: that
 * saves a context switch in each round trip.
 *
 * The sender never waits for the daemon: a full socket ends the work, and
 * write_space starts it again. An error ends the connection. A socket without
 * memory reports the same as a full one, but it may have no data in flight whose
 * acknowledgement would make room; so the work then retries by itself.
 */
#include <linux/sched/mm.h>
#include <net/sock.h>

#include "fs/storage/impl.h"

#define PIECES_MOST 128 /* sends before the mutex is released for others */

static struct coop_call *next_call(struct coop_storage *s)
{
	struct list_head *from;
	struct coop_call *call = NULL;

	spin_lock_bh(&s->lock);
	from = !list_empty(&s->first) ? &s->first : &s->queue;
	if (s->state == COOP_STORAGE_UP && s->in_flight < s->window && !list_empty(from) &&
	    (from == &s->first || !s->gate)) {
		call = list_first_entry(from, struct coop_call, link);
		if (!call->id)
			call->id = ++s->last_id;
		call->state = COOP_CALL_SENDING;
		list_move_tail(&call->link, &s->wire[call->id % COOP_WIRE_BUCKETS]);
		if (!s->in_flight++)
			s->busy_since = jiffies;
	}
	spin_unlock_bh(&s->lock);
	return call;
}

static void sent(struct coop_storage *s, struct coop_call *call)
{
	spin_lock_bh(&s->lock);
	call->state = COOP_CALL_SENT;
	spin_unlock_bh(&s->lock);
}

static void refuse(struct coop_storage *s, struct coop_call *call, int error)
{
	spin_lock_bh(&s->lock);
	coop_call_unlink_locked(call);
	call->error = error;
	spin_unlock_bh(&s->lock);
	coop_call_tell(call);
}

static void encode(struct coop_storage *s, struct coop_call *call)
{
	struct coop_storage_tx *tx = &s->tx;
	u8 *at = tx->buf + tx->len;
	struct coop_st_header h = {.op = call->wire_op, .id = call->id};
	int len;

	if (call->fence && READ_ONCE(*call->fence) != call->fence_at) {
		refuse(s, call, -EIO);
		return;
	}
	len = coop_st_body_put(&call->arg, coop_st_request_fields(call->wire_op),
			       at + COOP_ST_HEADER, COOP_ST_BODY_MAX);
	if (len < 0) {
		refuse(s, call, -ENAMETOOLONG); /* a name is too long */
		return;
	}
	if (call->lease && call->wire_op == call->op)
		h.flags = COOP_ST_F_LEASE;
	if (call->repeated) {
		h.flags |= COOP_ST_F_REPEAT;
		coop_count(s->stats, COOP_C_STORAGE_REPEATS, 1);
	}
	h.body_len = len;
	if (coop_st_request_data_max(call->wire_op))
		h.data_len = call->data_max;
	coop_st_header_put(&h, at);
	tx->len += COOP_ST_HEADER + len;
	if (h.data_len) {
		tx->data = call;
		iov_iter_bvec(&tx->iter, ITER_SOURCE, call->bvec, call->n_bvec, h.data_len);
	} else {
		sent(s, call);
	}
}

static void fill(struct coop_storage *s)
{
	struct coop_storage_tx *tx = &s->tx;
	struct coop_call *call;

	tx->len = 0;
	tx->sent = 0;
	while (!tx->data && tx->len + COOP_ST_HEADER + COOP_ST_BODY_MAX <= COOP_TX_BYTES) {
		call = next_call(s);
		if (!call)
			break;
		encode(s, call);
	}
}

/* 0: there may be more to send; -EAGAIN: not now; other errors: the connection is broken. */
static int send_some(struct coop_storage *s)
{
	struct coop_storage_tx *tx = &s->tx;
	struct iov_iter iter;
	struct kvec vec;
	u32 pieces;
	int n;

	for (pieces = 0; pieces < PIECES_MOST; pieces++) {
		if (tx->sent < tx->len) {
			vec.iov_base = tx->buf + tx->sent;
			vec.iov_len = tx->len - tx->sent;
			iov_iter_kvec(&iter, ITER_SOURCE, &vec, 1, vec.iov_len);
			n = coop_sock_send(s, s->sock, &iter,
					   MSG_DONTWAIT | (tx->data ? MSG_MORE : 0));
			if (n < 0)
				return n;
			tx->sent += n;
		} else if (tx->data && iov_iter_count(&tx->iter)) {
			n = coop_sock_send(s, s->sock, &tx->iter, MSG_DONTWAIT);
			if (n < 0)
				return n;
		} else {
			if (tx->data)
				sent(s, tx->data);
			tx->data = NULL;
			fill(s);
			if (!tx->len)
				return -EAGAIN;
		}
		cond_resched();
	}
	return 0;
}

/* Did the socket reject bytes although it has room? */
static bool got_no_memory(const struct coop_storage *s)
{
	/* If the flag is clear, write_space was called since and has queued the work. */
	return (s->tx.sent < s->tx.len || s->tx.data) && test_bit(SOCK_NOSPACE, &s->sock->flags) &&
	       sk_stream_is_writeable(s->sock->sk);
}

/* Called with tx.mutex held; releases it. True: try again when there is memory. */
static bool send_and_unlock(struct coop_storage *s)
{
	const unsigned int nofs = memalloc_nofs_save();
	bool no_memory = false;
	char why[40];
	int err = -EAGAIN;

	if (s->sock && READ_ONCE(s->state) == COOP_STORAGE_UP) {
		err = send_some(s);
		no_memory = err == -EAGAIN && got_no_memory(s);
	}
	mutex_unlock(&s->tx.mutex);
	if (!err) {
		coop_tx_kick(s);
	} else if (err != -EAGAIN) {
		snprintf(why, sizeof(why), "sending: %pe", ERR_PTR(err));
		coop_storage_lost(s, why);
	}
	memalloc_nofs_restore(nofs);
	return no_memory;
}

void coop_tx_work(struct work_struct *work)
{
	struct coop_storage *s = container_of(work, struct coop_storage, tx_work);

	mutex_lock(&s->tx.mutex);
	if (send_and_unlock(s)) {
		memalloc_retry_wait(GFP_NOFS);
		coop_tx_kick(s);
	}
}

void coop_tx_here(struct coop_storage *s)
{
	if (!mutex_trylock(&s->tx.mutex) || send_and_unlock(s))
		coop_tx_kick(s);
}

void coop_tx_reset(struct coop_storage *s)
{
	lockdep_assert_held(&s->tx.mutex);
	s->tx.len = 0;
	s->tx.sent = 0;
	s->tx.data = NULL;
}

/* Sends BYE if the socket is between two messages and takes it at once; otherwise the session ends
 * by itself. */
void coop_tx_bye(struct coop_storage *s)
{
	struct coop_st_header h = {.op = COOP_ST_BYE};
	u8 buf[COOP_ST_HEADER];
	struct kvec vec = {buf, sizeof(buf)};
	struct iov_iter iter;

	mutex_lock(&s->tx.mutex);
	if (s->sock && s->tx.sent == s->tx.len && !s->tx.data) {
		h.id = ++s->last_id; /* closed: no other task uses it */
		coop_st_header_put(&h, buf);
		iov_iter_kvec(&iter, ITER_SOURCE, &vec, 1, sizeof(buf));
		coop_sock_send(s, s->sock, &iter, MSG_DONTWAIT);
	}
	mutex_unlock(&s->tx.mutex);
}
