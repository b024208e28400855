// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * session.c - connecting to the daemon, at first and after a loss.
 *
 * A mount has one session for its whole life: a random number under which the daemon
 * keeps its open files and replies. A session uses one connection after another.
 * After a loss the session's work takes the socket away from sender and receiver,
 * puts calls without a reply back into the queue under their old ids, and tries the
 * servers in turn, with backoff and jitter: handshake, registration, then the queue
 * is sent again.
 *
 * A daemon that does not know the session has restarted, or is another one: open
 * files are opened again first, and a gate holds back all other calls. We refuse a
 * server whose root differs from that of the first one, because our handles and ids
 * would mean other files there.
 *
 * The handshake is the only code that waits for the daemon. It holds no lock while
 * it waits, and close() ends it by shutting the socket down.
 */
#include <crypto/algapi.h>
#include <linux/list_sort.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <net/sock.h>

#include "fs/storage/impl.h"

#define BACKOFF_FIRST_MS 50
#define BACKOFF_MOST_MS  5000
#define HANDSHAKE_TIME   (15 * HZ) /* limit for the whole handshake */
#define PUSHES_MOST      8192      /* most pushes before one reply */

/* ---- losing a connection ------------------------------------------------------ */

static int by_id(void *unused, const struct list_head *a, const struct list_head *b)
{
	const struct coop_call *x = list_entry(a, struct coop_call, link);
	const struct coop_call *y = list_entry(b, struct coop_call, link);

	return x->id < y->id ? -1 : x->id > y->id;
}

static void drop_internal_locked(struct list_head *from, struct list_head *dropped)
{
	struct coop_call *call, *next;

	list_for_each_entry_safe(call, next, from, link) {
		if (!call->internal)
			continue;
		coop_call_unlink_locked(call);
		list_add_tail(&call->link, dropped);
	}
}

/*
 * Moves all calls on 'wire' back to the queues, oldest first, ahead of calls that were not sent
 * yet. Internal and abandoned calls go to 'dropped', with the connection's reference.
 */
static void requeue_locked(struct coop_storage *s, struct list_head *dropped)
{
	struct coop_call *call, *next;
	LIST_HEAD(wire);
	LIST_HEAD(again);
	u32 i;

	lockdep_assert_held(&s->lock);
	for (i = 0; i < COOP_WIRE_BUCKETS; i++)
		list_splice_init(&s->wire[i], &wire);
	list_sort(NULL, &wire, by_id);
	list_for_each_entry_safe(call, next, &wire, link) {
		if (call->internal || call->state == COOP_CALL_ABANDONED) {
			coop_call_unlink_locked(call);
			list_add_tail(&call->link, dropped);
			continue;
		}
		call->state = COOP_CALL_QUEUED;
		call->repeated = true;
		s->in_flight--;
		if (call->again)
			list_move_tail(&call->link, &again);
	}
	list_splice(&wire, &s->queue);
	list_splice(&again, &s->first);
	drop_internal_locked(&s->first, dropped);
	drop_internal_locked(&s->queue, dropped);
}

void coop_session_teardown(struct coop_storage *s)
{
	struct coop_call *call, *next, *orphan;
	struct socket *sock;
	LIST_HEAD(dropped);

	mutex_lock(&s->rx.mutex);
	mutex_lock(&s->tx.mutex);
	sock = s->sock;
	s->sock = NULL;
	coop_rx_reset(s);
	coop_tx_reset(s);
	spin_lock_bh(&s->lock);
	requeue_locked(s, &dropped);
	s->enrolling = NULL; /* an internal call: dropped */
	spin_unlock_bh(&s->lock);
	mutex_unlock(&s->tx.mutex);
	mutex_unlock(&s->rx.mutex);
	if (sock)
		coop_sock_release(s, sock);
	list_for_each_entry_safe(call, next, &dropped, link) {
		list_del_init(&call->link);
		orphan = NULL;
		swap(orphan, call->orphan);
		coop_call_put(call);
		if (orphan) { /* the file may be open at the daemon; else CLOSE gets EBADF */
			coop_call_submit(orphan);
			coop_call_put(orphan);
		}
	}
}

/* ---- handshake ------------------------------------------------------------------ */

static void say_why(struct coop_storage *s, int err)
{
	const char *text;

	switch (err) {
	case -ECONNREFUSED:
		text = "nothing listens there: does coopfsd run, and on this port?";
		break;
	case -ETIMEDOUT:
		text = "no answer: is the address right, does a firewall drop the port?";
		break;
	case -EHOSTUNREACH:
	case -ENETUNREACH:
		text = "no route to it";
		break;
	case -EAGAIN:
		text = "connected, but coopfsd does not answer";
		break;
	case -ECONNRESET:
		text = "it ended the connection";
		break;
	case -EPROTO:
	case -EMSGSIZE:
		text = "what answers there is not a coopfsd";
		break;
	default:
		snprintf(s->why, sizeof(s->why), "%pISpc: %pe", &s->server[s->current_server],
			 ERR_PTR(err));
		return;
	}
	snprintf(s->why, sizeof(s->why), "%pISpc: %s", &s->server[s->current_server], text);
}

static int whole(struct coop_storage *s, struct socket *sock, void *p, u32 len, bool send,
		 unsigned long until)
{
	struct kvec vec = {p, len};
	struct iov_iter iter;
	int n;

	iov_iter_kvec(&iter, send ? ITER_SOURCE : ITER_DEST, &vec, 1, len);
	while (iov_iter_count(&iter)) {
		if (time_after(jiffies, until))
			return -EAGAIN;
		n = send ? coop_sock_send(s, sock, &iter, 0)
			 : coop_sock_recv(s, sock, &iter, MSG_WAITALL);
		if (n <= 0)
			return n ? n : -ECONNRESET;
	}
	return 0;
}

/*
 * Sends s->ask and receives the reply into s->got; only pushes may come in between. 0: there is a
 * reply, with its status in *status. Sets s->why on error.
 */
static int exchange(struct coop_storage *s, struct socket *sock, u16 op, u32 *status,
		    unsigned long until)
{
	struct coop_st_header h = {.op = op};
	u8 *body = s->frame + COOP_ST_HEADER;
	u32 pushes = 0;
	u64 id;
	int len, err;

	len = coop_st_body_put(s->ask, coop_st_request_fields(op), body, COOP_ST_BODY_MAX);
	if (len < 0) {
		err = -EINVAL;
		goto out;
	}
	spin_lock_bh(&s->lock);
	id = ++s->last_id;
	spin_unlock_bh(&s->lock);
	h.id = id;
	h.body_len = len;
	coop_st_header_put(&h, s->frame);
	err = whole(s, sock, s->frame, COOP_ST_HEADER + len, true, until);
	if (err)
		goto out;
	for (;;) {
		err = whole(s, sock, s->frame, COOP_ST_HEADER, false, until);
		if (!err)
			err = coop_st_header_get(&h, s->frame);
		if (!err && h.data_len)
			err = -EPROTO;
		if (!err && h.body_len)
			err = whole(s, sock, body, h.body_len, false, until);
		if (err)
			goto out;
		if (!h.id) {
			err = coop_rx_push(s, &h, body, s->got);
			if (!err && ++pushes > PUSHES_MOST)
				err = -EPROTO;
			if (err)
				goto out;
			continue;
		}
		if (h.id != id || h.op != op || !(h.flags & COOP_ST_F_REPLY))
			err = -EPROTO;
		else if (h.body_len || !h.status)
			err = coop_st_body_get(s->got, coop_st_reply_fields(op), body, h.body_len);
		*status = h.status;
		break;
	}
out:
	if (err)
		say_why(s, err);
	return err;
}

/* Checks the daemon's proof and puts ours into s->ask; without keys there are no proofs. */
static int prove(struct coop_storage *s, struct coop_transcript *t)
{
	const bool keyed = t->flags & COOP_ST_W_KEYED;
	u8 expected[COOP_ST_PROOF];
	int err;

	if (keyed != !!s->key.tfm) {
		snprintf(s->why, sizeof(s->why), "%pISpc: %s", &s->server[s->current_server],
			 keyed ? "the daemon wants a cluster key: give key=FILE"
			       : "the daemon has no cluster key, but this mount was given one");
		return -EKEYREJECTED;
	}
	memset(s->ask, 0, sizeof(*s->ask));
	if (!keyed)
		return 0;
	err = coop_key_proof(&s->key, "server", t, expected);
	if (!err)
		err = coop_key_proof(&s->key, "client", t, s->ask->proof);
	if (err) {
		say_why(s, err);
		return err;
	}
	if (crypto_memneq(expected, s->got->proof, sizeof(expected))) {
		snprintf(s->why, sizeof(s->why), "%pISpc: the daemon has another cluster key",
			 &s->server[s->current_server]);
		return -EKEYREJECTED;
	}
	return 0;
}

/* Explains the daemon's refusal in s->why. */
static int denied(struct coop_storage *s, u32 status)
{
	const char *text;

	switch (status) {
	case ENOENT:
		text = "it has no such export (coopfsd --export NAME=PATH)";
		break;
	case EACCES:
		text = "it does not serve this client: the export is not for its address, or "
		       "without a cluster key, it is not root of the daemon's machine";
		break;
	case EKEYREJECTED:
		text = "the daemon has another cluster key";
		break;
	case EUSERS:
		text = "it has as many clients as it may (coopfsd --help)";
		break;
	default:
		say_why(s, coop_storage_errno(status));
		return coop_storage_errno(status);
	}
	snprintf(s->why, sizeof(s->why), "%pISpc: %s", &s->server[s->current_server], text);
	return coop_storage_errno(status);
}

/*
 * Returns 0 with the reply to PROOF in s->got, whose handle points into s->frame.
 * -EPROTOTYPE: the daemon would give this client roles that it does not want.
 */
static int shake_hands(struct coop_storage *s, struct socket *sock, u16 newest)
{
	const unsigned long until = jiffies + HANDSHAKE_TIME;
	struct coop_transcript t = {.version_min = COOP_ST_VERSION_MIN,
				    .version_max = newest,
				    .export_name = s->export_name};
	struct coop_st_body *ask = s->ask, *got = s->got;
	u32 status;
	int err;

	memset(ask, 0, sizeof(*ask));
	get_random_bytes(t.client_nonce, sizeof(t.client_nonce));
	memcpy(t.session, s->session, sizeof(t.session));
	memcpy(ask->nonce, t.client_nonce, sizeof(ask->nonce));
	memcpy(ask->session, t.session, sizeof(ask->session));
	ask->version_min = t.version_min;
	ask->version_max = t.version_max;
	ask->text.p = (const u8 *)s->export_name;
	ask->text.len = strlen(s->export_name);
	err = exchange(s, sock, COOP_ST_HELLO, &status, until);
	if (err)
		return err;
	if (status == EPROTONOSUPPORT ||
	    (!status && (got->version_min < t.version_min || got->version_min > t.version_max))) {
		snprintf(s->why, sizeof(s->why),
			 "%pISpc: the daemon speaks protocol version %u, this module %u to %u: "
			 "update the older one",
			 &s->server[s->current_server], got->version_max, t.version_min,
			 t.version_max);
		return -EPROTONOSUPPORT;
	}
	if (status)
		return denied(s, status);
	memcpy(t.server_nonce, got->nonce, sizeof(t.server_nonce));
	t.version = got->version_min;
	WRITE_ONCE(s->version, t.version);
	if (!s->forest && !s->bundles && t.version >= COOP_ST_VERSION_ROLES &&
	    t.version < coop_st_op_since(COOP_ST_RUN))
		return -EPROTOTYPE;
	t.flags = got->flags;
	err = prove(s, &t);
	if (!err)
		err = exchange(s, sock, COOP_ST_PROOF_OP, &status, until);
	if (!err && status)
		err = denied(s, status);
	return err;
}

/* ---- after the handshake ---------------------------------------------------------- */

static void take_again_locked(struct list_head *from, struct list_head *taken)
{
	struct coop_call *call, *next;

	list_for_each_entry_safe(call, next, from, link) {
		if (!call->again)
			continue;
		coop_call_unlink_locked(call);
		call->error = -ECONNRESET;
		list_add_tail(&call->link, taken);
	}
}

/* Ends calls of a reopen() that a second restart made pointless, before the next reopen(). */
static void end_again(struct coop_storage *s)
{
	struct coop_call *call, *next;
	LIST_HEAD(old);
	bool more;

	do {
		/* done() of an answered call may have submitted another call with 'again'. */
		flush_workqueue(s->done_wq);
		spin_lock_bh(&s->lock);
		take_again_locked(&s->first, &old);
		take_again_locked(&s->later, &old);
		spin_unlock_bh(&s->lock);
		more = !list_empty(&old);
		list_for_each_entry_safe(call, next, &old, link) {
			list_del_init(&call->link);
			coop_call_tell(call);
		}
	} while (more);
}

/* Hands the socket to sender and receiver. False: closed; the caller keeps the socket. */
static bool stand(struct coop_storage *s, struct socket *sock, u32 window, bool gate)
{
	bool up;

	mutex_lock(&s->dial_mutex);
	s->dialing = NULL;
	mutex_unlock(&s->dial_mutex);
	sock->sk->sk_sndtimeo = MAX_SCHEDULE_TIMEOUT;
	sock->sk->sk_rcvtimeo = MAX_SCHEDULE_TIMEOUT;
	mutex_lock(&s->rx.mutex);
	mutex_lock(&s->tx.mutex);
	spin_lock_bh(&s->lock);
	up = s->state == COOP_STORAGE_DOWN;
	if (up) {
		s->state = COOP_STORAGE_UP;
		s->since = jiffies;
		s->heard = jiffies;
		s->pinged = jiffies - 1;
		s->window = clamp_t(u32, window, 1, COOP_ST_REQUESTS_MAX);
		s->gate += gate;
		s->sock = sock;
	}
	spin_unlock_bh(&s->lock);
	if (up) {
		coop_sock_attach(s, sock);
		queue_work(s->wq,
			   &s->rx_work); /* for bytes that came before the callbacks were set */
		coop_tx_kick(s);
	}
	mutex_unlock(&s->tx.mutex);
	mutex_unlock(&s->rx.mutex);
	return up;
}

static void hang_up(struct coop_storage *s, struct socket *sock)
{
	mutex_lock(&s->dial_mutex);
	s->dialing = NULL;
	mutex_unlock(&s->dial_mutex);
	coop_sock_release(s, sock);
}

static int dial_as(struct coop_storage *s, struct socket **sock, u16 newest)
{
	int err = coop_sock_dial(s, &s->server[s->current_server], sock);

	if (err) {
		say_why(s, err);
		return err;
	}
	err = shake_hands(s, *sock, newest);
	if (err)
		hang_up(s, *sock);
	return err;
}

static int dial(struct coop_storage *s, struct socket **sock)
{
	int err = dial_as(s, sock, COOP_ST_VERSION);

	/* An older daemon gives roles to all clients of the versions that have them. */
	if (err == -EPROTOTYPE)
		err = dial_as(s, sock, COOP_ST_VERSION_MIN);
	return err;
}

/* What belongs to the daemon's run, from daemons that tell. Overwrites s->got. */
static int learn_run(struct coop_storage *s, struct socket *sock)
{
	u32 status;
	int err;

	if (s->version >= coop_st_op_since(COOP_ST_RUN)) {
		memset(s->ask, 0, sizeof(*s->ask));
		s->ask->flags =
			COOP_ST_RUN_LAPSES | (s->forest || s->bundles ? 0 : COOP_ST_RUN_PLAIN);
		err = exchange(s, sock, COOP_ST_RUN, &status, jiffies + HANDSHAKE_TIME);
		if (!err && status)
			err = denied(s, status);
		if (err)
			return err;
		memcpy(s->run_nonce, s->got->nonce, sizeof(s->run_nonce));
		WRITE_ONCE(s->run_verifier, s->got->verifier);
	} else {
		memset(s->run_nonce, 0, sizeof(s->run_nonce));
		WRITE_ONCE(s->run_verifier, 0);
	}
	err = coop_key_fabric(s);
	if (err)
		say_why(s, err);
	return err;
}

int coop_session_first(struct coop_storage *s, u8 *root_fh, u32 *root_len,
		       struct coop_st_attr *root)
{
	struct socket *sock;
	int err = -EINVAL;
	u32 i, window;

	mutex_lock(&s->rx.mutex);
	coop_rx_reset(s);
	mutex_unlock(&s->rx.mutex);
	for (i = 0; i < s->n_servers; i++) {
		s->current_server = i;
		err = dial(s, &sock);
		if (!err)
			break;
		if (fatal_signal_pending(current))
			err = -EINTR;
		if (err == -EINTR || err == -ERESTARTSYS)
			return err;
	}
	if (err)
		return err;
	memcpy(root_fh, s->got->fh.p, s->got->fh.len);
	*root_len = s->got->fh.len;
	*root = s->got->attr;
	s->root = s->got->attr.fid;
	window = s->got->count;
	err = learn_run(s, sock);
	if (err) {
		hang_up(s, sock);
		return err;
	}
	stand(s, sock, window, false); /* cannot fail: it cannot be closed yet */
	return 0;
}

bool coop_storage_redirects(const struct coop_storage *s)
{
	return (s->forest || s->bundles) &&
	       READ_ONCE(s->version) >= coop_st_op_since(COOP_ST_READ_SHARED);
}

bool coop_storage_bundles(const struct coop_storage *s)
{
	return s->bundles && READ_ONCE(s->version) >= coop_st_op_since(COOP_ST_BUNDLE);
}

/* Registers this node's address. 0: done, or there is no address. */
static int enroll(struct coop_storage *s, struct socket *sock)
{
	u32 status = 0;
	u16 op;
	int err;

	memset(s->ask, 0, sizeof(*s->ask));
	spin_lock_bh(&s->lock);
	op = coop_enroll_form_locked(s, s->ask);
	spin_unlock_bh(&s->lock);
	WRITE_ONCE(s->node_id, 0);
	if (op == COOP_ST_LEAVE)
		return 0; /* a connection begins without a node */
	err = exchange(s, sock, op, &status, jiffies + HANDSHAKE_TIME);
	if (err)
		return err;
	if (status)
		pr_warn_ratelimited(
			"coopfs: storage %pISpc: the daemon did not register this node: %pe\n",
			&s->server[s->current_server], ERR_PTR(coop_storage_errno(status)));
	else
		WRITE_ONCE(s->node_id, s->got->node_id);
	return 0;
}

static int reconnect(struct coop_storage *s)
{
	struct socket *sock;
	bool fresh;
	u32 window;
	int err = dial(s, &sock);

	if (err)
		return err;
	fresh = s->got->flags & COOP_ST_W_NEW_SESSION;
	window = s->got->count;
	if (s->got->attr.fid.hi != s->root.hi || s->got->attr.fid.lo != s->root.lo) {
		snprintf(s->why, sizeof(s->why), "%pISpc: it exports another directory as \"%s\"",
			 &s->server[s->current_server], s->export_name);
		err = -ESTALE;
	}
	if (!err)
		err = learn_run(s, sock);
	if (!err) {
		s->ops->reset(s->host);
		err = enroll(s, sock);
	}
	if (err) {
		hang_up(s, sock);
		return err;
	}
	if (fresh)
		end_again(s);
	if (!stand(s, sock, window, fresh)) {
		hang_up(s, sock);
		return 0;
	}
	coop_count(s->stats, COOP_C_STORAGE_RECONNECTS, 1);
	pr_info_ratelimited("coopfs: storage %pISpc: connected again%s\n",
			    &s->server[s->current_server],
			    fresh ? ", to a daemon that no longer knew this mount" : "");
	if (fresh) {
		s->ops->reopen(s->host);
		spin_lock_bh(&s->lock);
		s->gate--;
		spin_unlock_bh(&s->lock);
		coop_tx_kick(s);
	}
	coop_enroll_kick(s);
	return 0;
}

void coop_session_work(struct work_struct *work)
{
	struct coop_storage *s = container_of(work, struct coop_storage, session_work.work);
	const unsigned int nofs = memalloc_nofs_save();
	u32 i, wait;
	int err = 0;

	s->ops->lost(s->host);
	coop_session_teardown(s);
	for (i = 0; i < s->n_servers; i++) {
		if (READ_ONCE(s->state) != COOP_STORAGE_DOWN)
			goto out;
		err = reconnect(s);
		if (!err)
			break;
		WRITE_ONCE(s->current_server, (s->current_server + 1) % s->n_servers);
	}
	if (!err) {
		s->attempts = 0;
		s->backoff_ms = 0;
		goto out;
	}
	if (is_power_of_2(++s->attempts) && s->attempts >= 4)
		pr_warn_ratelimited("coopfs: storage %s; still trying\n", s->why);
	s->backoff_ms = clamp(s->backoff_ms * 2, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);
	/* Half of it is random, so that the clients of a daemon do not reconnect in step. */
	wait = s->backoff_ms / 2 + get_random_u32() % (s->backoff_ms / 2);
	spin_lock_bh(&s->lock);
	if (s->state == COOP_STORAGE_DOWN)
		queue_delayed_work(s->wq, &s->session_work, msecs_to_jiffies(wait));
	spin_unlock_bh(&s->lock);
out:
	memalloc_nofs_restore(nofs);
}
