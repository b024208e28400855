// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * lock_keep.c - what this node owes storage, and itself, while it holds locks.
 *
 * Storage gives the locks of a node to others when it has heard nothing of it for
 * COOP_ST_SILENCE_MS. So a node that holds some, or waits for one that it may get at any time, says
 * something every few seconds. When it has not been answered for COOP_ST_LEASE_TRUST_MS it stops
 * relying on its locks: a read of such a file, or a fault of a mapping, asks storage first, and
 * pages that are mapped are unmapped, so that there are faults. The answer of a daemon that has
 * given the locks away comes after lock_reclaim.c has marked the open files that lost one, and
 * then their faults fail. Writes go to storage, which refuses them.
 *
 * An inode is on the list from its first note on, until there is none when the work looks.
 *
 * Lock order: coop_locks.lock, then flc_lock or i_lock.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "fs/fs.h"

#define KEEP_TIME HZ

/* Does storage hold a lock of the inode for this node? */
static bool keep_is_held(struct inode *inode)
{
	const struct coop_mount *m = coop_sb(inode->i_sb);
	struct file_lock_context *ctx = locks_inode_context(inode);
	bool held;

	if (!ctx)
		return false;
	spin_lock(&ctx->flc_lock);
	held = (!(m->opt.local_lock & COOP_LOCAL_FLOCK) && !list_empty(&ctx->flc_flock)) ||
	       (!(m->opt.local_lock & COOP_LOCAL_POSIX) && !list_empty(&ctx->flc_posix));
	spin_unlock(&ctx->flc_lock);
	return held;
}

void coop_locks_keep(struct inode *inode)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	struct coop_locks *l = &m->locks;

	spin_lock(&l->lock);
	if (list_empty(&ci->lock_link))
		list_add_tail(&ci->lock_link, &l->kept);
	WRITE_ONCE(ci->locked, true);
	spin_unlock(&l->lock);
	coop_locks_speak(m);
}

void coop_locks_speak(struct coop_mount *m)
{
	queue_delayed_work(m->wq, &m->locks.keep, KEEP_TIME);
}

/* Last of all the list: coop_locks_evict() looks there without the lock, and then nobody has it. */
static void unlist_locked(struct coop_inode *ci)
{
	WRITE_ONCE(ci->locked, false);
	list_del_init_careful(&ci->lock_link);
}

void coop_locks_evict(struct inode *inode)
{
	struct coop_locks *l = &coop_sb(inode->i_sb)->locks;

	if (list_empty_careful(&coop_i(inode)->lock_link))
		return;
	spin_lock(&l->lock);
	unlist_locked(coop_i(inode));
	spin_unlock(&l->lock);
}

/* The next inode that this round has not seen, with a reference. NULL: there is none. */
static struct inode *keep_next(struct coop_locks *l, u32 round)
{
	struct coop_inode *ci;
	struct inode *found = NULL;

	spin_lock(&l->lock);
	while (!found && !list_empty(&l->kept)) {
		ci = list_first_entry(&l->kept, struct coop_inode, lock_link);
		if (ci->lock_round == round)
			break;
		if (!keep_is_held(&ci->vfs)) {
			unlist_locked(ci);
			continue;
		}
		ci->lock_round = round;
		list_move_tail(&ci->lock_link, &l->kept);
		found = igrab(&ci->vfs);
	}
	spin_unlock(&l->lock);
	return found;
}

static void keep_work(struct work_struct *work)
{
	struct coop_locks *l = container_of(to_delayed_work(work), struct coop_locks, keep);
	struct coop_mount *m = container_of(l, struct coop_mount, locks);
	const unsigned int nofs = memalloc_nofs_save();
	const bool doubt = !coop_storage_keep(m->storage);
	const u32 round = ++l->round;
	struct inode *inode;
	bool more;

	while ((inode = keep_next(l, round))) {
		/* Each time: a fault that began before the doubt, or the loss, may end later. */
		if ((doubt || test_bit(COOP_I_LOST, &coop_i(inode)->flags)) &&
		    mapping_mapped(inode->i_mapping))
			unmap_mapping_range(inode->i_mapping, 0, 0, 0);
		coop_iput_later(inode);
		cond_resched();
	}
	spin_lock(&l->lock);
	more = !list_empty(&l->kept) || !list_empty(&l->asks);
	spin_unlock(&l->lock);
	if (more)
		coop_locks_speak(m);
	memalloc_nofs_restore(nofs);
}

void coop_locks_keep_init(struct coop_locks *l)
{
	INIT_LIST_HEAD(&l->kept);
	INIT_DELAYED_WORK(&l->keep, keep_work);
}

void coop_locks_keep_stop(struct coop_mount *m)
{
	cancel_delayed_work_sync(&m->locks.keep);
}

/* 0 when storage has vouched for the locks, or there are none. */
static int keep_vouch(struct inode *inode)
{
	struct coop_storage *s = coop_sb(inode->i_sb)->storage;

	while (!coop_storage_trusted(s) && keep_is_held(inode)) {
		struct coop_call *call = coop_call_alloc(s, COOP_ST_PING);
		int err;

		if (!call)
			return -ENOMEM;
		err = coop_call_run(call);
		coop_call_put(call);
		if (err)
			return err;
	}
	return 0;
}

int coop_file_readable(const struct file *file)
{
	int err = coop_file_not_lost(file);

	if (err || !READ_ONCE(coop_i(file_inode(file))->locked))
		return err;
	err = keep_vouch(file_inode(file));
	return err ?: coop_file_not_lost(file);
}

bool coop_locks_doubted(const struct file *file)
{
	const struct inode *inode = file_inode(file);

	return READ_ONCE(coop_i(inode)->locked) &&
	       !coop_storage_trusted(coop_sb(inode->i_sb)->storage);
}
