/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * locks.h - locks among nodes: lock.c takes them, lock_ask.c asks storage, lock_reclaim.c takes
 * them back.
 */
#ifndef COOP_FS_LOCKS_H
#define COOP_FS_LOCKS_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/siphash.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "rpc/storage/message.h"

struct coop_file;
struct coop_mount;

struct coop_locks {
	siphash_key_t owner_key; /* never changes: derives owner numbers from addresses */
	struct rw_semaphore noting;
	u32 restarts; /* of the daemon; under 'noting' */
	/*
	 * Within 'noting': an unlock begins and removes its notes in one step, and a lock that no
	 * unlock crossed is noted in one.
	 */
	struct mutex order;
	spinlock_t lock;       /* guards the following */
	struct list_head asks; /* asks for a lock */
	u64 last_cookie;
	struct list_head unlocking; /* asks with an UNLOCK under way or to come */
	wait_queue_head_t unlocked; /* one of these, or a turn, has ended */
	atomic_t reclaims;          /* calls under way of a reclaim */
	bool overtaken;             /* the daemon was restarted again during the reclaim */
	/* lock_keep.c */
	struct list_head kept; /* coop_inode.lock_link: this node may hold locks; under 'lock' */
	struct delayed_work keep;
	u32 round; /* of the work */
};

int coop_lock(struct file *file, int cmd, struct file_lock *fl);
int coop_flock(struct file *file, int cmd, struct file_lock *fl);
void coop_locks_init(struct coop_locks *l);
/* The lock as storage knows it. */
void coop_lock_describe(const struct coop_mount *m, const struct file_lock *fl,
			struct coop_st_lock *l);
/* A push: the wait with that cookie has its lock. */
void coop_locks_granted(struct coop_mount *m, u64 cookie);
/* New connection: a push may have been lost with the last one. */
void coop_locks_reconnected(struct coop_mount *m);

/*
 * The daemon forgot the session. From begin() to the last put() no other request is sent. For each
 * file that was opened again, reclaim() asks for its locks. error: of the call that the put() ends.
 */
void coop_locks_reclaim_begin(struct coop_mount *m);
void coop_locks_reclaim_get(struct coop_mount *m);
void coop_locks_reclaim_put(struct coop_mount *m, int error);
void coop_locks_reclaim(struct coop_file *f);
/* The file cannot be opened again: all locks that were taken through it are lost. */
void coop_locks_lost(struct coop_file *f);

void coop_locks_keep_init(struct coop_locks *l);
void coop_locks_keep_stop(struct coop_mount *m);
/* The inode has a note. */
void coop_locks_keep(struct inode *inode);
void coop_locks_evict(struct inode *inode);
/* A wait is queued, or there is a note: the node must not fall silent. */
void coop_locks_speak(struct coop_mount *m);
/*
 * As coop_file_not_lost(), for a read of cached pages: asks storage first if it may have given this
 * node's locks of the inode to others. May sleep, as a call on this mount may.
 */
int coop_file_readable(const struct file *file);
/* Would coop_file_readable() have to ask? Any context. */
bool coop_locks_doubted(const struct file *file);

#endif /* COOP_FS_LOCKS_H */
