/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * read.h - a window: locked pages of one file that are being read.
 *
 * A window owns the lock of each of its folios, and a reference, until it has
 * decided about the folio: if it holds the bytes of the wanted version, it becomes
 * uptodate and is unlocked; if no source could fill it, it is unlocked as it is.
 *
 * The inode lists its windows, so that a peer's request can wait for their pages
 * (rpc/fetch/PROTOCOL.md, Waiting). A window has the level of its load, which never
 * changes; once it asks storage it waits for no peer, whatever its level is. Where storage names
 * nodes in place of bytes, it may wait for these again, but only for loads that are at storage.
 */
#ifndef COOP_FS_READ_H
#define COOP_FS_READ_H

#include <linux/completion.h>
#include <linux/workqueue.h>

#include "fs/fs.h"
#include "rpc/storage/forest.h"

/* Pages of a unit: pages of one unit are of one tree. A large page may have several units. */
#define COOP_UNIT_PAGES max_t(u32, COOP_FOREST_UNIT >> PAGE_SHIFT, 1)

struct coop_window {
	struct coop_node_fetch fetch; /* pages[], and the fetch from peers */
	refcount_t refs;              /* one for each stage under way, one for the waiter */
	struct coop_mount *mount;
	struct inode *inode;         /* a reference */
	struct coop_file *file;      /* a reference: READs use its open id */
	struct coop_content content; /* the content that the pages must have */
	struct list_head link;       /* coop_inode.windows, under coop_inode.lock; or empty */
	u32 level;                   /* of the load; never changes once it is listed */
	spinlock_t lock; /* guards the following up to 'slowest'; inside coop_inode.lock */
	u64 left;        /* undecided pages; the window holds their locks */
	u64 coming;      /* pages to show to peers: those in 'left', or locked still */
	u64 at_storage;  /* pages that storage was asked for, and has not redirected */
	int error;       /* storage's first error */
	enum coop_source slowest;
	bool keep_locked; /* the waiter wants the folio locked */
	bool for_peer;    /* counted in coop_mount.relays */
	bool member;      /* it has a role: storage may name nodes in place of bytes */
	u64 begun_us;
	struct work_struct work; /* the storage stage */
	struct completion finished;
	struct coop_window *next; /* list of the windows of one readahead */
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
/*
 * Which of the file's pages [index, index + count), count <= 64, are being read? As bits from
 * 'index': returns those for which a load of this level may wait, and sets *reading to all. Read
 * the folios after this: a page that is not named any more has been unlocked.
 */
u64 coop_windows_coming(struct coop_inode *ci, u64 index, u32 count, u32 level, u64 *reading);
void coop_window_fail(struct coop_window *w, u64 pages, int error);

/*
 * The steps to a window, in this order: alloc; index, pages and 'left' (locked folios, a reference
 * each); join, which takes this node's role in the tree of that page, true if it has one; show to
 * serves; start. Start hands the first reference to the stage that it starts; coop_storage_push()
 * follows.
 */
struct coop_window *coop_window_alloc(struct inode *inode, struct coop_file *file, gfp_t gfp);
bool coop_window_join(struct coop_window *w, u64 index);
void coop_window_show(struct coop_window *w);
void coop_window_start(struct coop_window *w);
struct coop_window *coop_window_get(struct coop_window *w);
/* The last put frees the window, which must have no page left. Any context that may sleep. */
void coop_window_put(struct coop_window *w);

/*
 * Asks storage for all pages in 'left'. The caller must call coop_storage_push(), so that the
 * windows of one readahead are sent together. Context: may sleep.
 */
void coop_window_from_storage(struct coop_window *w);

/* ---- relay.c: loads for peers ---- */
struct coop_relay;

/* Which pages a peer lacks, and its terms. */
struct coop_relay_ask {
	u64 version;
	u64 index; /* a multiple of COOP_MAX_PAGES */
	u64 pages; /* bit i: page index + i */
	u32 level; /* of the peer's load; ours gets a smaller one */
	u32 budget_us;
};
/* Starts to load absent pages in the background. NULL: it cannot. Waits only for memory. */
struct coop_relay *coop_relay_start(struct inode *inode, const struct coop_relay_ask *ask);
/* Every page that can be loaded is in a window, or was. coop_shards_settled() tells of it. */
bool coop_relay_started(const struct coop_relay *relay);
void coop_relay_put(struct coop_relay *relay);

#endif /* COOP_FS_READ_H */
