// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * lock_reclaim.c - takes locks back from a daemon that was restarted, or has given them to others.
 *
 * Noted locks (lock.c) are reclaimed after their open file (reopen.c) and before any other
 * request is sent. RECLAIMED then tells the daemon that other clients need not wait any longer.
 *
 * If storage refuses a lock, another node may have held it: the open file is lost, operations
 * on it fail with EIO, and so does what was written here before and is not at storage
 * (coop_content_lost()).
 */
#include <linux/slab.h>

#include "fs/fs.h"
#include "fs/lock_ask.h"

static void reclaim_ended(struct coop_call *call)
{
	struct coop_mount *m = call->owner;

	coop_storage_gate(m->storage, false);
	coop_calls_end(m);
}

void coop_locks_reclaim_begin(struct coop_mount *m)
{
	struct coop_locks *l = &m->locks;
	struct coop_lock_ask *ask;

	down_write(&l->noting);
	l->restarts++;
	up_write(&l->noting);
	/* What the old daemon granted is asked for again (coop_locks_reconnected()). */
	spin_lock(&l->lock);
	list_for_each_entry(ask, &l->asks, link)
		WRITE_ONCE(ask->granted, false); /* its task looks without the lock */
	spin_unlock(&l->lock);
	WRITE_ONCE(l->overtaken, false);
	atomic_set(&l->reclaims, 1);
	coop_storage_gate(m->storage, true);
}

void coop_locks_reclaim_get(struct coop_mount *m)
{
	atomic_inc(&m->locks.reclaims);
}

void coop_locks_reclaim_put(struct coop_mount *m, int error)
{
	struct coop_locks *l = &m->locks;
	struct coop_call *call;

	if (error == -ECONNRESET) /* the daemon restarted again: the reclaim starts over */
		WRITE_ONCE(l->overtaken, true);
	if (!atomic_dec_and_test(&l->reclaims))
		return;
	call = READ_ONCE(l->overtaken) ? NULL : coop_call_alloc(m->storage, COOP_ST_RECLAIMED);
	if (!call) {
		/* Without memory for RECLAIMED other clients wait for the grace time. */
		coop_storage_gate(m->storage, false);
		return;
	}
	call->again = true;
	call->owner = m;
	call->done = reclaim_ended;
	coop_calls_begin(m);
	coop_call_submit(call);
	coop_call_put(call);
}

/* Call it before the gate opens: requests that wait there must see it. */
static void file_lost(struct coop_file *f)
{
	WRITE_ONCE(f->lost, true);
	coop_content_lost(coop_i(f->inode));
	pr_warn_ratelimited("coopfs: storage: a lock of inode %lu was lost while the daemon did "
			    "not hear this node: its open file fails with EIO and must be opened "
			    "again\n",
			    f->inode->i_ino);
}

static void reclaimed(struct coop_call *call)
{
	struct coop_file *f = call->owner;
	struct inode *inode = f->inode;
	struct coop_mount *m = coop_sb(inode->i_sb);

	if (call->error != -ECONNRESET && (call->error || call->res.flags != COOP_ST_LOCK_HELD))
		file_lost(f);
	coop_locks_reclaim_put(m, call->error);
	coop_file_put(f);
	coop_iput_later(inode);
	coop_calls_end(m);
}

static void reclaim_one(struct coop_mount *m, struct coop_file *f, const struct coop_st_lock *what)
{
	struct coop_call *call = coop_call_alloc(m->storage, COOP_ST_LOCK);

	if (!call) {
		file_lost(f);
		return;
	}
	call->arg.fh.p = coop_i(f->inode)->fh;
	call->arg.fh.len = coop_i(f->inode)->fh_len;
	call->arg.open_id = f->open_id;
	call->arg.lock = *what;
	call->arg.flags = COOP_ST_L_RECLAIM;
	call->again = true;
	coop_locks_reclaim_get(m);
	coop_file_get(f);
	ihold(f->inode);
	coop_calls_begin(m);
	call->owner = f;
	call->done = reclaimed;
	coop_call_submit(call);
	coop_call_put(call);
}

/* Describes the first 'room' locks that were taken through the open file. Returns their number. */
static u32 notes_of(struct coop_file *f, struct file_lock_context *ctx, struct coop_st_lock *to,
		    u32 room)
{
	struct coop_mount *m = coop_sb(f->inode->i_sb);
	struct list_head *const lists[] = {&ctx->flc_flock, &ctx->flc_posix};
	const u32 local[] = {COOP_LOCAL_FLOCK, COOP_LOCAL_POSIX};
	const struct file_lock *fl;
	u32 n = 0, i;

	spin_lock(&ctx->flc_lock);
	for (i = 0; i < ARRAY_SIZE(lists); i++) {
		if (m->opt.local_lock & local[i])
			continue;
		coop_for_each_lock(fl, lists[i]) {
			if (coop_fl(fl, file)->private_data != f)
				continue;
			if (n < room)
				coop_lock_describe(m, fl, &to[n]);
			n++;
		}
	}
	spin_unlock(&ctx->flc_lock);
	return n;
}

void coop_locks_lost(struct coop_file *f)
{
	struct file_lock_context *ctx = locks_inode_context(f->inode);

	if (ctx && notes_of(f, ctx, NULL, 0))
		file_lost(f);
}

void coop_locks_reclaim(struct coop_file *f)
{
	struct file_lock_context *ctx = locks_inode_context(f->inode);
	struct coop_st_lock *notes = NULL;
	u32 room = 0, n, i;

	if (!ctx)
		return;
	/* No lock is added now, but a partial unlock may split one in two. */
	while ((n = notes_of(f, ctx, notes, room)) > room) {
		kvfree(notes);
		room = n + 4;
		notes = kvmalloc_array(room, sizeof(*notes), GFP_NOFS);
		if (!notes) {
			file_lost(f);
			return;
		}
	}
	for (i = 0; i < n; i++)
		reclaim_one(coop_sb(f->inode->i_sb), f, &notes[i]);
	kvfree(notes);
}
