// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * calls.c - calls, from submission to their end.
 *
 * Normal operation: submission puts a call on 'queue'. The sender moves it to
 * 'wire' (send.c). The receiver removes it (receive.c) and completes it, through a
 * work of its own if the submitter has a done().
 *
 * A call can also end before its reply: its process is killed, or a soft mount's
 * time is over (watch.c). Then the socket must release the call's memory at once. With both
 * mutexes held no task is between reading a call and using its pages. So the call
 * is taken away from the receiver, which discards the rest of the reply, or, if it
 * is half sent, the connection ends. A call that the daemon may still answer stays
 * on 'wire' as ABANDONED, so that its reply is recognised and the daemon's window
 * is not exceeded. When the connection is lost, all calls on 'wire' go back to
 * 'queue' and are sent again.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <net/net_namespace.h>

#include "fs/storage/impl.h"

#define STOOD_SHORT HZ /* pause before replacing a connection that was lost so soon */

static void call_done_work(struct work_struct *work)
{
	struct coop_call *call = container_of(work, struct coop_call, work);

	call->done(call);
	coop_call_put(call);
}

void coop_call_tell(struct coop_call *call)
{
	struct coop_storage *s = call->storage;

	coop_count(s->stats, COOP_C_STORAGE_CALLS, 1);
	if (call->done) {
		INIT_WORK(&call->work, call_done_work);
		queue_work(s->done_wq, &call->work);
	} else {
		complete_all(&call->finished);
		coop_call_put(call);
	}
}

void coop_call_tell_here(struct coop_call *call)
{
	if (!call->done || !call->prompt) {
		coop_call_tell(call);
		return;
	}
	coop_count(call->storage->stats, COOP_C_STORAGE_CALLS, 1);
	call->done(call);
	coop_call_put(call);
}

/* ---- files closed before they were opened again --------------------------------- */

/* An OPEN of a reopen(), which the daemon may still execute? */
static bool reopens(const struct coop_call *call)
{
	return call->state == COOP_CALL_ABANDONED && call->op == COOP_ST_OPEN && call->again;
}

/*
 * A CLOSE must not run before an OPEN of a reopen() that was given up: the daemon would then open
 * the file after it, as the OPEN has the flag AGAIN, and nothing would close it.
 */
static bool closes_early_locked(struct coop_storage *s, const struct coop_call *close)
{
	const struct coop_call *call;
	u32 i;

	lockdep_assert_held(&s->lock);
	if (close->op != COOP_ST_CLOSE || !s->reopens_left)
		return false;
	for (i = 0; i < COOP_WIRE_BUCKETS; i++) {
		list_for_each_entry(call, &s->wire[i], link) {
			if (reopens(call) && call->arg.open_id == close->arg.open_id)
				return true;
		}
	}
	return false;
}

/* The OPEN has its reply, or its connection is lost: it does not begin any more. */
static void reopen_ends_locked(struct coop_storage *s, const struct coop_call *open)
{
	struct coop_call *call, *next;

	lockdep_assert_held(&s->lock);
	s->reopens_left--;
	list_for_each_entry_safe(call, next, &s->early, link) {
		if (call->arg.open_id == open->arg.open_id)
			list_move_tail(&call->link, &s->queue);
	}
}

/* ---- submission ----------------------------------------------------------------- */

static struct list_head *list_for_locked(struct coop_storage *s, const struct coop_call *call,
					 bool first)
{
	if (first || call->again)
		return &s->first;
	return closes_early_locked(s, call) ? &s->early : &s->queue;
}

static void submit(struct coop_call *call, bool first, bool kick)
{
	struct coop_storage *s = call->storage;
	bool closed;

	call->begun_us = ktime_to_us(ktime_get());
	call->begun = ktime_get_boottime_ns();
	refcount_inc(&call->refs);
	spin_lock_bh(&s->lock);
	closed = s->state == COOP_STORAGE_CLOSED;
	if (closed) {
		call->state = COOP_CALL_DONE;
		call->error = -ESHUTDOWN;
	} else {
		call->state = COOP_CALL_QUEUED;
		if (call->again && s->gate) {
			call->gated = true;
			s->gate++;
		}
		list_add_tail(&call->link, list_for_locked(s, call, first));
		/* Under the lock, so that no work is queued after close. */
		if (kick)
			coop_tx_kick(s);
		queue_delayed_work(s->wq, &s->watch, COOP_WATCH_MOST / 4);
	}
	spin_unlock_bh(&s->lock);
	if (closed)
		coop_call_tell(call);
}

void coop_call_submit(struct coop_call *call)
{
	submit(call, false, true);
}

void coop_call_queue(struct coop_call *call)
{
	submit(call, false, false);
}

void coop_storage_push(struct coop_storage *s)
{
	coop_tx_here(s);
}

void coop_call_submit_first(struct coop_call *call)
{
	submit(call, true, true);
}

int coop_call_run(struct coop_call *call)
{
	submit(call, false, false);
	coop_tx_here(call->storage);
	return coop_call_wait(call);
}

int coop_call_wait(struct coop_call *call)
{
	if (wait_for_completion_killable(&call->finished)) {
		coop_call_abandon(call, -ERESTARTSYS);
		wait_for_completion(&call->finished); /* abandoned, or already completing */
	}
	return call->error;
}

void coop_call_unlink_locked(struct coop_call *call)
{
	struct coop_storage *s = call->storage;

	lockdep_assert_held(&s->lock);
	if (reopens(call))
		reopen_ends_locked(s, call);
	switch ((enum coop_call_state)call->state) {
	case COOP_CALL_SENDING:
	case COOP_CALL_SENT:
	case COOP_CALL_RECEIVING:
	case COOP_CALL_ABANDONED:
		s->in_flight--;
		break;
	case COOP_CALL_QUEUED:
	case COOP_CALL_IDLE:
	case COOP_CALL_DONE:
		break;
	}
	list_del_init(&call->link);
	if (call->gated) {
		call->gated = false;
		s->gate--;
	}
	if (call->kept) {
		call->kept = false;
		s->kept--;
	}
	call->state = COOP_CALL_DONE;
}

/*
 * A CLOSE for what an abandoned OPEN, CREATE or BUNDLE may open; NULL: another operation, or no
 * memory. An OPEN of a reopen() needs none: its file sends its own CLOSE after it, and until then
 * another reopen() may open it under the same id.
 */
static struct coop_call *orphan_alloc(const struct coop_call *call)
{
	struct coop_call *orphan;

	if ((call->op != COOP_ST_OPEN && call->op != COOP_ST_CREATE &&
	     call->op != COOP_ST_TMPFILE && call->op != COOP_ST_BUNDLE) ||
	    call->again)
		return NULL;
	orphan = coop_call_alloc(call->storage, COOP_ST_CLOSE);
	if (!orphan)
		return NULL;
	orphan->reply = kmalloc(COOP_ST_FH_MAX, GFP_NOFS);
	if (!orphan->reply) {
		coop_call_put(orphan);
		return NULL;
	}
	return orphan;
}

/* While arg is valid: the call has not ended, or the caller is its submitter. */
static void orphan_fill(struct coop_call *orphan, const struct coop_call *call)
{
	/* Except with OPEN it is the directory's handle: only the id counts. */
	const u32 len = min_t(u32, call->arg.fh.len, COOP_ST_FH_MAX);

	memcpy(orphan->reply, call->arg.fh.p, len);
	orphan->arg.fh.p = orphan->reply;
	orphan->arg.fh.len = len;
	orphan->arg.open_id = call->arg.open_id;
}

/* Ends the call for its submitter with that error, unless it has already ended. */
void coop_call_abandon(struct coop_call *call, int error)
{
	struct coop_storage *s = call->storage;
	const unsigned int nofs = memalloc_nofs_save();
	/* Before the mutexes: completions, which free memory, wait for these. */
	struct coop_call *orphan = orphan_alloc(call), *close = NULL;
	bool tell = true, half_sent = false;

	mutex_lock(&s->rx.mutex);
	mutex_lock(&s->tx.mutex);
	spin_lock_bh(&s->lock);
	if (orphan && call->state != COOP_CALL_DONE && call->state != COOP_CALL_ABANDONED)
		orphan_fill(orphan, call);
	switch ((enum coop_call_state)call->state) {
	case COOP_CALL_QUEUED:
		if (call->repeated)
			swap(close, orphan);
		coop_call_unlink_locked(call);
		break;
	case COOP_CALL_SENDING: /* the daemon would wait for the rest of its data */
		coop_call_unlink_locked(call);
		half_sent = true;
		break;
	case COOP_CALL_SENT:
	case COOP_CALL_RECEIVING:
		call->state = COOP_CALL_ABANDONED;
		if (reopens(call))
			s->reopens_left++;
		if (call->gated) {
			call->gated = false;
			s->gate--;
		}
		swap(call->orphan, orphan);
		refcount_inc(&call->refs); /* for coop_call_tell(); the reply has its own */
		break;
	case COOP_CALL_IDLE:
	case COOP_CALL_ABANDONED:
	case COOP_CALL_DONE:
		tell = false;
		break;
	}
	if (tell)
		call->error = error;
	spin_unlock_bh(&s->lock);
	if (tell)
		coop_rx_forget(s, call);
	if (half_sent) {
		coop_tx_reset(s);
		coop_storage_lost(s, "a request was given up while it was being sent");
	}
	mutex_unlock(&s->tx.mutex);
	mutex_unlock(&s->rx.mutex);
	if (tell)
		coop_call_tell(call);
	if (close) {
		coop_call_submit(close);
		coop_call_put(close);
	}
	if (orphan)
		coop_call_put(orphan);
	coop_tx_kick(s); /* the gate may have opened */
	memalloc_nofs_restore(nofs);
}

/* ---- the connection as a whole --------------------------------------------- */

bool coop_storage_lost(struct coop_storage *s, const char *why)
{
	unsigned long pause = 0;
	bool was_up;

	spin_lock_bh(&s->lock);
	was_up = s->state == COOP_STORAGE_UP;
	if (was_up) {
		if (time_before(jiffies, s->since + STOOD_SHORT))
			pause = STOOD_SHORT / 4;
		s->state = COOP_STORAGE_DOWN;
		s->since = jiffies;
	}
	spin_unlock_bh(&s->lock);
	if (!was_up)
		return false;
	pr_warn_ratelimited("coopfs: storage %pISpc: connection lost (%s); connecting again\n",
			    &s->server[READ_ONCE(s->current_server)], why);
	mod_delayed_work(s->wq, &s->session_work, pause);
	return true;
}

static void storage_free(struct coop_storage *s)
{
	if (s->done_wq)
		destroy_workqueue(s->done_wq); /* runs every done() first */
	if (s->wq)
		destroy_workqueue(s->wq);
	mempool_destroy(s->sure);
	coop_key_free(&s->key);
	put_net(s->net);
	kfree(s->export_name);
	kvfree(s->tx.buf);
	kvfree(s->rx.body);
	kvfree(s->frame);
	kfree(s->rx.scratch);
	kfree(s->ask);
	kfree(s->got);
	kfree(s);
}

static struct coop_storage *storage_alloc(const struct coop_storage_cfg *cfg)
{
	struct coop_storage *s = kzalloc(sizeof(*s), GFP_KERNEL);
	u32 i;

	if (!s)
		return NULL;
	memcpy(s->server, cfg->server, sizeof(s->server));
	s->n_servers = cfg->n_servers;
	s->soft = cfg->soft;
	s->timeo_ms = cfg->timeo_ms;
	s->net = get_net(cfg->net);
	s->export_name = kstrdup(cfg->export_name, GFP_KERNEL);
	s->tx.buf = kvmalloc(COOP_TX_BYTES, GFP_KERNEL);
	s->rx.body = kvmalloc(COOP_ST_BODY_MAX, GFP_KERNEL);
	s->frame = kvmalloc(COOP_ST_HEADER + COOP_ST_BODY_MAX, GFP_KERNEL);
	s->rx.scratch = kmalloc(sizeof(*s->rx.scratch), GFP_KERNEL);
	s->ask = kzalloc(sizeof(*s->ask), GFP_KERNEL);
	s->got = kzalloc(sizeof(*s->got), GFP_KERNEL);
	s->sure = mempool_create_kmalloc_pool(COOP_SURE_CALLS, sizeof(struct coop_call));
	s->wq = alloc_workqueue("coopfs-storage", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	s->done_wq = alloc_workqueue("coopfs-done", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	spin_lock_init(&s->lock);
	mutex_init(&s->rx.mutex);
	mutex_init(&s->tx.mutex);
	mutex_init(&s->dial_mutex);
	INIT_LIST_HEAD(&s->first);
	INIT_LIST_HEAD(&s->queue);
	INIT_LIST_HEAD(&s->later);
	INIT_LIST_HEAD(&s->early);
	for (i = 0; i < COOP_WIRE_BUCKETS; i++)
		INIT_LIST_HEAD(&s->wire[i]);
	INIT_WORK(&s->rx_work, coop_rx_work);
	INIT_WORK(&s->tx_work, coop_tx_work);
	INIT_DELAYED_WORK(&s->watch, coop_watch_work);
	INIT_WORK(&s->enroll_work, coop_enroll_work);
	INIT_WORK(&s->vouch_work, coop_vouch_work);
	INIT_DELAYED_WORK(&s->session_work, coop_session_work);
	get_random_bytes(s->session, sizeof(s->session));
	s->since = jiffies;
	s->leases = cfg->leases;
	s->forest = cfg->forest;
	s->bundles = cfg->bundles;
	s->leaf = cfg->leaf;
	if (s->export_name && s->tx.buf && s->rx.body && s->frame && s->rx.scratch && s->ask &&
	    s->got && s->sure && s->wq && s->done_wq)
		return s;
	storage_free(s);
	return NULL;
}

u64 coop_storage_run(const struct coop_storage *s)
{
	return READ_ONCE(s->run_verifier);
}

struct coop_storage *coop_storage_connect(const struct coop_storage_cfg *cfg,
					  struct coop_stats *stats,
					  const struct coop_storage_ops *ops, void *host,
					  u8 *root_fh, u32 *root_len, struct coop_st_attr *root,
					  char *why, size_t why_size)
{
	struct coop_storage *s;
	int err;

	if (!cfg->n_servers || cfg->n_servers > COOP_SERVERS_MAX ||
	    strlen(cfg->export_name) > COOP_ST_TEXT_MAX) {
		strscpy(why, "no server, too many servers, or an export name that is too long",
			why_size);
		return ERR_PTR(-EINVAL);
	}
	s = storage_alloc(cfg);
	if (!s) {
		strscpy(why, "no memory for the storage connection", why_size);
		return ERR_PTR(-ENOMEM);
	}
	s->stats = stats;
	s->ops = ops;
	s->host = host;
	err = coop_key_init(&s->key, cfg->key, cfg->key_len);
	if (err) {
		snprintf(why, why_size, "hmac(sha256) of the crypto API: %pe (load sha256_generic)",
			 ERR_PTR(err));
		goto err_free;
	}
	err = coop_session_first(s, root_fh, root_len, root);
	if (err) {
		strscpy(why, s->why, why_size);
		goto err_free;
	}
	return s;

err_free:
	storage_free(s);
	return ERR_PTR(err);
}

void coop_storage_close(struct coop_storage *s)
{
	bool was_up;

	spin_lock_bh(&s->lock);
	was_up = s->state == COOP_STORAGE_UP;
	s->state = COOP_STORAGE_CLOSED;
	spin_unlock_bh(&s->lock);
	if (was_up)
		coop_tx_bye(s);
	mutex_lock(&s->dial_mutex);
	if (s->dialing)
		kernel_sock_shutdown(s->dialing, SHUT_RDWR); /* wakes the session's work */
	mutex_unlock(&s->dial_mutex);
	cancel_delayed_work_sync(&s->session_work);
	coop_session_teardown(s); /* afterwards all calls are on 'first' and 'queue' */
	coop_calls_end_all(s, -ESHUTDOWN);
	cancel_delayed_work_sync(&s->watch);
	cancel_work_sync(&s->enroll_work);
	cancel_work_sync(&s->vouch_work);
	cancel_work_sync(&s->rx_work);
	cancel_work_sync(&s->tx_work);
	storage_free(s);
}

void coop_storage_fabric_key(struct coop_storage *s, u8 key[COOP_FABRIC_KEY])
{
	spin_lock_bh(&s->lock);
	memcpy(key, s->fabric_key, sizeof(s->fabric_key));
	spin_unlock_bh(&s->lock);
}

u32 coop_storage_node_id(const struct coop_storage *s)
{
	return READ_ONCE(s->node_id);
}

static const char *state_text(u32 state)
{
	switch ((enum coop_call_state)state) {
	case COOP_CALL_SENDING:
	case COOP_CALL_SENT:
		return "sent";
	case COOP_CALL_RECEIVING:
		return "receiving";
	case COOP_CALL_ABANDONED:
		return "abandoned";
	case COOP_CALL_IDLE:
	case COOP_CALL_QUEUED:
	case COOP_CALL_DONE:
		break;
	}
	return "queued";
}

u32 coop_storage_calls(struct coop_storage *s, struct coop_call_info *out, u32 room)
{
	struct list_head *const waiting[] = {&s->first, &s->queue, &s->later, &s->early};
	const u64 now = ktime_to_us(ktime_get());
	const struct coop_call *call;
	u32 n = 0, i;

	spin_lock_bh(&s->lock);
	for (i = 0; i < COOP_WIRE_BUCKETS + ARRAY_SIZE(waiting); i++) {
		const struct list_head *list =
			i < COOP_WIRE_BUCKETS ? &s->wire[i] : waiting[i - COOP_WIRE_BUCKETS];

		list_for_each_entry(call, list, link) {
			if (n < room)
				out[n] = (struct coop_call_info){
					.id = call->id,
					.age_us = now > call->begun_us ? now - call->begun_us : 0,
					.state = state_text(call->state),
					.op = call->op,
				};
			n++;
		}
	}
	spin_unlock_bh(&s->lock);
	return n;
}

u64 coop_storage_open_id(struct coop_storage *s)
{
	return atomic64_inc_return(&s->open_id);
}

bool coop_storage_connected(struct coop_storage *s)
{
	return READ_ONCE(s->state) == COOP_STORAGE_UP;
}

void coop_storage_describe(struct coop_storage *s, char *buf, size_t size)
{
	enum coop_storage_state state;
	unsigned long since;
	u32 server;

	spin_lock_bh(&s->lock);
	state = s->state;
	since = s->since;
	server = s->current_server;
	spin_unlock_bh(&s->lock);
	switch (state) {
	case COOP_STORAGE_UP:
		snprintf(buf, size, "%pISpc connected", &s->server[server]);
		break;
	case COOP_STORAGE_DOWN:
		snprintf(buf, size, "%pISpc reconnecting for %lu s", &s->server[server],
			 (jiffies - since) / HZ);
		break;
	case COOP_STORAGE_CLOSED:
		snprintf(buf, size, "%pISpc closed", &s->server[server]);
		break;
	}
}
