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
 * its wait; if the grant came first, it keeps the lock. lock_ask.c sends the requests, and handles
 * those that a killed task or a deadline left.
 *
 * We count restarts of the daemon. A grant may come from the daemon before a restart, so it is
 * noted only if there was no restart since its request; else we ask again. lock_reclaim.c
 * asks the new daemon for the noted locks.
 */
#include <linux/pagemap.h>
#include <linux/sched/mm.h>

#include "fs/fs.h"
#include "fs/lock_ask.h"

/* How far a task got that takes a lock. */
struct taken {
	bool sent;   /* a LOCK */
	bool waited; /* a wait was queued: a flock(2) had released the older lock */
	bool given;  /* storage may hold the lock, or a part of it */
	bool older;  /* the owner had a lock in that range already */
};

/* ---- notes: the VFS's lists ---------------------------------------------------------------- */

static int note_with(struct inode *inode, struct file_lock *fl, unsigned int extra)
{
	const unsigned int flags = coop_fl(fl, flags);
	/* The session's work waits for 'noting', whose holder for 'order': do not wait here for
	 * memory that needs storage. */
	const unsigned int nofs = memalloc_nofs_save();
	int err;

	coop_fl(fl, flags) = (flags & ~(FL_SLEEP | FL_ACCESS)) | extra;
	err = locks_lock_inode_wait(inode, fl);
	coop_fl(fl, flags) = flags;
	memalloc_nofs_restore(nofs);
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

/* Has the owner a lock in that range? lost: the open files by which it was taken are lost. */
static bool is_noted(struct inode *inode, const struct file_lock *fl, bool lost)
{
	struct file_lock_context *ctx = locks_inode_context(inode);
	const struct file_lock *other;
	struct coop_file *f;
	bool found = false;

	if (!ctx)
		return false;
	spin_lock(&ctx->flc_lock);
	coop_for_each_lock(other,
			   coop_fl(fl, flags) & FL_FLOCK ? &ctx->flc_flock : &ctx->flc_posix) {
		if (coop_fl(other, owner) != coop_fl(fl, owner) || other->fl_start > fl->fl_end ||
		    fl->fl_start > other->fl_end)
			continue;
		found = true;
		f = coop_fl(other, file)->private_data;
		if (lost)
			WRITE_ONCE(f->lost, true);
	}
	spin_unlock(&ctx->flc_lock);
	return found;
}

/*
 * Notes a lock that storage granted after 'restarts'. 0; 1: it may be no more, because the daemon
 * was restarted or the owner unlocked meanwhile; -errno.
 */
static int note_in(struct coop_lock_ask *ask, struct file_lock *fl, u32 restarts, struct taken *t)
{
	struct coop_locks *l = &ask->mount->locks;
	int err;

	for (;;) {
		enum coop_crossed crossed;
		bool older, gives;

		down_read(&l->noting);
		mutex_lock(&l->order);
		crossed = coop_ask_crossed(ask);
		older = is_noted(ask->inode, fl, false);
		/* A daemon that restarted before it granted the lock has it too. If no older one
		 * is there, what is left of it must not wait with us. */
		gives = !older && (l->restarts != restarts || crossed == COOP_CROSSED_BY_UNLOCK);
		if (l->restarts != restarts || crossed) {
			t->given = crossed && !gives;
			if (gives)
				coop_ask_unlock_begins(ask);
			err = 1;
		} else {
			t->given = true;
			t->older = older;
			err = note_with(ask->inode, fl, 0);
			if (!err)
				coop_locks_keep(ask->inode);
		}
		mutex_unlock(&l->order);
		up_read(&l->noting);
		if (err == 1 && gives) {
			coop_ask_unlock(ask, 0);
			coop_ask_unlock_ends(ask);
		}
		if (err != -EAGAIN)
			return err;
		/* Storage got the lock back from an owner on this node; wait until its note is
		 * gone, and keep nobody else waiting.
		 */
		coop_ask_turn_ends(ask);
		err = note_with(ask->inode, fl, FL_ACCESS | FL_SLEEP);
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
static int ask_lock(struct coop_lock_ask *ask, struct file_lock *fl, struct taken *t)
{
	const bool wait = ask->cookie;
	u32 result;
	int err, ended;

	for (;;) {
		WRITE_ONCE(ask->again, false); /* before the call: a later reconnect counts */
		err = coop_ask_in_turn(ask);
		t->given |= err && ask->queued;
		if (err || READ_ONCE(ask->granted))
			return err;
		t->sent = true;
		err = coop_ask_call(ask, COOP_ST_LOCK, wait ? COOP_ST_L_WAIT : 0, ask->cookie,
				    &result);
		t->given |= err == -ENOMEM && ask->queued;
		if (err)
			return err;
		if (result == COOP_ST_LOCK_HELD)
			return 0;
		if (ask->what.kind == COOP_ST_LOCK_FLOCK) {
			/* A conversion first releases the old lock. */
			mutex_lock(&ask->mount->locks.order);
			note_out(ask->inode, fl, 0);
			mutex_unlock(&ask->mount->locks.order);
			t->given = false;
		}
		if (result == COOP_ST_LOCK_CONFLICT)
			return -EAGAIN;
		if (result != COOP_ST_LOCK_QUEUED || !wait)
			return -EIO; /* not a valid reply */
		t->waited = true;
		coop_ask_queued(ask);
		err = wait_event_interruptible(ask->wake, ask_woken(ask));
		if (READ_ONCE(ask->granted))
			return 0;
		if (!err)
			continue;
		ended = coop_ask_call(ask, COOP_ST_UNLOCK, 0, ask->cookie, &result);
		if (!ended && !result)
			return 0; /* granted before the wait could end */
		return ended ?: err;
	}
}

/*
 * Gives up a lock that storage may have granted, or may still grant. Storage gives up the owner's
 * older locks of the range too, and the program must not go on as if it had them. One that is
 * killed does not, and others that share the open file then may; what was written under such a lock
 * still goes to storage. A flock(2) that fails has no older lock left; one that waited had none,
 * and what is there is of others.
 */
static void ask_give_up(struct coop_lock_ask *ask, struct file_lock *fl, const struct taken *t)
{
	const bool killed = fatal_signal_pending(current);
	const bool marks = killed || t->waited || !(coop_fl(fl, flags) & FL_FLOCK);
	struct coop_locks *l = &ask->mount->locks;
	bool left, lost;

	mutex_lock(&l->order);
	left = coop_ask_abandon(ask);
	lost = is_noted(ask->inode, fl, marks) && marks;
	note_out(ask->inode, fl, 0);
	mutex_unlock(&l->order);
	if (lost && !killed)
		coop_content_lost(coop_i(ask->inode));
	if (lost)
		pr_warn_ratelimited("coopfs: storage: a lock of inode %lu was lost with a larger "
				    "one: its open file fails with EIO and must be opened again\n",
				    ask->inode->i_ino);
	if (!left)
		coop_ask_unlock(ask, ask->cookie);
}

/* 0; 1: ask again; -errno. */
static int ask_take(struct coop_lock_ask *ask, struct file_lock *fl, struct taken *t)
{
	struct coop_locks *l = &ask->mount->locks;
	u32 restarts;
	int err;

	down_read(&l->noting);
	restarts = l->restarts;
	up_read(&l->noting);
	err = ask_lock(ask, fl, t);
	if (!err)
		err = note_in(ask, fl, restarts, t);
	else
		t->given |= t->sent && (READ_ONCE(ask->left) || err == -ETIMEDOUT || err == -EIO);
	return err;
}

static int lock_take(struct file *file, struct file_lock *fl, bool wait, struct taken *t)
{
	struct coop_lock_ask *ask = coop_ask_begin(file, fl, true);
	int err;

	if (!ask)
		return -ENOLCK;
	/* If the lock is given up, the CLOSE is sent after the reply to that unlock. */
	ask->said = coop_file_get(file->private_data);
	for (;;) {
		if (wait)
			coop_ask_cookie(ask);
		err = ask_take(ask, fl, t);
		if (err <= 0)
			break;
		coop_ask_turn_ends(ask);
	}
	if (err && t->given)
		ask_give_up(ask, fl, t);
	coop_ask_turn_ends(ask);
	coop_ask_end(ask);
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
	ask = coop_ask_begin(file, fl, false);
	if (!ask)
		return -ENOLCK;
	/* Any open file can carry the owner's unlock. Its CLOSE is sent after the reply. */
	ask->said = said_of(file->private_data);
	if (ask->said)
		ask->open_id = ask->said->open_id;
	/* In one step: a lock is noted before both, and goes, or not until storage has answered. */
	mutex_lock(&ask->mount->locks.order);
	err = note_out(inode, fl, FL_EXISTS);
	if (!err)
		coop_ask_unlock_begins(ask);
	mutex_unlock(&ask->mount->locks.order);
	if (!err) {
		err = coop_ask_call(ask, COOP_ST_UNLOCK, 0, 0, &result);
		coop_ask_unlock_ends(ask);
	}
	coop_ask_end(ask);
	/* No lock was held; or the task was killed, and the unlock is under way. */
	return err == -ENOENT || err == -ERESTARTSYS ? 0 : err;
}

static int lock_set(struct file *file, struct file_lock *fl, bool wait)
{
	struct coop_file *f = file->private_data;
	struct inode *inode = file_inode(file);
	int err = coop_file_say(f);
	struct taken t = {0};
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
	err = lock_take(file, fl, wait, &t);
	if (err)
		return err;
	/* As after an open: reads must see the last holder's writes. */
	held_since = coop_ticket(inode->i_sb);
	err = coop_revalidate(inode, true);
	if (!err) {
		coop_content_catch_up(inode, held_since);
		return 0;
	}
	/* An upgrade that fails leaves the lock that the program had, and more. */
	if (!t.older)
		lock_give_back(file, fl);
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
