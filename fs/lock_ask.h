/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * lock_ask.h - one task that asks storage for a lock (lock.c), or gives one back.
 */
#ifndef COOP_FS_LOCK_ASK_H
#define COOP_FS_LOCK_ASK_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/refcount.h>
#include <linux/types.h>
#include <linux/wait.h>

#include "fs/locks.h"

/* What the owner has asked of storage since a LOCK's turn, which may end or change its lock. */
enum coop_crossed { COOP_NOT_CROSSED, COOP_CROSSED_BY_LOCK, COOP_CROSSED_BY_UNLOCK };

struct coop_lock_ask {
	refcount_t refs;            /* the task; the call under way */
	struct list_head link;      /* coop_locks.asks, if it takes a lock */
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
	bool queued;   /* only its task looks: storage may have the wait of this cookie */
	bool again;    /* new connection: a grant may be lost, so ask again */
	bool answered; /* the last call has its reply */
	bool left;     /* the task did not wait for that reply, or has given the lock up */
	bool has_turn; /* of the owner's LOCKs of that range: until its reply was seen to */
	enum coop_crossed crossed;
	u32 unlocks; /* UNLOCKs under way, or to come: the owner's next LOCK waits for them */
};

/* NULL: no memory. takes: it asks for a lock. */
struct coop_lock_ask *coop_ask_begin(struct file *file, const struct file_lock *fl, bool takes);
/* The task's part: what it left goes on. */
void coop_ask_end(struct coop_lock_ask *ask);
/* The next LOCK is a wait, and not the one before. */
void coop_ask_cookie(struct coop_lock_ask *ask);

/*
 * Waits for storage. 0 and the reply's flags; -ERESTARTSYS: killed, and the ask is left. It is left
 * too after the deadline of a call that stays beyond it.
 */
int coop_ask_call(struct coop_lock_ask *ask, u16 op, u32 flags, u64 cookie, u32 *result);
/* Sends an UNLOCK whose reply nobody waits for. cookie: ends that wait; 0: unlocks the range. */
void coop_ask_unlock(struct coop_lock_ask *ask, u64 cookie);
/*
 * The task gives its lock up, and removes its owner's notes; it holds coop_locks.order for both.
 * True: the call that it left sends the UNLOCK; false: the task does.
 */
bool coop_ask_abandon(struct coop_lock_ask *ask);

/* Between the two, the owner's next LOCK of the range waits; one that was sent is crossed. */
void coop_ask_unlock_begins(struct coop_lock_ask *ask);
void coop_ask_unlock_ends(struct coop_lock_ask *ask);
/* The caller holds coop_locks.order, and notes the lock before it lets that go. */
enum coop_crossed coop_ask_crossed(const struct coop_lock_ask *ask);
/*
 * Call it before a LOCK: an UNLOCK that storage runs after it would end it, and after the reply to
 * another one nobody could tell whose lock storage has. It waits as long as a call may take now;
 * umount -f and a remount change that during the wait. 0, and the ask has its turn, or -errno.
 */
int coop_ask_in_turn(struct coop_lock_ask *ask);
void coop_ask_turn_ends(struct coop_lock_ask *ask);
/* It ends because storage has queued the wait. */
void coop_ask_queued(struct coop_lock_ask *ask);

#endif /* COOP_FS_LOCK_ASK_H */
