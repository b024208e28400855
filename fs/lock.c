// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * lock.c - flock(2), and the byte ranges of fcntl(2), held at storage among all nodes.
 *
 * Storage decides. It knows every owner on this node by a number, so processes of one node
 * compete there like those of two nodes, in one order. We note granted locks in the VFS's
 * lists of the inode (i_flctx). The VFS uses them to unlock at a close, and we use them to
 * reclaim locks from a restarted daemon. A lock is noted after storage has granted it, and
 * removed before storage gets the unlock, so we never note more than storage has granted. When
 * storage passes a lock from one owner on this node to another, the old note may still be
 * there for a moment: the new owner then waits for it to go.
 *
 * A wait is queued at storage, whose push ends it. The push may be lost with a connection, so
 * on the next one the waiter asks again under the same cookie. An interrupted waiter cancels
 * its wait; if the grant came first, it keeps the lock. A killed waiter leaves its call without
 * waiting for the reply: when that comes, it unlocks, which also releases what the owner held in
 * that range.
 *
 * A soft mount does not wait longer than its timeo for a reply. A lock that was sent is then left
 * as by a killed waiter, and an unlock still reaches storage later. Storage runs requests
 * concurrently, so the same owner's next lock of that file waits until all its unlocks were
 * answered, also those that follow a call that was left: several processes may share an open file
 * description. An open file that an unlock names stays open until then.
 *
 * We count restarts of the daemon. A grant may come from the daemon before a restart, so it is
 * noted only if there was no restart since its request; else we ask again. lock_reclaim.c
 * asks the new daemon for the noted locks.
 */
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "fs/fs.h"

#define TURN_SLICE ((unsigned long)HZ) /* a waiting LOCK looks at its deadline so often */

/* One task that asks storage for a lock, or gives one back. */
struct coop_lock_ask {
	refcount_t refs;            /* the task; the call under way */
	struct list_head link;      /* coop_locks.asks, if it may be queued */
	struct list_head unlocking; /* coop_locks.unlocking */
	struct coop_mount *mount;
	struct inode *inode; /* the task holds its file; calls have references of their own */
	u64 open_id;
	struct coop_file *said; /* the open file that open_id names, if the ask keeps it open */
	u64 cookie;             /* 0: it does not wait */
	struct coop_st_lock what;
	wait_queue_head_t wake;
	/* guarded by coop_locks.lock */
	bool granted;
	bool again;    /* new connection: a grant may be lost, so ask again */
	bool answered; /* the last call has its reply */
	bool left;     /* the task did not wait for that reply */
	u32 unlocks;   /* UNLOCKs under way, or to come: the owner's next LOCK waits for them */
};

void coop_locks_init(struct coop_locks *l)
{
	init_rwsem(&l->noting);
	spin_lock_init(&l->lock);
	INIT_LIST_HEAD(&l->asks);
	INIT_LIST_HEAD(&l->unlocking);
	init_waitqueue_head(&l->unlocked);
	get_random_bytes(&l->owner_key, sizeof(l->owner_key));
}

/* ---- requests ----------------------------------------------------------------------------- */

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

static void ask_cookie(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;

	spin_lock(&l->lock);
	ask->cookie = ++l->last_cookie;
	ask->granted = false;
	spin_unlock(&l->lock);
}

static struct coop_lock_ask *ask_begin(struct file *file, const struct file_lock *fl, bool wait)
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
	if (!wait)
		return ask;
	ask_cookie(ask);
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

static void unlock_begins_locked(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;

	lockdep_assert_held(&l->lock);
	if (!ask->unlocks++)
		list_add(&ask->unlocking, &l->unlocking);
}

static void unlock_begins(struct coop_lock_ask *ask)
{
	spin_lock(&ask->mount->locks.lock);
	unlock_begins_locked(ask);
	spin_unlock(&ask->mount->locks.lock);
}

static void unlock_ends(struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;

	spin_lock(&l->lock);
	if (!--ask->unlocks)
		list_del_init(&ask->unlocking);
	spin_unlock(&l->lock);
	wake_up_all(&l->unlocked);
}

static void ask_end(struct coop_lock_ask *ask)
{
	bool left;

	spin_lock(&ask->mount->locks.lock);
	list_del_init(&ask->link);
	left = ask->left;
	spin_unlock(&ask->mount->locks.lock);
	/* Unless an unlock may follow. The last call may put the ask later than this task, whose
	 * next close has to send the CLOSE itself. */
	if (left)
		unlock_ends(ask);
	else
		ask_close(ask);
	ask_put(ask);
}

static bool owner_unlocks(const struct coop_lock_ask *ask)
{
	struct coop_locks *l = &ask->mount->locks;
	const struct coop_lock_ask *other;
	bool found = false;

	spin_lock(&l->lock);
	list_for_each_entry(other, &l->unlocking, unlocking) {
		/* An owner number includes the kind. */
		found = other->inode == ask->inode && other->what.owner == ask->what.owner;
		if (found)
			break;
	}
	spin_unlock(&l->lock);
	return found;
}

/*
 * Call it before a LOCK: an UNLOCK that storage runs after it would end it. It waits as long as a
 * call may take now; umount -f and a remount change that during the wait.
 */
static int ask_in_turn(struct coop_lock_ask *ask)
{
	struct coop_mount *m = ask->mount;
	const unsigned long begun = jiffies;
	unsigned long slice, most;
	long left;
	int late;

	if (!owner_unlocks(ask))
		return 0;
	do {
		most = coop_storage_patience(m->storage, &late);
		slice = most ? clamp(most / 8, 1UL, TURN_SLICE) : TURN_SLICE;
		left = wait_event_killable_timeout(m->locks.unlocked, !owner_unlocks(ask), slice);
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
		unlock_begins(ask);
	call->owner = ask;
	call->done = ask_called;
	coop_call_queue(call);
	coop_storage_push(ask->mount->storage);
	return call;
}

static void ask_send_alone(struct coop_lock_ask *ask, u64 cookie)
{
	coop_call_put(ask_send(ask, COOP_ST_UNLOCK, 0, cookie));
}

/* Handles a reply that its task did not wait for: first ends the wait, then unlocks the range. */
static void ask_settle(struct coop_lock_ask *ask, const struct coop_call *call)
{
	if (call->op == COOP_ST_LOCK && !call->error && call->res.flags == COOP_ST_LOCK_QUEUED)
		ask_send_alone(ask, ask->cookie);
	else if (call->op == COOP_ST_LOCK || call->arg.cookie)
		ask_send_alone(ask, 0);
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
		unlock_ends(ask);
	complete_all(&call->finished);
	ask_put(ask);
	coop_iput_later(inode);
	coop_calls_end(m);
}

/* Stops waiting for the reply. True: ask_called() will handle it; false: it has already come. */
static bool ask_leave(struct coop_lock_ask *ask, u16 op)
{
	struct coop_locks *l = &ask->mount->locks;

	spin_lock(&l->lock);
	ask->left = !ask->answered;
	if (ask->left) {
		unlock_begins_locked(ask); /* until ask_end(): the task removes its note */
		if (op == COOP_ST_LOCK)
			unlock_begins_locked(ask); /* until ask_called() has sent the UNLOCK */
	}
	spin_unlock(&l->lock);
	return ask->left;
}

/*
 * 0 and the reply's flags; -ERESTARTSYS: killed, and the ask is left. It is left too after the
 * deadline of a call that stays beyond it.
 */
static int ask_call(struct coop_lock_ask *ask, u16 op, u32 flags, u64 cookie, u32 *result)
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

/* ---- notes: the VFS's lists ---------------------------------------------------------------- */

static int note_with(struct inode *inode, struct file_lock *fl, unsigned int extra)
{
	const unsigned int flags = coop_fl(fl, flags);
	int err;

	coop_fl(fl, flags) = (flags & ~(FL_SLEEP | FL_ACCESS)) | extra;
	err = locks_lock_inode_wait(inode, fl);
	coop_fl(fl, flags) = flags;
	return err;
}

static int note_out(struct inode *inode, struct file_lock *fl, unsigned int extra)
{
	const unsigned char type = coop_fl(fl, type);
	int err;

	coop_fl(fl, type) = F_UNLCK;
	err = note_with(inode, fl, extra);
	coop_fl(fl, type) = type;
	return err;
}

/* Notes a granted lock. 0; 1: the daemon was restarted since; -errno. */
static int note_in(struct inode *inode, struct file_lock *fl, u32 restarts)
{
	struct coop_locks *l = &coop_sb(inode->i_sb)->locks;
	unsigned int nofs;
	int err;

	for (;;) {
		/* The session's work waits for 'noting': do not wait here for memory that needs
		 * storage. */
		down_read(&l->noting);
		nofs = memalloc_nofs_save();
		err = l->restarts == restarts ? note_with(inode, fl, 0) : 1;
		memalloc_nofs_restore(nofs);
		up_read(&l->noting);
		if (err != -EAGAIN)
			return err;
		/* Storage got the lock back from an owner on this node; wait until its note is
		 * gone.
		 */
		err = note_with(inode, fl, FL_ACCESS | FL_SLEEP);
		if (err)
			return err;
	}
}

/* ---- lock and unlock ------------------------------------------------------------------------- */

static bool ask_woken(const struct coop_lock_ask *ask)
{
	return READ_ONCE(ask->granted) || READ_ONCE(ask->again);
}

/* 0: storage has granted it. */
static int ask_lock(struct coop_lock_ask *ask, struct file_lock *fl)
{
	const bool wait = ask->cookie;
	u32 result;
	int err, ended;

	for (;;) {
		WRITE_ONCE(ask->again, false); /* before the call: a later reconnect counts */
		err = ask_call(ask, COOP_ST_LOCK, wait ? COOP_ST_L_WAIT : 0, ask->cookie, &result);
		if (err)
			return err;
		if (result == COOP_ST_LOCK_HELD)
			return 0;
		if (ask->what.kind == COOP_ST_LOCK_FLOCK)
			note_out(ask->inode, fl, 0); /* a conversion first releases the old lock */
		if (result == COOP_ST_LOCK_CONFLICT)
			return -EAGAIN;
		if (result != COOP_ST_LOCK_QUEUED || !wait)
			return -EIO; /* not a valid reply */
		err = wait_event_interruptible(ask->wake, ask_woken(ask));
		if (READ_ONCE(ask->granted))
			return 0;
		if (!err)
			continue;
		ended = ask_call(ask, COOP_ST_UNLOCK, 0, ask->cookie, &result);
		if (!ended && !result)
			return 0; /* granted before the wait could end */
		return ended ?: err;
	}
}

/*
 * Storage gives up the owner's older locks of the range too, and the program must not go on as if
 * it had them. One that is killed does not, and others that share the open file then may; what was
 * written under such a lock still goes to storage. A flock(2) that fails has no older lock left.
 */
static void older_lost(struct coop_lock_ask *ask)
{
	const bool killed = fatal_signal_pending(current);

	if (!killed && ask->what.kind == COOP_ST_LOCK_FLOCK)
		return;
	WRITE_ONCE(ask->said->lost, true);
	if (!killed)
		coop_content_lost(coop_i(ask->inode));
	pr_warn_ratelimited("coopfs: storage: a lock of inode %lu was lost with a larger one: its "
			    "open file fails with EIO and must be opened again\n",
			    ask->inode->i_ino);
}

/* Gives up a lock that storage may have granted, or may still grant. noted: here, and nobody knows.
 */
static void ask_give_up(struct coop_lock_ask *ask, struct file_lock *fl, bool noted)
{
	struct coop_locks *l = &ask->mount->locks;
	bool left;

	spin_lock(&l->lock);
	left = ask->left;
	ask->left = true;
	if (!left)
		unlock_begins_locked(ask); /* as in ask_leave() */
	spin_unlock(&l->lock);
	if (!note_out(ask->inode, fl, FL_EXISTS) && !noted)
		older_lost(ask);
	if (!left)
		ask_send_alone(ask, ask->cookie);
}

static int lock_take(struct file *file, struct file_lock *fl, bool wait)
{
	struct coop_lock_ask *ask = ask_begin(file, fl, wait);
	struct coop_locks *l;
	bool noted = false;
	u32 restarts;
	int err;

	if (!ask)
		return -ENOLCK;
	/* If the lock is given up, the CLOSE is sent after the reply to that unlock. */
	ask->said = coop_file_get(file->private_data);
	l = &ask->mount->locks;
	err = ask_in_turn(ask);
	if (err) {
		ask_end(ask);
		return err;
	}
	for (;;) {
		down_read(&l->noting);
		restarts = l->restarts;
		up_read(&l->noting);
		err = ask_lock(ask, fl);
		if (!err) {
			err = note_in(ask->inode, fl, restarts);
			noted |= !err;
			/* The owner's unlock that began meanwhile may end it: take it again. */
			if (!err && owner_unlocks(ask))
				err = ask_in_turn(ask) ?: 1;
			if (err < 0)
				ask_give_up(ask, fl, noted);
		} else if (READ_ONCE(ask->left) || err == -ETIMEDOUT || err == -EIO || noted) {
			ask_give_up(ask, fl, noted);
		}
		if (err <= 0)
			break;
		if (wait)
			ask_cookie(ask);
	}
	ask_end(ask);
	return err;
}

static bool is_said(const struct coop_file *f)
{
	/* Pairs with the release in unsaid.c: open_id is the one that storage knows. */
	return smp_load_acquire(&f->said) == COOP_SAID;
}

/* An open file that storage knows of: this one, or else another of the inode; NULL: none. */
static struct coop_file *said_of(struct coop_file *f)
{
	struct coop_inode *ci = coop_i(f->inode);
	struct coop_file *other, *found = NULL;

	if (is_said(f) && !READ_ONCE(f->error))
		return coop_file_get(f);
	spin_lock(&ci->lock);
	list_for_each_entry(other, &ci->files, link) {
		if (is_said(other) && !READ_ONCE(other->error) &&
		    refcount_inc_not_zero(&other->refs)) {
			found = other;
			break;
		}
	}
	spin_unlock(&ci->lock);
	return found;
}

/*
 * Before storage may give others a lock: dirty pages go there, wherever they are in the file, and
 * none of these bytes is written again later. fsync reports errors.
 */
static void lock_write_back(struct inode *inode)
{
	filemap_write_and_wait(inode->i_mapping);
	coop_unstable_hand_over(inode);
}

static int lock_give_back(struct file *file, struct file_lock *fl)
{
	struct inode *inode = file_inode(file);
	struct coop_lock_ask *ask;
	u32 result;
	int err;

	lock_write_back(inode);
	ask = ask_begin(file, fl, false);
	if (!ask)
		return -ENOLCK;
	/* Any open file can carry the owner's unlock. Its CLOSE is sent after the reply. */
	ask->said = said_of(file->private_data);
	if (ask->said)
		ask->open_id = ask->said->open_id;
	unlock_begins(ask); /* a LOCK that finds no note must not reach storage before the UNLOCK */
	err = note_out(inode, fl, FL_EXISTS);
	if (!err)
		err = ask_call(ask, COOP_ST_UNLOCK, 0, 0, &result);
	unlock_ends(ask);
	ask_end(ask);
	/* No lock was held; or the task was killed, and the unlock is under way. */
	return err == -ENOENT || err == -ERESTARTSYS ? 0 : err;
}

static int lock_set(struct file *file, struct file_lock *fl, bool wait)
{
	struct coop_file *f = file->private_data;
	struct inode *inode = file_inode(file);
	int err = coop_file_say(f);
	u64 held_since;

	/* Unlock in any case: this may end a lock of another open file. */
	if (coop_fl(fl, type) == F_UNLCK)
		return lock_give_back(file, fl);
	if (err)
		return err;
	if (READ_ONCE(f->lost))
		return -EIO;
	/* It may take the place of a write lock, which ends. */
	if (coop_fl(fl, type) == F_RDLCK)
		lock_write_back(inode);
	err = lock_take(file, fl, wait);
	if (err)
		return err;
	/* As after an open: reads must see the last holder's writes. */
	held_since = coop_ticket(inode->i_sb);
	err = coop_revalidate(inode, true);
	if (err)
		lock_give_back(file, fl);
	else
		coop_content_catch_up(inode, held_since);
	return err;
}

/* ---- F_GETLK ------------------------------------------------------------ */

static void lock_tell(struct file_lock *fl, const struct coop_st_lock *l)
{
	coop_fl(fl, type) = l->type == COOP_ST_LOCK_WRITE  ? F_WRLCK
			    : l->type == COOP_ST_LOCK_READ ? F_RDLCK
							   : F_UNLCK;
	if (l->type == COOP_ST_LOCK_NONE)
		return;
	fl->fl_start = min_t(u64, l->start, OFFSET_MAX);
	fl->fl_end = min_t(u64, l->end, OFFSET_MAX);
	coop_fl(fl, pid) = 0; /* of another node: locks of this node are found in the notes */
}

static int lock_test(struct file *file, struct file_lock *fl)
{
	const unsigned char type = coop_fl(fl, type);
	const struct coop_file *f = file->private_data;
	struct inode *inode = file_inode(file);
	struct coop_inode *ci = coop_i(inode);
	struct coop_call *call;
	int err;

	posix_test_lock(file, fl);
	if (coop_fl(fl, type) != F_UNLCK || type == F_UNLCK)
		return 0;
	coop_fl(fl, type) = type;
	err = coop_file_say(file->private_data);
	if (err)
		return err;
	call = coop_call_alloc(coop_sb(inode->i_sb)->storage, COOP_ST_LOCK_TEST);
	if (!call)
		return -ENOMEM;
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = f->open_id;
	coop_lock_describe(coop_sb(inode->i_sb), fl, &call->arg.lock);
	err = coop_call_run(call);
	if (!err)
		lock_tell(fl, &call->res.lock);
	coop_call_put(call);
	return err;
}

/* ---- file operations ------------------------------------------------------------ */

int coop_lock(struct file *file, int cmd, struct file_lock *fl)
{
	const struct coop_mount *m = coop_sb(file_inode(file)->i_sb);
	const bool local = m->opt.local_lock & COOP_LOCAL_POSIX;

	if (IS_GETLK(cmd) && local) {
		posix_test_lock(file, fl);
		return 0;
	}
	if (IS_GETLK(cmd))
		return lock_test(file, fl);
	if (!IS_SETLK(cmd) && !IS_SETLKW(cmd))
		return -EINVAL;
	return local ? locks_lock_file_wait(file, fl) : lock_set(file, fl, IS_SETLKW(cmd));
}

int coop_flock(struct file *file, int cmd, struct file_lock *fl)
{
	const struct coop_mount *m = coop_sb(file_inode(file)->i_sb);

	if (!(coop_fl(fl, flags) & FL_FLOCK))
		return -ENOLCK;
	if (m->opt.local_lock & COOP_LOCAL_FLOCK)
		return locks_lock_file_wait(file, fl);
	return lock_set(file, fl, IS_SETLKW(cmd));
}

/* ---- pushes from storage ------------------------------------------------------------ */

void coop_locks_granted(struct coop_mount *m, u64 cookie)
{
	struct coop_lock_ask *ask;

	spin_lock(&m->locks.lock);
	list_for_each_entry(ask, &m->locks.asks, link) {
		if (ask->cookie != cookie)
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
