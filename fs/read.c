// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * read.c - reads pages: first from peers' page caches, then from storage.
 *
 * Readahead cuts the range that the VM wants into windows of up to 64 pages (one
 * fetch, within one unit of placement) and starts each. A node with peers for this
 * version asks them; done() takes the pages that arrived and asks storage for the
 * rest. Without peers a window goes to storage at once. Readahead does not wait for
 * its windows (ra_async=1), or it does (ra_async=0).
 *
 * In the forest of a file (roles.c) a window asks its parents first, which load what
 * they lack or let it wait; then a few nodes that opened the file before, then storage.
 *
 * Recovery: a page that could not be filled is unlocked as it is. Its reader comes
 * back through read_folio, which asks peers and then storage, whose word is final. If
 * the version changed in between, read_folio asks for the attributes and lets the VM
 * look the page up again. So read one by one also readers without readahead
 * (MADV_RANDOM).
 */
#include <linux/highmem.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "fs/keep.h"
#include "fs/read.h"
#include "fs/trace.h"

/* Nodes that a member of a forest asks beside its parents. */
#define OPENERS_ASKED 2

void coop_content_get(struct coop_inode *ci, struct coop_content *out)
{
	spin_lock(&ci->lock);
	out->version = ci->version;
	out->size = ci->size;
	out->n_openers = ci->n_openers;
	memcpy(out->openers, ci->openers, ci->n_openers * sizeof(out->openers[0]));
	spin_unlock(&ci->lock);
	out->change = atomic64_read(&ci->change);
}

struct coop_window *coop_window_alloc(struct inode *inode, struct coop_file *file, gfp_t gfp)
{
	struct coop_mount *mount = coop_sb(inode->i_sb);
	struct coop_window *w = kzalloc(sizeof(*w), gfp);

	if (!w)
		return NULL;
	refcount_set(&w->refs, 1);
	spin_lock_init(&w->lock);
	INIT_LIST_HEAD(&w->link);
	w->level = COOP_LEVEL_NO_ROLE;
	init_completion(&w->finished);
	w->mount = mount;
	ihold(inode);
	w->inode = inode;
	w->file = coop_file_get(file);
	w->begun_us = coop_now_us();
	coop_content_get(coop_i(inode), &w->content);
	atomic_inc(&mount->reads);
	return w;
}

struct coop_window *coop_window_get(struct coop_window *w)
{
	refcount_inc(&w->refs);
	return w;
}

/* Before its first stage: a peer never sees one of its pages without the level. */
void coop_window_show(struct coop_window *w)
{
	struct coop_inode *ci = coop_i(w->inode);

	w->coming = w->left;
	spin_lock(&ci->lock);
	list_add_tail(&w->link, &ci->windows);
	spin_unlock(&ci->lock);
}

/* The window's pages as bits from 'index'. */
static u64 bits_from(const struct coop_window *w, u64 pages, u64 index)
{
	const u64 at = w->fetch.index;

	if (at >= index)
		return at - index < 64 ? pages << (at - index) : 0;
	return index - at < 64 ? pages >> (index - at) : 0;
}

u64 coop_windows_coming(struct coop_inode *ci, u64 index, u32 count, u32 level, u64 *reading)
{
	const u64 mask = count ? GENMASK_ULL(count - 1, 0) : 0;
	struct coop_window *w;
	u64 all = 0, coming = 0;

	spin_lock(&ci->lock);
	list_for_each_entry(w, &ci->windows, link) {
		u64 pages;

		spin_lock(&w->lock);
		pages = bits_from(w, w->coming, index);
		all |= pages;
		if (level > w->level)
			coming |= pages;
		else if (level > COOP_LEVEL_STORAGE)
			coming |= bits_from(w, w->coming & w->at_storage, index);
		spin_unlock(&w->lock);
	}
	spin_unlock(&ci->lock);
	*reading = all & mask;
	return coming & mask;
}

/* Unlocks folios that the window has decided about. */
static void window_release(struct coop_window *w, u64 pages)
{
	for (; pages; pages &= pages - 1) {
		struct folio *folio = page_folio(w->fetch.pages[__ffs64(pages)]);

		if (!w->keep_locked)
			folio_unlock(folio);
		folio_put(folio);
	}
}

void coop_window_put(struct coop_window *w)
{
	struct coop_inode *ci = coop_i(w->inode);
	struct coop_mount *mount = w->mount;

	if (!refcount_dec_and_test(&w->refs))
		return;
	WARN_ON_ONCE(w->left);
	if (!list_empty(&w->link)) {
		spin_lock(&ci->lock);
		list_del(&w->link);
		spin_unlock(&ci->lock);
	}
	coop_file_put(w->file);
	coop_iput_later(w->inode);
	if (w->for_peer)
		atomic_dec(&mount->relays);
	kfree(w);
	coop_reads_end(mount);
}

/* Removes pages from 'left' and returns those that were in it; the caller decides about them. */
static u64 window_take(struct coop_window *w, u64 pages, enum coop_source from, int error)
{
	bool last;

	spin_lock(&w->lock);
	pages &= w->left;
	w->left &= ~pages;
	last = pages && !w->left;
	if (from > w->slowest)
		w->slowest = from;
	if (error && !w->error)
		w->error = error;
	spin_unlock(&w->lock);
	if (last && !w->for_peer)
		coop_count_request(&w->mount->stats, w->slowest, coop_now_us() - w->begun_us);
	return pages;
}

/* The pages are unlocked. The caller still holds the window. */
static void window_decided(struct coop_window *w, u64 pages)
{
	struct coop_shards *shards = w->mount->shards;
	bool all;

	spin_lock(&w->lock);
	w->coming &= ~pages;
	all = !w->left;
	spin_unlock(&w->lock);
	if (all)
		complete_all(&w->finished);
	/*
	 * A serve counts itself before it looks at the windows. If it saw these pages as coming, it
	 * held w->lock before we did, so we see its count. The node lives as long as any window.
	 */
	if (shards && atomic_read(&coop_i(w->inode)->awaited))
		coop_shards_settled(shards);
}

void coop_window_accept(struct coop_window *w, u64 good, enum coop_source from)
{
	struct coop_inode *ci = coop_i(w->inode);
	const bool keep = from == COOP_FROM_STORAGE && w->mount->shards && w->content.version;
	u64 pages, bytes = 0;
	bool same;

	/*
	 * Rule 10. A later change of the version invalidates the pages, and must wait for their
	 * locks, which we hold.
	 */
	spin_lock(&ci->lock);
	same = ci->version == w->content.version;
	if (same && !ci->version)
		ci->mixed++; /* a settling must not count them as its version */
	spin_unlock(&ci->lock);
	if (!same)
		return;
	good = window_take(w, good, from, 0);
	for (pages = good; pages; pages &= pages - 1) {
		const u32 i = __ffs64(pages);
		struct folio *folio = page_folio(w->fetch.pages[i]);
		const u64 at = (w->fetch.index + i) << PAGE_SHIFT;

		flush_dcache_folio(folio);
		if (keep)
			coop_keep_mark(folio);
		folio_mark_uptodate(folio);
		if (at < w->content.size)
			bytes += min_t(u64, PAGE_SIZE, w->content.size - at);
	}
	coop_count_source(&w->mount->stats, from, hweight64(good), bytes);
	atomic64_add(bytes, &ci->fetched);
	window_release(w, good);
	window_decided(w, good);
}

void coop_window_fail(struct coop_window *w, u64 pages, int error)
{
	pages = window_take(w, pages, COOP_FROM_STORAGE, error);
	if (!pages)
		return;
	coop_count(&w->mount->stats, error == -ESTALE ? COOP_C_STALE_READS : COOP_C_READ_ERRORS, 1);
	window_release(w, pages);
	window_decided(w, pages);
}

static void window_storage_work(struct work_struct *work)
{
	struct coop_window *w = container_of(work, struct coop_window, work);
	struct coop_storage *storage = w->mount->storage;

	coop_window_from_storage(w);
	coop_storage_push(storage);
	coop_window_put(w);
}

/* Runs in the node's worker: work that may wait goes to the mount's queue. */
static void window_fetched(struct coop_node_fetch *f, u64 good, int err)
{
	struct coop_window *w = container_of(f, struct coop_window, fetch);
	const u64 asked = w->left;

	trace_coopfs_fetch_done(w, good, err);
	coop_window_accept(w, good, COOP_FROM_PEER);
	if (w->left) {
		coop_count(&w->mount->stats, COOP_C_PEER_FALLBACK_PAGES,
			   hweight64(asked & w->left));
		queue_work(w->mount->wq, &w->work);
	} else {
		coop_window_put(w);
	}
}

/* Takes the node's place in the tree of the page's unit, if it has one. */
bool coop_window_join(struct coop_window *w, u64 index)
{
	struct coop_node_fetch *f = &w->fetch;
	struct coop_place place;

	if (!coop_roles_place(coop_i(w->inode), w->content.version, index, &place))
		return false;
	w->member = true;
	w->level = place.level;
	f->parents[0] = place.parent;
	f->parents[1] = place.alternate;
	f->level = place.level;
	f->load = true;
	f->budget_us = w->mount->opt.wait_timeout_ms * USEC_PER_MSEC;
	if (w->content.n_openers > OPENERS_ASKED) {
		/* The last one opened the file first, so it has probably read most of it. */
		w->content.openers[1] = w->content.openers[0];
		w->content.openers[0] = w->content.openers[w->content.n_openers - 1];
		w->content.n_openers = OPENERS_ASKED;
	}
	return true;
}

void coop_window_start(struct coop_window *w)
{
	struct coop_shards *shards = w->mount->shards;

	INIT_WORK(&w->work, window_storage_work);
	trace_coopfs_read(w);
	if (shards && w->content.version) {
		struct coop_node_fetch *f = &w->fetch;

		f->fid = coop_i(w->inode)->fid;
		f->version = w->content.version;
		f->size = w->content.size;
		f->want = w->left;
		f->n_openers = w->content.n_openers;
		memcpy(f->openers, w->content.openers, sizeof(f->openers));
		f->done = window_fetched;
		if (!coop_shards_fetch(f, shards))
			return;
	}
	coop_window_from_storage(w);
	coop_window_put(w);
}

static u32 window_pages(const struct coop_mount *mount)
{
	return mount->shards ? min_t(u32, coop_shards_max_pages(mount->shards), COOP_MAX_PAGES)
			     : COOP_MAX_PAGES;
}

/*
 * The next window of the readahead, shown to serves; NULL at its end or without memory. Use the
 * folio's index, because that of rac advances only with the next folio.
 */
static struct coop_window *window_gather(struct readahead_control *rac, struct coop_file *file,
					 u32 most)
{
	struct folio *folio = readahead_folio(rac);
	struct coop_window *w;
	u32 room;

	if (!folio)
		return NULL;
	w = coop_window_alloc(rac->mapping->host, file, GFP_NOFS | __GFP_NORETRY | __GFP_NOWARN);
	if (!w) {
		folio_unlock(folio); /* a reader will read it by itself */
		return NULL;
	}
	w->fetch.index = folio->index;
	room = min_t(u32, most, COOP_MAX_PAGES - w->fetch.index % COOP_MAX_PAGES);
	if (coop_window_join(w, w->fetch.index))
		room = min_t(u32, room, COOP_UNIT_PAGES - w->fetch.index % COOP_UNIT_PAGES);
	do {
		folio_get(folio); /* readahead_folio() dropped its own */
		w->left |= BIT_ULL(w->fetch.n_pages);
		w->fetch.pages[w->fetch.n_pages++] = folio_page(folio, 0);
	} while (w->fetch.n_pages < room && (folio = readahead_folio(rac)));
	coop_window_show(w);
	return w;
}

void coop_readahead(struct readahead_control *rac)
{
	struct inode *inode = rac->mapping->host;
	struct coop_mount *mount = coop_sb(inode->i_sb);
	const bool wait = !READ_ONCE(mount->opt.ra_async);
	const u32 most = window_pages(mount);
	struct coop_window *w, *next, *first = NULL, **end = &first;
	struct coop_file *file;

	file = rac->file ? coop_file_get(rac->file->private_data)
			 : coop_file_find(inode, COOP_ST_O_READ);
	if (!file)
		return; /* the VM unlocks the folios; readers will read them one by one */
	/* All pages are locked already, so all windows are shown before the first starts. */
	while ((w = window_gather(rac, file, most))) {
		*end = w;
		end = &w->next;
	}
	for (w = first; w; w = next) {
		next = w->next;
		coop_count(&mount->stats, COOP_C_READAHEAD_PAGES, w->fetch.n_pages);
		if (wait)
			coop_window_get(w);
		coop_window_start(w);
	}
	coop_storage_push(mount->storage);
	for (w = wait ? first : NULL; w; w = next) {
		next = w->next;
		/* Killed: the windows finish by themselves. */
		wait_for_completion_killable(&w->finished);
		coop_window_put(w);
	}
	coop_file_put(file);
}

/*
 * Reads one folio and waits. keep_locked: leaves the folio locked, and asks only storage, because
 * the caller goes on to change the page.
 */
static int read_one(struct coop_file *file, struct folio *folio, bool keep_locked)
{
	struct coop_window *w = coop_window_alloc(folio->mapping->host, file, GFP_NOFS);
	bool killed;
	int err;

	if (!w) {
		if (!keep_locked)
			folio_unlock(folio);
		return -ENOMEM;
	}
	w->fetch.index = folio->index;
	w->fetch.n_pages = 1;
	w->fetch.pages[0] = folio_page(folio, 0);
	w->keep_locked = keep_locked;
	folio_get(folio);
	w->left = 1;
	if (keep_locked) {
		trace_coopfs_read(w);
		coop_window_from_storage(w);
	} else {
		(void)coop_window_join(w, folio->index);
		coop_window_show(w);
		coop_window_start(coop_window_get(w));
	}
	coop_storage_push(w->mount->storage);
	killed = wait_for_completion_killable(&w->finished) != 0;
	if (killed) {
		spin_lock(&w->lock);
		if (w->left)
			w->keep_locked = false; /* the caller gives the folio up */
		else
			killed = false; /* decided: 'finished' completes soon */
		spin_unlock(&w->lock);
		if (!killed)
			wait_for_completion(&w->finished);
	}
	err = killed ? -EINTR : w->error;
	coop_window_put(w);
	return err;
}

int coop_read_locked(struct coop_file *file, struct folio *folio)
{
	return read_one(file, folio, true);
}

int coop_read_folio(struct file *f, struct folio *folio)
{
	struct inode *inode = folio->mapping->host;
	struct coop_file *file =
		f ? coop_file_get(f->private_data) : coop_file_find(inode, COOP_ST_O_READ);
	int err;

	if (!file) {
		folio_unlock(folio);
		return -EBADF;
	}
	err = read_one(file, folio, false);
	coop_file_put(file);
	if (err != -ESTALE)
		return err;
	err = coop_revalidate(inode, true);
	return err ? err : AOP_TRUNCATED_PAGE;
}

void coop_account_read(struct inode *inode, size_t bytes, u64 us)
{
	struct coop_mount *mount = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	s64 fresh = atomic64_read(&ci->fetched);
	u64 again;

	do {
		again = bytes > (u64)fresh ? bytes - fresh : 0;
	} while (!atomic64_try_cmpxchg(&ci->fetched, &fresh, fresh - (s64)(bytes - again)));
	if (!again)
		return;
	coop_count_source(&mount->stats, COOP_FROM_BUFFER, DIV_ROUND_UP(again, PAGE_SIZE), again);
	if (again == bytes)
		coop_count_request(&mount->stats, COOP_FROM_BUFFER, us);
}
