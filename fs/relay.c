// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * relay.c - loads pages because a peer waits for them.
 *
 * This node is the peer's parent in a file's forest, has the file open at that version, and lacks
 * the pages. A work adds exactly these to the page cache and starts a window over them, as
 * readahead would: the window reads through an open file of this node, with a level below that of
 * the peer's load, so that no circle of waits can form. It never waits for a lock of the file that
 * a truncation or a settling may hold: the peer then gets the pages elsewhere.
 *
 * The serve that asked holds the relay until its work has started the window; from then on it
 * finds the pages there. The work holds the inode and is counted in coop_mount.reads, so umount
 * waits for it, and the node exists while it runs.
 */
#include <linux/delay.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "fs/read.h"
#include "fs/trace.h"

/* The relay leaves an eighth of the peer's time: to send, and to ask elsewhere. */
#define RELAY_KEEPS 8
/* How often, and after how many us, to look for a readahead that is about to show its windows. */
#define LOOKS   10
#define LOOK_US 500

struct coop_relay {
	struct work_struct work;
	refcount_t refs;     /* the work, the serve */
	bool started;        /* the window is shown, or there is none */
	bool counted;        /* in coop_mount.relays; a window takes that over */
	struct inode *inode; /* the work's reference */
	struct coop_relay_ask ask;
	u64 until_us;
};

bool coop_relay_started(const struct coop_relay *relay)
{
	/* Pairs with the release: a serve that sees it sees the window as well. */
	return smp_load_acquire(&relay->started);
}

void coop_relay_put(struct coop_relay *relay)
{
	if (refcount_dec_and_test(&relay->refs))
		kfree(relay);
}

/* Adds a locked folio; the window's reference is the caller's. NULL: not absent, or no memory. */
static struct folio *add_folio(struct address_space *mapping, u64 index)
{
	const gfp_t gfp = readahead_gfp_mask(mapping);
	struct folio *folio = filemap_alloc_folio(gfp, 0);

	if (!folio)
		return NULL;
	if (!filemap_add_folio(mapping, folio, index, gfp))
		return folio;
	folio_put(folio);
	return NULL;
}

static void add_folios(struct coop_window *w, const struct coop_relay_ask *ask)
{
	struct address_space *mapping = w->inode->i_mapping;
	u64 left = ask->pages, end;

	/* As readahead does: no task drops pages of the file meanwhile. */
	if (!filemap_invalidate_trylock_shared(mapping))
		return;
	/* A settling may have ended just before. */
	coop_content_get(coop_i(w->inode), &w->content);
	end = DIV_ROUND_UP_ULL(w->content.size, PAGE_SIZE);
	if (w->content.version != ask->version)
		left = 0;
	for (; left; left &= left - 1) {
		const u32 i = __ffs64(left);
		struct folio *folio;

		if (ask->index + i >= end)
			break;
		folio = add_folio(mapping, ask->index + i);
		if (!folio)
			continue;
		w->fetch.pages[i] = folio_page(folio, 0);
		w->fetch.n_pages = i + 1;
		w->left |= BIT_ULL(i);
	}
	filemap_invalidate_unlock_shared(mapping);
}

/* The terms of the load: those of this node's role, unless those of the peer are stricter. */
static void agree(struct coop_window *w, const struct coop_relay *relay, u64 now)
{
	struct coop_node_fetch *f = &w->fetch;

	coop_window_join(w, f->index + __ffs64(w->left));
	w->level = min(w->level, relay->ask.level - 1);
	f->level = w->level;
	f->relay = true;
	/* The peer chose its budget: it must not lock our pages for longer than our own loads do.
	 */
	f->budget_us = min_t(u64, relay->until_us - now,
			     (u64)w->mount->opt.wait_timeout_ms * USEC_PER_MSEC);
}

/* Returns the pages that it loads. */
static u64 load(struct coop_relay *relay, struct coop_file *file)
{
	struct inode *inode = relay->inode;
	struct coop_mount *m = coop_sb(inode->i_sb);
	const u64 now = coop_now_us();
	struct coop_window *w;
	u64 loads = 0;

	if (now >= relay->until_us)
		return 0;
	w = coop_window_alloc(inode, file, GFP_NOFS | __GFP_NORETRY | __GFP_NOWARN);
	if (!w)
		return 0;
	w->fetch.index = relay->ask.index;
	add_folios(w, &relay->ask);
	loads = w->left;
	if (!loads) {
		coop_window_put(w);
		return 0;
	}
	w->for_peer = relay->counted;
	relay->counted = false;
	coop_count(&m->stats, COOP_C_RELAYED_PAGES, hweight64(loads));
	agree(w, relay, now);
	coop_window_show(w);
	coop_window_start(w);
	coop_storage_push(m->storage);
	return loads;
}

/* Is one of the pages locked by a readahead that has not shown its windows yet? */
static bool about_to_show(const struct coop_relay *relay)
{
	struct inode *inode = relay->inode;
	u64 left = relay->ask.pages, reading;
	bool any = false;

	(void)coop_windows_coming(coop_i(inode), relay->ask.index, COOP_MAX_PAGES, 0, &reading);
	for (left &= ~reading; left && !any; left &= left - 1) {
		struct folio *folio =
			coop_filemap_peek(inode->i_mapping, relay->ask.index + __ffs64(left));

		if (!folio)
			continue;
		any = folio_test_locked(folio) && !folio_test_uptodate(folio);
		folio_put(folio);
	}
	return any;
}

static void relay_work(struct work_struct *work)
{
	struct coop_relay *relay = container_of(work, struct coop_relay, work);
	struct inode *inode = relay->inode;
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_file *file = coop_file_find_reader(inode);
	const unsigned int nofs = memalloc_nofs_save();
	u64 loads = 0;
	u32 looks;

	if (file) {
		loads = load(relay, file);
		coop_file_put(file);
	}
	trace_coopfs_relay(inode, &relay->ask, loads);
	for (looks = 0; looks < LOOKS && about_to_show(relay); looks++)
		usleep_range(LOOK_US, 2 * LOOK_US);
	if (relay->counted)
		atomic_dec(&m->relays);
	/* After the window is shown: see coop_relay_started(). */
	smp_store_release(&relay->started, true);
	coop_shards_settled(m->shards);
	coop_relay_put(relay);
	coop_iput_later(inode);
	memalloc_nofs_restore(nofs);
	coop_reads_end(m);
}

/*
 * Counts a relay, unless there are too many or the mount ends. Each is of a request that is served,
 * but its load may outlast the serve. As many as serving queue pairs (ib_num_rrpc) may be under
 * way.
 */
static bool count_in(struct coop_mount *m)
{
	if (atomic_inc_return(&m->relays) > m->opt.node.num_rrpc) {
		atomic_dec(&m->relays);
		return false;
	}
	atomic_inc(&m->reads);
	/* Pairs with the barrier in quiesce(): it waits for us, or we see that the mount ends. */
	smp_mb__after_atomic();
	if (!READ_ONCE(m->ending))
		return true;
	atomic_dec(&m->relays);
	coop_reads_end(m);
	return false;
}

struct coop_relay *coop_relay_start(struct inode *inode, const struct coop_relay_ask *ask)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_relay *relay;

	/* Not below the levels of loads that storage redirected. */
	if (!m->opt.tree || !m->opt.forward || ask->level <= COOP_LEVEL_REDIRECTED + 1 ||
	    list_empty_careful(&coop_i(inode)->files) || !count_in(m))
		return NULL;
	relay = kzalloc(sizeof(*relay), GFP_NOWAIT | __GFP_NOWARN); /* as serve.c */
	if (!relay) {
		atomic_dec(&m->relays);
		coop_reads_end(m);
		return NULL;
	}
	INIT_WORK(&relay->work, relay_work);
	refcount_set(&relay->refs, 2);
	relay->counted = true;
	ihold(inode); /* the serve has a reference */
	relay->inode = inode;
	relay->ask = *ask;
	relay->until_us = coop_now_us() + ask->budget_us - ask->budget_us / RELAY_KEEPS;
	queue_work(m->wq, &relay->work);
	return relay;
}
