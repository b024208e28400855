// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * lock_ask.c - what locks ask of storage, and the calls that their tasks leave.
 *
 * A killed task leaves its call without waiting for the reply: when that comes, we unlock, which
 * also releases what the owner held in that range.
 *
 * A soft mount does not wait longer than its timeo for a reply. A lock that was sent is then left
 * as by a killed waiter, and an unlock still reaches storage later. Storage runs requests
 * concurrently, so the same owner's next lock of such a range waits for its turn: until all its
 * unlocks there were answered, also those that follow a call that was left, and other LOCKs too.
 * Several processes may share an open file description. What begins after the turn crosses the
 * lock, which is then not noted (lock.c), but taken again. An open file that an unlock names stays
 * open until the unlock is answered.
 */
#include <linux/slab.h>

#include "fs/fs.h"
#include "fs/lock_ask.h"

#define TURN_SLICE ((unsigned long)HZ) /* a waiting LOCK looks at its deadline so often */

void coop_locks_init(struct coop_locks *l)
{
	init_rwsem(&l->noting);
	mutex_init(&l->order);
	spin_lock_init(&l->lock);
	INIT_LIST_HEAD(&l->asks);
	INIT_LIST_HEAD(&l->unlocking);
	init_waitqueue_head(&l->unlocked);
	coop_locks_keep_init(l);
	get_random_bytes(&l->owner_key, sizeof(l->owner_key));
}

/* ---- asks ----------------------------------------------------------------------------------- */

static u32 lock_kind(const struct file_lock *fl)
{
	if (coop_fl(fl, flags) & FL_FLOCK)
		return COOP_ST_LOCK_FLOCK;
	/* When the VFS unlocks at the last close, only the owner says that it was F_OFD_SETLK. */
	return coop_fl(fl, flags) & FL_OFDLCK || coop_fl(fl, owner) == coop_fl(fl, file)
		       ? COOP_ST_LOCK_OFD
		       : COOP_ST_LOCK_POSIX;
}

void coop_lock_describe(const struct coop_mount *m, const struct file_lock *fl,
			struct coop_st_lock *l)
{
	l->kind = lock_kind(fl);
	/* Hash the owner: kernel addresses must not leave the kernel. */
	l->owner = siphash_2u64((unsigned long)coop_fl(fl, owner), l->kind, &m->locks.owner_key);
	l->start = fl->fl_start;
	l->end = fl->fl_end == OFFSET_MAX ? U64_MAX : fl->fl_end;
	l->type = coop_fl(fl, type) == F_WRLCK   ? COOP_ST_LOCK_WRITE
		  : coop_fl(fl, type) == F_RDLCK ? COOP_ST_LOCK_READ
						 : COOP_ST_LOCK_NONE;
	l->pid = coop_fl(fl, pid);
}

void coop_ask_cookie(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;

	spin_lock(&l->lock);
	ask->cookie = ++l->last_cookie;
	ask->granted = false;
	ask->queued = false;
	spin_unlock(&l->lock);
}

struct coop_lock_ask *coop_ask_begin(struct file *file, const struct file_lock *fl, bool takes)
{
	struct coop_lock_ask *ask = kzalloc(sizeof(*ask), GFP_KERNEL);
	const struct coop_file *f = file->private_data;
	struct coop_locks *l;

	if (!ask)
		return NULL;
	ask->inode = file_inode(file);
	ask->mount = coop_sb(ask->inode->i_sb);
	ask->open_id = f->open_id;
	refcount_set(&ask->refs, 1);
	init_waitqueue_head(&ask->wake);
	INIT_LIST_HEAD(&ask->link);
	INIT_LIST_HEAD(&ask->unlocking);
	coop_lock_describe(ask->mount, fl, &ask->what);
	if (!takes)
		return ask;
	l = &ask->mount->locks;
	spin_lock(&l->lock);
	list_add(&ask->link, &l->asks);
	spin_unlock(&l->lock);
	return ask;
}

/* The caller, or a call of the caller, holds the inode. */
static void ask_close(struct coop_lock_ask *ask)
{
	if (ask->said)
		coop_file_put(ask->said);
	ask->said = NULL;
}

static void ask_put(struct coop_lock_ask *ask)
{
	if (!refcount_dec_and_test(&ask->refs))
		return;
	ask_close(ask);
	kfree(ask);
}

/* The same owner, and its number includes the kind; and they have bytes in common. */
static bool ask_meets(const struct coop_lock_ask *a, const struct coop_lock_ask *b)
{
	return a->inode == b->inode && a->what.owner == b->what.owner &&
	       a->what.start <= b->what.end && b->what.start <= a->what.end;
}

static void cross_locked(const struct coop_lock_ask *ask, enum coop_crossed by)
{
	struct coop_lock_ask *other;

	list_for_each_entry(other, &ask->mount->locks.asks, link) {
		if (other != ask && ask_meets(ask, other))
			other->crossed = max(other->crossed, by);
	}
}

static void unlock_begins_locked(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;

	lockdep_assert_held(&l->lock);
	if (ask->unlocks++)
		return;
	list_add(&ask->unlocking, &l->unlocking);
	cross_locked(ask, COOP_CROSSED_BY_UNLOCK);
}

void coop_ask_unlock_begins(struct coop_lock_ask *ask)
{
	spin_lock(&ask->mount->locks.lock);
	unlock_begins_locked(ask);
	spin_unlock(&ask->mount->locks.lock);
}

void coop_ask_unlock_ends(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;

	spin_lock(&l->lock);
	if (!--ask->unlocks)
		list_del_init(&ask->unlocking);
	spin_unlock(&l->lock);
	wake_up_all(&l->unlocked);
}

void coop_ask_end(struct coop_lock_ask *ask)
{
	bool left;

	spin_lock(&ask->mount->locks.lock);
	list_del_init(&ask->link);
	left = ask->left;
	spin_unlock(&ask->mount->locks.lock);
	/* Unless an unlock may follow. The last call may put the ask later than this task, whose
	 * next close has to send the CLOSE itself. */
	if (left)
		coop_ask_unlock_ends(ask);
	else
		ask_close(ask);
	ask_put(ask);
}

enum coop_crossed coop_ask_crossed(const struct coop_lock_ask *ask)
{
	enum coop_crossed crossed;

	spin_lock(&ask->mount->locks.lock);
	crossed = ask->crossed;
	spin_unlock(&ask->mount->locks.lock);
	return crossed;
}

/* Takes the turn, unless an unlock of the owner or another LOCK has it. */
static bool took_turn(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;
	struct coop_lock_ask *other;
	bool found = false;

	spin_lock(&l->lock);
	list_for_each_entry(other, &l->unlocking, unlocking)
		found |= ask_meets(ask, other);
	list_for_each_entry(other, &l->asks, link)
		found |= other != ask && other->has_turn && ask_meets(ask, other);
	if (!found) {
		ask->has_turn = true;
		/* A wait that is asked for again may have been granted before. */
		if (!ask->queued)
			ask->crossed = COOP_NOT_CROSSED;
		cross_locked(ask, COOP_CROSSED_BY_LOCK);
	}
	spin_unlock(&l->lock);
	return !found;
}

void coop_ask_queued(struct coop_lock_ask *ask)
{
	ask->queued = true;
	coop_locks_speak(ask->mount); /* ends when 'asks' is empty */
	coop_ask_turn_ends(ask);
}

void coop_ask_turn_ends(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;
	bool had;

	spin_lock(&l->lock);
	had = ask->has_turn;
	ask->has_turn = false;
	spin_unlock(&l->lock);
	if (had)
		wake_up_all(&l->unlocked);
}

int coop_ask_in_turn(struct coop_lock_ask *ask)
{
	struct coop_mount *m = ask->mount;
	const unsigned long begun = jiffies;
	unsigned long slice, most;
	long left;
	int late;

	if (took_turn(ask))
		return 0;
	do {
		most = coop_storage_patience(m->storage, &late);
		slice = most ? clamp(most / 8, 1UL, TURN_SLICE) : TURN_SLICE;
		left = wait_event_killable_timeout(m->locks.unlocked, took_turn(ask), slice);
	} while (!left && (!most || time_before(jiffies, begun + most)));
	if (left < 0)
		return left;
	return left ? 0 : late;
}

static void ask_called(struct coop_call *call);

/* Returns a reference to the call. */
static struct coop_call *ask_send(struct coop_lock_ask *ask, u16 op, u32 flags, u64 cookie)
{
	struct coop_inode *ci = coop_i(ask->inode);
	struct coop_call *call = coop_call_alloc(ask->mount->storage, op);

	/* An unlock must not fail for lack of memory; it may stay long, so try the reserve last. */
	if (!call && op == COOP_ST_UNLOCK)
		call = coop_call_alloc_sure(ask->mount->storage, op);
	if (!call)
		return NULL;
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = ask->open_id;
	call->arg.lock = ask->what;
	call->arg.flags = flags;
	call->arg.cookie = cookie;
	refcount_inc(&ask->refs);
	ihold(ask->inode);
	coop_calls_begin(ask->mount);
	if (op == COOP_ST_UNLOCK)
		coop_ask_unlock_begins(ask);
	call->owner = ask;
	call->done = ask_called;
	coop_call_queue(call);
	coop_storage_push(ask->mount->storage);
	return call;
}

void coop_ask_unlock(struct coop_lock_ask *ask, u64 cookie)
{
	coop_call_put(ask_send(ask, COOP_ST_UNLOCK, 0, cookie));
}

/* Handles a reply that its task did not wait for: first ends the wait, then unlocks the range. */
static void ask_settle(struct coop_lock_ask *ask, const struct coop_call *call)
{
	if (call->op == COOP_ST_LOCK && !call->error && call->res.flags == COOP_ST_LOCK_QUEUED)
		coop_ask_unlock(ask, ask->cookie);
	else if (call->op == COOP_ST_LOCK || call->arg.cookie)
		coop_ask_unlock(ask, 0);
}

static void ask_called(struct coop_call *call)
{
	struct coop_lock_ask *ask = call->owner;
	struct coop_mount *m = ask->mount;
	struct inode *inode = ask->inode;
	bool left;

	spin_lock(&m->locks.lock);
	ask->answered = true;
	left = ask->left;
	spin_unlock(&m->locks.lock);
	if (left)
		ask_settle(ask, call);
	if (left || call->op == COOP_ST_UNLOCK)
		coop_ask_unlock_ends(ask);
	complete_all(&call->finished);
	ask_put(ask);
	coop_iput_later(inode);
	coop_calls_end(m);
}

/* Stops waiting for the reply. True: ask_called() will handle it; false: it has already come. */
static bool ask_leave(struct coop_lock_ask *ask, u16 op)
{
	struct coop_locks *l = &ask->mount->locks;

	mutex_lock(&l->order);
	spin_lock(&l->lock);
	ask->left = !ask->answered;
	if (ask->left) {
		unlock_begins_locked(ask); /* until coop_ask_end(): the task removes its note */
		if (op == COOP_ST_LOCK)
			unlock_begins_locked(ask); /* until ask_called() has sent the UNLOCK */
	}
	spin_unlock(&l->lock);
	mutex_unlock(&l->order);
	return ask->left;
}

bool coop_ask_abandon(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;
	bool left;

	lockdep_assert_held(&l->order);
	spin_lock(&l->lock);
	left = ask->left;
	ask->left = true;
	if (!left)
		unlock_begins_locked(ask); /* as in ask_leave() */
	spin_unlock(&l->lock);
	return left;
}

int coop_ask_call(struct coop_lock_ask *ask, u16 op, u32 flags, u64 cookie, u32 *result)
{
	struct coop_call *call;
	int err, killed, late;

	ask->answered = false; /* no call is under way */
	call = ask_send(ask, op, flags, cookie);
	if (!call)
		return -ENOMEM;
	killed = wait_for_completion_killable(&call->finished);
	late = READ_ONCE(call->late);
	if ((killed || late) && ask_leave(ask, op)) {
		coop_call_put(call);
		return killed ? -ERESTARTSYS : late;
	}
	/* It is answered, so its results are here; ask_called() may still be at work. */
	err = call->error;
	*result = call->res.flags;
	coop_call_put(call);
	return err;
}

/* ---- pushes from storage ------------------------------------------------------------ */

void coop_locks_granted(struct coop_mount *m, u64 cookie)
{
	struct coop_lock_ask *ask;

	spin_lock(&m->locks.lock);
	list_for_each_entry(ask, &m->locks.asks, link) {
		if (!cookie || ask->cookie != cookie)
			continue;
		WRITE_ONCE(ask->granted, true);
		wake_up(&ask->wake);
		break;
	}
	spin_unlock(&m->locks.lock);
}

void coop_locks_reconnected(struct coop_mount *m)
{
	struct coop_lock_ask *ask;

	spin_lock(&m->locks.lock);
	list_for_each_entry(ask, &m->locks.asks, link) {
		WRITE_ONCE(ask->again, true);
		wake_up(&ask->wake);
	}
	spin_unlock(&m->locks.lock);
}
