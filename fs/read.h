/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * read.h - a window: locked pages of one file that are being read.
 *
 * A window owns the lock of each of its folios, and a reference, until it has
 * decided about the folio: if it holds the bytes of the wanted version, it becomes
 * uptodate and is unlocked; if no source could fill it, it is unlocked as it is.
 */
#ifndef COOP_FS_READ_H
#define COOP_FS_READ_H

#include <linux/completion.h>
#include <linux/workqueue.h>

#include "fs/fs.h"

struct coop_window {
	struct coop_node_fetch fetch; /* pages[], and the fetch from peers */
	refcount_t refs;              /* one for each stage under way, one for the waiter */
	struct coop_mount *mount;
	struct inode *inode;         /* a reference */
	struct coop_file *file;      /* a reference: READs use its open id */
	struct coop_content content; /* the content that the pages must have */
	spinlock_t lock;             /* guards left, error, slowest */
	u64 left;                    /* undecided pages; the window holds their locks */
	int error;                   /* storage's first error */
	enum coop_source slowest;
	bool keep_locked; /* the waiter wants the folio locked */
	u64 begun_us;
	struct work_struct work; /* the storage stage */
	struct completion finished;
	struct coop_window *next; /* list of the windows that one readahead waits for */
};

static inline u64 coop_now_us(void)
{
	return ktime_to_us(ktime_get());
}

/*
 * The pages 'good' hold the content's bytes: marks them uptodate and unlocks them. If the version
 * has changed since, they stay in 'left'.
 */
void coop_window_accept(struct coop_window *w, u64 good, enum coop_source from);
void coop_window_fail(struct coop_window *w, u64 pages, int error);
struct coop_window *coop_window_get(struct coop_window *w);
/* The last put frees the window, which must have no page left. Any context that may sleep. */
void coop_window_put(struct coop_window *w);

/*
 * Asks storage for all pages in 'left'. The caller must call coop_storage_push(), so that the
 * windows of one readahead are sent together. Context: may sleep.
 */
void coop_window_from_storage(struct coop_window *w);

#endif /* COOP_FS_READ_H */
