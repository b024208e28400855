// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * read_storage.c - reads the pages of a window that no peer delivered from storage.
 *
 * Each run of adjacent pages is one READ of the window's version, received straight
 * into the folios. A reply with another version, or ESTALE, fills no page: the reader
 * comes back for the new content. Calls of a window run concurrently and end in any
 * order; each holds the window.
 */
#include <linux/highmem.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "fs/read.h"
#include "fs/trace.h"

/* One READ and the pages that it fills. */
struct coop_fill {
	struct coop_window *window;
	u32 first, n; /* range of the window's pages */
	struct bio_vec bvec[COOP_MAX_PAGES];
};

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

/* Runs in the receiver's work: another thread would cost each reader a context switch. */
static void fill_done(struct coop_call *call)
{
	struct coop_fill *fill = call->owner;
	struct coop_window *w = fill->window;
	int err = call->error;
	unsigned int flags;

	if (!err && w->content.version && call->res.version != w->content.version)
		err = -ESTALE;
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
	kfree(fill);
	/* This may send the file's CLOSE, and the receiver must not wait for memory. */
	flags = memalloc_noreclaim_save();
	coop_window_put(w);
	memalloc_noreclaim_restore(flags);
}

static int fill_start(struct coop_window *w, u32 first, u32 n)
{
	struct coop_inode *ci = coop_i(w->inode);
	struct coop_fill *fill;
	struct coop_call *call;
	u32 i;

	fill = kmalloc(sizeof(*fill), GFP_NOFS);
	call = coop_call_alloc(w->mount->storage, COOP_ST_READ);
	if (!fill || !call) {
		kfree(fill);
		if (call)
			coop_call_put(call);
		return -ENOMEM;
	}
	fill->window = coop_window_get(w);
	fill->first = first;
	fill->n = n;
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
	call->bvec = fill->bvec;
	call->n_bvec = n;
	call->data_max = n << PAGE_SHIFT;
	call->done = fill_done;
	call->prompt = true;
	call->owner = fill;
	coop_call_queue(call);
	return 0;
}

void coop_window_from_storage(struct coop_window *w)
{
	const int said = coop_file_say(w->file);
	u64 left;

	/* From here on only this stage changes 'left', and only for runs that it has started. */
	spin_lock(&w->lock);
	left = w->left;
	w->at_storage = true;
	spin_unlock(&w->lock);
	coop_content_get(coop_i(w->inode), &w->content);
	while (left) {
		const u32 first = __ffs64(left);
		const u64 run = ~(left >> first);
		const u32 n = run ? __ffs64(run) : 64 - first;
		const u64 pages = GENMASK_ULL(first + n - 1, first);
		const int err = said ?: fill_start(w, first, n);

		if (err)
			coop_window_fail(w, pages, err);
		left &= ~pages;
	}
}
