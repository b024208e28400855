// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * read_storage.c - reads the pages of a window that no peer delivered from storage.
 *
 * Each run of adjacent pages is one READ of the window's version, received straight
 * into the folios. A reply with another version, or ESTALE, fills no page: the reader
 * comes back for the new content. Calls of a window run concurrently and end in any
 * order; each holds the window.
 *
 * To a node with a role in the file's forest storage may name nodes that it has sent the
 * pages to (rpc/storage/STORAGE.md, Redirects). These are asked, and may let us wait for
 * loads that are at storage. For what they do not deliver, storage must send the bytes.
 */
#include <linux/highmem.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "fs/read.h"
#include "fs/trace.h"

/* One READ and the pages that it fills; then the fetch from the nodes that it named. */
struct coop_fill {
	struct coop_window *window;   /* a reference */
	u32 first, n;                 /* range of the window's pages */
	u32 flags;                    /* of READ_SHARED; 0: a plain READ */
	struct coop_node_fetch fetch; /* from the nodes that storage named */
	struct work_struct work;
	struct bio_vec bvec[COOP_MAX_PAGES];
};

static void ask_storage(struct coop_window *w, u64 pages, u32 flags, int said);

static u64 fill_pages(const struct coop_fill *fill)
{
	return GENMASK_ULL(fill->first + fill->n - 1, fill->first);
}

/* Zeroes the pages after the received bytes: the rest lies past the end of the file. */
static void fill_zero_rest(const struct coop_fill *fill, u32 bytes)
{
	u32 i;

	for (i = bytes >> PAGE_SHIFT; i < fill->n; i++) {
		const u32 from = i == bytes >> PAGE_SHIFT ? bytes & ~PAGE_MASK : 0;

		zero_user_segment(fill->bvec[i].bv_page, from, PAGE_SIZE);
	}
}

static void fill_put(struct coop_fill *fill)
{
	coop_window_put(fill->window);
	kfree(fill);
}

/* Storage shall send the bytes that are missing. */
static void fill_insist(struct work_struct *work)
{
	struct coop_fill *fill = container_of(work, struct coop_fill, work);
	struct coop_window *w = fill->window;
	u64 left;

	spin_lock(&w->lock);
	left = w->left & fill_pages(fill);
	spin_unlock(&w->lock);
	ask_storage(w, left, fill->flags ? fill->flags | COOP_ST_READ_INSIST : 0,
		    READ_ONCE(w->mount->ending) ? -ESHUTDOWN : 0);
	coop_storage_push(w->mount->storage);
	fill_put(fill);
}

static void fill_later(struct coop_fill *fill, work_func_t what)
{
	INIT_WORK(&fill->work, what);
	queue_work(fill->window->mount->wq, &fill->work);
}

/* Runs in the node's worker. */
static void fill_fetched(struct coop_node_fetch *f, u64 good, int err)
{
	struct coop_fill *fill = container_of(f, struct coop_fill, fetch);
	struct coop_window *w = fill->window;
	u64 left;

	trace_coopfs_fetch_done(w, good << fill->first, err);
	coop_window_accept(w, good << fill->first, COOP_FROM_PEER);
	spin_lock(&w->lock);
	left = w->left & fill_pages(fill);
	spin_unlock(&w->lock);
	if (left)
		fill_later(fill, fill_insist);
	else
		fill_put(fill);
}

/* Asks the named nodes. */
static void fill_redirected(struct work_struct *work)
{
	struct coop_fill *fill = container_of(work, struct coop_fill, work);
	struct coop_window *w = fill->window;
	struct coop_node_fetch *f = &fill->fetch;

	f->fid = coop_i(w->inode)->fid;
	f->version = w->content.version;
	f->size = w->content.size;
	f->index = w->fetch.index + fill->first;
	f->n_pages = fill->n;
	f->want = GENMASK_ULL(fill->n - 1, 0);
	memcpy(f->pages, w->fetch.pages + fill->first, fill->n * sizeof(f->pages[0]));
	f->level = COOP_LEVEL_REDIRECTED;
	f->relay = true;
	f->budget_us = w->mount->opt.wait_timeout_ms * USEC_PER_MSEC;
	f->done = fill_fetched;
	if (!w->mount->shards || coop_shards_fetch(f, w->mount->shards))
		fill_insist(work);
}

/* Storage has named nodes. Must not wait. */
static void fill_redirect(struct coop_fill *fill, const struct coop_st_body *res)
{
	struct coop_window *w = fill->window;
	const u32 n = min_t(u32, res->n_nodes, COOP_PARENTS);

	BUILD_BUG_ON(COOP_PARENTS < COOP_ST_HOLDERS_MAX);
	coop_count(&w->mount->stats, COOP_C_REDIRECTED_PAGES, fill->n);
	memset(&fill->fetch, 0, sizeof(fill->fetch)); /* unused, and not set, until here */
	memcpy(fill->fetch.parents, res->nodes, n * sizeof(res->nodes[0]));
	trace_coopfs_redirect(w, fill->first, fill->n, fill->fetch.parents);
	/* Before the nodes are asked: a load that waits for one at storage is not one itself. */
	spin_lock(&w->lock);
	w->at_storage &= ~fill_pages(fill);
	spin_unlock(&w->lock);
	if (w->mount->shards && atomic_read(&coop_i(w->inode)->awaited))
		coop_shards_settled(w->mount->shards);
	fill_later(fill, fill_redirected);
}

/* Runs in the receiver's work: another thread would cost each reader a context switch. */
static void fill_done(struct coop_call *call)
{
	struct coop_fill *fill = call->owner;
	struct coop_window *w = fill->window;
	int err = call->error;
	unsigned int flags;

	if (!err && w->content.version && call->res.version != w->content.version)
		err = -ESTALE;
	if (!err && fill->flags && call->res.n_nodes) {
		fill_redirect(fill, &call->res);
		coop_call_put(call);
		return;
	}
	if (err == -EOPNOTSUPP && fill->flags) {
		/* It was sent again, to an older daemon. */
		fill->flags = 0;
		fill_later(fill, fill_insist);
		coop_call_put(call);
		return;
	}
	/* Fewer bytes than requested are the end of the file, or an error of the daemon. */
	if (!err && call->data_len < call->arg.count &&
	    call->arg.offset + call->data_len < call->res.size)
		err = -EIO;
	trace_coopfs_storage_read(w, fill->first, fill->n, err);
	if (!err) {
		fill_zero_rest(fill, call->data_len);
		coop_window_accept(w, fill_pages(fill), COOP_FROM_STORAGE);
		/* Pages that were not accepted have the old version: it changed during the read. */
		err = -ESTALE;
	}
	coop_window_fail(w, fill_pages(fill), err);
	coop_call_put(call);
	/* This may send the file's CLOSE, and the receiver must not wait for memory. */
	flags = memalloc_noreclaim_save();
	fill_put(fill);
	memalloc_noreclaim_restore(flags);
}

static int fill_start(struct coop_window *w, u32 first, u32 n, u32 flags)
{
	struct coop_inode *ci = coop_i(w->inode);
	struct coop_fill *fill;
	struct coop_call *call;
	u32 i;

	fill = kmalloc(sizeof(*fill), GFP_NOFS);
	call = coop_call_alloc(w->mount->storage, flags ? COOP_ST_READ_SHARED : COOP_ST_READ);
	if (!fill || !call) {
		kfree(fill);
		if (call)
			coop_call_put(call);
		return -ENOMEM;
	}
	fill->window = coop_window_get(w);
	fill->first = first;
	fill->n = n;
	fill->flags = flags;
	for (i = 0; i < n; i++) {
		fill->bvec[i].bv_page = w->fetch.pages[first + i];
		fill->bvec[i].bv_offset = 0;
		fill->bvec[i].bv_len = PAGE_SIZE;
	}
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = w->file->open_id;
	call->arg.offset = (w->fetch.index + first) << PAGE_SHIFT;
	call->arg.count = n << PAGE_SHIFT;
	call->arg.version = w->content.version;
	call->arg.flags = flags;
	call->bvec = fill->bvec;
	call->n_bvec = n;
	call->data_max = n << PAGE_SHIFT;
	call->done = fill_done;
	call->prompt = true;
	call->owner = fill;
	coop_call_queue(call);
	return 0;
}

/* said: an error fails all. */
static void ask_storage(struct coop_window *w, u64 left, u32 flags, int said)
{
	spin_lock(&w->lock);
	w->at_storage |= left;
	spin_unlock(&w->lock);
	while (left) {
		const u32 first = __ffs64(left);
		const u64 run = ~(left >> first);
		const u32 n = run ? __ffs64(run) : 64 - first;
		const u64 pages = GENMASK_ULL(first + n - 1, first);
		const int err = said ?: fill_start(w, first, n, flags);

		if (err)
			coop_window_fail(w, pages, err);
		left &= ~pages;
	}
}

void coop_window_from_storage(struct coop_window *w)
{
	const int said = READ_ONCE(w->mount->ending) ? -ESHUTDOWN : coop_file_say(w->file);
	u32 flags = 0;
	u64 left;

	/* From here on only this stage changes 'left', and only for runs that it has started. */
	spin_lock(&w->lock);
	left = w->left;
	spin_unlock(&w->lock);
	/* Only here: what is under way must not be taken for bytes of a later version. */
	coop_content_get(coop_i(w->inode), &w->content);
	if (w->member && w->content.version && coop_storage_redirects(w->mount->storage))
		flags = COOP_ST_READ_MAY_REDIRECT;
	ask_storage(w, left, flags, said);
}
