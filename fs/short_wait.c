// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * short_wait.c - requests that must not hang while the daemon is silent.
 *
 * df(1) and stat(1) of a mount's top, and whoever looks at its files below /proc to see what is
 * wrong, get an answer then too: after a short wait, what was known last. Nothing else is answered
 * so. A request that is overdue stays under way, because to take it back may cost the connection,
 * and its reply is learned when it comes. Until then no other of its kind is sent.
 *
 *   state      by                          the request and its memory belong to
 *   WAITED     start, with a waiting task  that task
 *   ANSWERED   the reply                   the same
 *   LEFT       the task has left           the end of the request
 */
#include <linux/slab.h>

#include "fs/fs.h"

#define SHORT_WAIT (2 * HZ)

enum short_state {
	WAITED,
	ANSWERED,
	LEFT,
};

struct short_wait {
	struct coop_call *call;
	struct inode *inode; /* a reference, because the request has its handle */
	u64 asked;
	atomic_t state; /* enum short_state */
	struct completion answered;
};

static atomic_t *overdue(struct coop_mount *m, u16 op)
{
	return op == COOP_ST_STATFS ? &m->silence.statfs : &m->silence.getattr;
}

static void learn(const struct short_wait *w)
{
	const struct coop_st_body *res = &w->call->res;
	struct coop_silence *s = &coop_sb(w->inode->i_sb)->silence;

	if (w->call->error)
		return;
	if (w->call->op == COOP_ST_GETATTR) {
		if (coop_is_of(w->inode, &res->attr))
			coop_attr_learn(w->inode, &res->attr, w->asked);
		return;
	}
	spin_lock(&s->lock);
	s->space = res->statfs;
	s->known = true;
	spin_unlock(&s->lock);
}

static void short_free(struct short_wait *w)
{
	struct coop_mount *m = coop_sb(w->inode->i_sb);

	coop_call_put(w->call);
	coop_iput_later(w->inode);
	kfree(w);
	coop_calls_end(m);
}

static void short_done(struct coop_call *call)
{
	struct short_wait *w = call->owner;
	struct coop_mount *m = coop_sb(w->inode->i_sb);

	learn(w);
	if (atomic_xchg(&w->state, ANSWERED) != LEFT) {
		complete(&w->answered);
		return;
	}
	if (atomic_dec_and_test(overdue(m, call->op)))
		wake_up_all(&m->silence.over);
	short_free(w);
}

static struct short_wait *short_start(struct inode *inode, u16 op, enum short_state state)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_call *call = coop_call_alloc(m->storage, op);
	struct short_wait *w = call ? kzalloc(sizeof(*w), GFP_KERNEL) : NULL;

	if (!w) {
		if (call)
			coop_call_put(call);
		return NULL;
	}
	ihold(inode);
	coop_calls_begin(m);
	w->call = call;
	w->inode = inode;
	w->asked = coop_ticket(inode->i_sb);
	atomic_set(&w->state, state);
	init_completion(&w->answered);
	if (state == LEFT)
		atomic_inc(overdue(m, op));
	coop_call_cred(call, coop_caller_any(inode->i_sb));
	call->arg.fh.p = coop_i(inode)->fh;
	call->arg.fh.len = coop_i(inode)->fh_len;
	call->owner = w;
	call->done = short_done;
	call->prompt = true;
	coop_call_queue(call);
	coop_storage_push(m->storage);
	return w;
}

/* left: of wait_for_completion_killable_timeout(). True: 'w' is the request's now. */
static bool leaves(struct short_wait *w, long left)
{
	atomic_t *n = overdue(coop_sb(w->inode->i_sb), w->call->op);

	if (left > 0)
		return false;
	atomic_inc(n); /* before the end of the request can see LEFT */
	if (atomic_xchg(&w->state, LEFT) != ANSWERED)
		return true;
	if (atomic_dec_and_test(n)) /* others may have seen it, and wait */
		wake_up_all(&coop_sb(w->inode->i_sb)->silence.over);
	wait_for_completion(&w->answered); /* which comes at once */
	return false;
}

/*
 * Sends a request and waits for it. *out: set if it was answered in time; free it. -ETIME: it was
 * not; else -errno.
 */
static int ask(struct inode *inode, u16 op, unsigned long most, struct short_wait **out)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct short_wait *w;
	long left;
	int err;

	left = wait_event_killable_timeout(m->silence.over, !atomic_read(overdue(m, op)), most);
	if (left <= 0)
		return left ?: -ETIME;
	w = short_start(inode, op, WAITED);
	if (!w)
		return -ENOMEM;
	left = wait_for_completion_killable_timeout(&w->answered, left);
	if (leaves(w, left))
		return left ?: -ETIME;
	err = w->call->error;
	if (!err)
		*out = w;
	else
		short_free(w);
	return err == -ETIMEDOUT ? -ETIME : err; /* the patience of a soft mount may be shorter */
}

int coop_ask_attr_shortly(struct inode *inode)
{
	struct short_wait *w;
	int err = ask(inode, COOP_ST_GETATTR, SHORT_WAIT, &w);

	if (err)
		return err == -ETIME ? 0 : err;
	err = coop_is_of(inode, &w->call->res.attr) ? 0 : -ESTALE;
	short_free(w);
	return err;
}

int coop_ask_space(struct inode *inode, struct coop_st_statfs *out)
{
	struct coop_silence *s = &coop_sb(inode->i_sb)->silence;
	struct short_wait *w;
	bool known;
	int err;

	spin_lock(&s->lock);
	known = s->known;
	*out = s->space;
	spin_unlock(&s->lock);
	err = ask(inode, COOP_ST_STATFS, known ? SHORT_WAIT : MAX_SCHEDULE_TIMEOUT, &w);
	if (err)
		return err == -ETIME ? (known ? 0 : -ETIMEDOUT) : err;
	*out = w->call->res.statfs;
	short_free(w);
	return 0;
}

void coop_silence_init(struct coop_silence *s)
{
	spin_lock_init(&s->lock);
	init_waitqueue_head(&s->over);
}

void coop_space_learn(struct inode *root)
{
	short_start(root, COOP_ST_STATFS, LEFT);
}
