/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * read.h - a window: locked pages of one file that are on their way in.
 *
 * A window owns the locks of its folios, and a reference to each, until it has
 * decided about them: a folio that holds the wanted version's bytes becomes
 * uptodate and is unlocked; one that nothing could fill is unlocked as it is.
 */
#ifndef COOP_FS_READ_H
#define COOP_FS_READ_H

#include <linux/completion.h>
#include <linux/workqueue.h>

#include "fs/fs.h"

struct coop_window {
	struct coop_node_fetch fetch; /* pages[], and what peers are asked */
	refcount_t refs;              /* one a stage that is under way, one for who waits */
	struct coop_mount *mount;
	struct inode *inode;         /* a reference */
	struct coop_file *file;      /* a reference: its open id reads */
	struct coop_content content; /* what the pages shall be of */
	spinlock_t lock;             /* guards left, error, slowest */
	u64 left;                    /* pages not decided about; they are locked and ours */
	int error;                   /* the first of storage */
	enum coop_source slowest;
	bool keep_locked; /* the waiter wants the folio locked */
	u64 begun_us;
	struct work_struct work; /* the storage stage */
	struct completion finished;
	struct coop_window *next; /* of those that one readahead waits for */
};

static inline u64 coop_now_us(void)
{
	return ktime_to_us(ktime_get());
}

/*
 * The pages 'good' hold content's bytes: uptodate and unlocked, unless the version moved on
 * meanwhile; then they stay in 'left'.
 */
void coop_window_accept(struct coop_window *w, u64 good, enum coop_source from);
void coop_window_fail(struct coop_window *w, u64 pages, int error);
struct coop_window *coop_window_get(struct coop_window *w);
/* The last one unlocks what is left and frees the window. Any context that may sleep. */
void coop_window_put(struct coop_window *w);

/*
 * Asks storage for everything that is left. The caller owes coop_storage_push(), so that the
 * windows of one readahead leave together. Context: may sleep.
 */
void coop_window_from_storage(struct coop_window *w);

#endif /* COOP_FS_READ_H */
