// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * write.c - dirty pages: how pages become dirty, and how they get to storage.
 *
 * A dirty folio records the range of its bytes that was written (its private word), so that
 * two nodes that write different parts of a page do not overwrite each other. There is one
 * range: a write apart from it first writes it back, because otherwise the bytes between the
 * two would be written as well. A folio without that word is dirty as a whole. A clean folio may
 * have another word (keep.h). Adjacent ranges of folios become one WRITE of up to 1 MiB, sent
 * from the folios themselves, with as many WRITEs under way as storage's window permits. Folios
 * are not changed under writeback.
 *
 * Code that changes a folio that may be served to peers increments 'change' under the folio
 * lock, so that a serve sees either the lock or the new number.
 *
 * A task that waits for all dirty pages usually commits next. If they fit one WRITE, that WRITE
 * also commits, and its folios are not kept.
 *
 * A failed WRITE loses its bytes: the error goes to the mapping, fsync and close report it, and
 * the pages lose their version. Bytes that storage acknowledges and then loses are written again
 * (unstable.c). A lost connection is not a failure (storage.h). The mount has pools with memory
 * for a few WRITEs and their calls, because writeback is what frees memory.
 */
#include <linux/highmem.h>
#include <linux/mempool.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/writeback.h>

#include "fs/fs.h"
#include "fs/keep.h"

#define WRITE_PAGES (COOP_ST_IO_MAX >> PAGE_SHIFT)
#define WRITE_POOL  4

/* One WRITE and the folios under writeback that it carries. */
struct coop_write {
	struct coop_change change;
	struct inode *inode;    /* a reference */
	struct coop_file *file; /* a reference */
	loff_t pos;
	u32 bytes, n;
	u32 losses;             /* coop_inode.losses when its first folio was taken */
	bool commits;           /* ask for a stable WRITE */
	u64 covers;             /* with 'commits': it also commits changes up to this number */
	struct coop_kept *room; /* for the record of its folios; NULL: see coop_unstable_keep() */
	struct bio_vec bvec[WRITE_PAGES];
};

static struct kmem_cache *write_cache;

int coop_write_init(void)
{
	write_cache = KMEM_CACHE(coop_write, 0);
	return write_cache ? 0 : -ENOMEM;
}

void coop_write_exit(void)
{
	kmem_cache_destroy(write_cache);
}

int coop_write_pool_create(struct coop_mount *m)
{
	m->write_pool = mempool_create_slab_pool(WRITE_POOL, write_cache);
	return m->write_pool ? 0 : -ENOMEM;
}

void coop_write_pool_destroy(struct coop_mount *m)
{
	mempool_destroy(m->write_pool);
}

/* ---- the written range of a folio, under its lock ------------------------------------- */

static unsigned long range_word(size_t from, size_t to)
{
	BUILD_BUG_ON(PAGE_SIZE > 1ul << (BITS_PER_LONG / 2 - 1));
	return from << BITS_PER_LONG / 2 | to;
}

static void range_get(const struct folio *folio, size_t *from, size_t *to)
{
	const unsigned long word = (unsigned long)folio_get_private((struct folio *)folio);

	*from = word >> BITS_PER_LONG / 2;
	*to = word ? word & ((1ul << BITS_PER_LONG / 2) - 1) : folio_size((struct folio *)folio);
}

static void range_set(struct folio *folio, size_t from, size_t to)
{
	void *word = (void *)range_word(from, to);

	if (folio_test_private(folio))
		folio_change_private(folio, word);
	else
		folio_attach_private(folio, word);
}

/* Is there a gap of unwritten bytes between the dirty range and [from, to)? */
static bool range_apart(const struct folio *folio, size_t from, size_t to)
{
	size_t had_from, had_to;

	if (!folio_test_dirty((struct folio *)folio))
		return false;
	range_get(folio, &had_from, &had_to);
	return to < had_from || from > had_to;
}

/* Adds [from, to), which must touch the dirty range, to that range. */
static void range_dirty(struct folio *folio, size_t from, size_t to)
{
	size_t had_from, had_to;

	if (folio_test_dirty(folio)) {
		range_get(folio, &had_from, &had_to);
		from = min(from, had_from);
		to = max(to, had_to);
	}
	range_set(folio, from, to);
	filemap_dirty_folio(folio->mapping, folio);
}

/* ---- write(2) ------------------------------------------------------------------------- */

static void folio_write_locked(struct folio *folio);

bool coop_write_before(struct address_space *mapping, loff_t end)
{
	const size_t at = end & ~PAGE_MASK;
	struct folio *folio = at ? coop_filemap_peek(mapping, end >> PAGE_SHIFT) : NULL;
	bool writes = false;
	size_t from, to;

	if (!folio)
		return false;
	folio_lock(folio);
	if (folio->mapping == mapping && folio_test_dirty(folio)) {
		folio_wait_writeback(folio);
		range_get(folio, &from, &to);
		writes = to > at;
		if (writes)
			folio_write_locked(folio);
	}
	folio_unlock(folio);
	folio_put(folio);
	return writes;
}

static int make_uptodate(struct coop_file *f, struct folio *folio)
{
	const int err = coop_read_locked(f, folio);

	if (err && err != -EINTR)
		folio_unlock(folio);
	if (err)
		folio_put(folio);
	return err;
}

static int coop_write_begin(struct file *file, struct address_space *mapping, loff_t pos,
			    unsigned int len, struct folio **foliop, void **fsdata)
{
	struct inode *inode = mapping->host;
	const size_t from = pos & ~PAGE_MASK, to = from + len;
	const loff_t start = pos - from;
	struct folio *folio;
	int err;

	if (pos > i_size_read(inode))
		coop_write_before(mapping, i_size_read(inode));
	for (;;) {
		folio = coop_filemap_grab(mapping, pos >> PAGE_SHIFT);
		if (IS_ERR(folio))
			return PTR_ERR(folio);
		folio_wait_writeback(folio);
		if (range_apart(folio, from, to))
			folio_write_locked(folio);
		if (folio_test_uptodate(folio))
			break;
		coop_content_mixes(coop_i(inode)); /* before we read i_size */
		/* The file has no other bytes in this page: no READ is needed. */
		if (start >= i_size_read(inode) || (!from && start + to >= i_size_read(inode))) {
			folio_zero_segments(folio, 0, from, to, PAGE_SIZE);
			break;
		}
		if (!from && to == PAGE_SIZE)
			break;
		err = make_uptodate(file->private_data, folio);
		if (!err)
			break;
		if (err == -ESTALE)
			err = coop_revalidate(inode, true);
		if (err)
			return err;
	}
	if (coop_file_lost(file)) {
		folio_unlock(folio);
		folio_put(folio);
		return -EIO;
	}
	coop_content_changes(coop_i(inode));
	*foliop = folio;
	return 0;
}

static void stamp_locked(struct inode *inode)
{
	struct timespec64 now;

	lockdep_assert_held(&coop_i(inode)->lock);
	ktime_get_coarse_real_ts64(&now);
	inode_set_mtime_to_ts(inode, inode_set_ctime_to_ts(inode, now));
}

static int coop_write_end(struct file *file, struct address_space *mapping, loff_t pos,
			  unsigned int len, unsigned int copied, struct folio *folio, void *fsdata)
{
	struct inode *inode = mapping->host;
	struct coop_inode *ci = coop_i(inode);
	const size_t from = pos & ~PAGE_MASK;

	if (!folio_test_uptodate(folio)) {
		if (copied < len)
			copied = 0; /* the rest of the page is not valid */
		else
			folio_mark_uptodate(folio);
	}
	if (copied) {
		/* A short copy may end before the dirty range that it should have reached. */
		if (range_apart(folio, from, from + copied))
			folio_write_locked(folio);
		range_dirty(folio, from, from + copied);
		spin_lock(&ci->lock);
		coop_size_written_locked(ci, pos + copied);
		stamp_locked(inode);
		spin_unlock(&ci->lock);
	}
	folio_unlock(folio);
	folio_put(folio);
	return copied;
}

/* ---- stores through a mapping ------------------------------------------------------------ */

vm_fault_t coop_page_mkwrite(struct vm_fault *vmf)
{
	struct folio *folio = page_folio(vmf->page);
	struct inode *inode = file_inode(vmf->vma->vm_file);
	struct coop_inode *ci = coop_i(inode);
	vm_fault_t result = VM_FAULT_LOCKED;

	sb_start_pagefault(inode->i_sb);
	folio_lock(folio);
	if (folio->mapping != inode->i_mapping || folio_pos(folio) >= i_size_read(inode)) {
		folio_unlock(folio);
		result = VM_FAULT_NOPAGE;
		goto out;
	}
	if (coop_file_lost(vmf->vma->vm_file)) {
		folio_unlock(folio);
		result = VM_FAULT_SIGBUS;
		goto out;
	}
	folio_wait_writeback(folio);
	coop_content_changes(ci);
	range_dirty(folio, 0, folio_size(folio));
	spin_lock(&ci->lock);
	stamp_locked(inode);
	spin_unlock(&ci->lock);
out:
	sb_end_pagefault(inode->i_sb);
	return result;
}

/* ---- to storage --------------------------------------------------------------------------- */

static void write_free(struct coop_write *w)
{
	struct coop_mount *m = coop_sb(w->inode->i_sb);

	coop_kept_room_free(w->room);
	coop_file_put(w->file);
	coop_iput_later(w->inode);
	mempool_free(w, m->write_pool);
}

void coop_changes_settled(struct list_head *settled)
{
	struct coop_change *change, *next;

	list_for_each_entry_safe(change, next, settled, link) {
		struct coop_write *w = container_of(change, struct coop_write, change);
		struct coop_mount *m = coop_sb(w->inode->i_sb);
		u32 i;

		list_del(&change->link);
		for (i = 0; i < w->n; i++)
			folio_end_writeback(page_folio(w->bvec[i].bv_page));
		write_free(w);
		coop_calls_end(m);
	}
}

static void write_done(struct coop_call *call)
{
	struct coop_write *w = call->owner;
	struct inode *inode = w->inode;
	struct coop_mount *m = coop_sb(inode->i_sb);
	const int err = call->error;
	const u64 verifier = call->res.verifier;
	LIST_HEAD(settled);

	/* After coop_change_end() another reply may end this change and drop its references. */
	ihold(inode);
	coop_calls_begin(m);
	if (err)
		mapping_set_error(inode->i_mapping, err);
	else if (!(call->res.flags & COOP_ST_WRITE_STABLE) ||
		 !coop_unstable_covered(inode, verifier, w->covers)) {
		coop_unstable_keep(inode, verifier, w->room, w->bvec, w->n, w->pos, w->bytes);
		w->room = NULL;
	}
	coop_change_end(inode, &w->change, err ? NULL : &call->res, &settled);
	coop_changes_settled(&settled);
	if (!err)
		coop_attr_ours(inode, &call->res.attr);
	coop_call_put(call);
	coop_iput_later(inode);
	coop_calls_end(m);
}

static void write_submit(struct coop_write *w)
{
	struct coop_inode *ci = coop_i(w->inode);
	struct coop_mount *m = coop_sb(w->inode->i_sb);
	struct coop_call *call = coop_call_alloc_sure(m->storage, COOP_ST_WRITE);

	if (!w->commits)
		w->room = coop_kept_room(w->n);
	coop_calls_begin(m);
	w->change.round = coop_change_begin(ci);
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = w->file->open_id;
	call->arg.offset = w->pos;
	call->arg.flags = w->commits ? COOP_ST_WRITE_STABLE : 0;
	call->fence = &ci->losses;
	call->fence_at = w->losses;
	call->bvec = w->bvec;
	call->n_bvec = w->n;
	call->data_max = w->bytes;
	call->owner = w;
	call->done = write_done;
	coop_call_submit(call);
}

/* State of one pass over the dirty folios. */
struct coop_batch {
	struct coop_file *file; /* NULL: the file is not open for writing */
	struct coop_write *write;
	bool sent; /* an earlier WRITE was sent */
};

static void batch_submit(struct coop_batch *b)
{
	if (b->write) {
		write_submit(b->write);
		b->sent = true;
	}
	b->write = NULL;
}

static struct coop_write *write_alloc(struct inode *inode, struct coop_file *file, loff_t pos)
{
	/* Never NULL: may wait for a WRITE under way, which ends by itself. */
	struct coop_write *w = mempool_alloc(coop_sb(inode->i_sb)->write_pool, GFP_NOFS);

	ihold(inode);
	w->inode = inode;
	w->file = coop_file_get(file);
	w->pos = pos;
	w->bytes = 0;
	w->n = 0;
	w->commits = false;
	w->covers = 0;
	w->room = NULL;
	return w;
}

/*
 * Takes over a locked folio that was cleared for I/O, and sets it under writeback, unless it has no
 * bytes to write.
 */
static void batch_add(struct coop_batch *b, struct folio *folio)
{
	struct inode *inode = folio->mapping->host;
	const loff_t size = i_size_read(inode), start = folio_pos(folio);
	struct coop_inode *ci = coop_i(inode);
	/* Before the flag, see coop_content_lost(). */
	const u32 losses = smp_load_acquire(&ci->losses);
	const bool sends = b->file && !test_bit(COOP_I_LOST, &ci->flags);
	struct bio_vec *v;
	size_t from, to;

	range_get(folio, &from, &to);
	folio_detach_private(folio);
	if (start + to > size) {
		to = start < size ? size - start : 0;
		/* Discard stores past EOF. */
		folio_zero_segment(folio, to, folio_size(folio));
	}
	if (!sends) {
		/* The bytes are lost to storage but stay in the cache, which loses its version. */
		mapping_set_error(folio->mapping, -EIO);
		coop_content_unproved(ci);
	}
	folio_start_writeback(folio);
	if (from >= to || !sends) {
		folio_end_writeback(folio); /* this removed the dirty tag */
		return;
	}
	if (b->write &&
	    (b->write->n == WRITE_PAGES || b->write->pos + b->write->bytes != start + (loff_t)from))
		batch_submit(b);
	if (!b->write) {
		b->write = write_alloc(inode, b->file, start + from);
		b->write->losses = losses;
	}
	v = &b->write->bvec[b->write->n++];
	v->bv_page = folio_page(folio, 0);
	v->bv_offset = from;
	v->bv_len = to - from;
	b->write->bytes += to - from;
}

static int add_folio(struct folio *folio, struct writeback_control *wbc, void *data)
{
	batch_add(data, folio);
	folio_unlock(folio);
	return 0;
}

static int coop_writepages(struct address_space *mapping, struct writeback_control *wbc)
{
	struct coop_batch b = {.file = coop_file_find(mapping->host, COOP_ST_O_WRITE)};
	int err;

	err = coop_write_cache_folios(mapping, wbc, add_folio, &b);
	if (b.write && !b.sent && wbc->for_sync)
		b.write->commits = coop_unstable_coverable(mapping->host, &b.write->covers);
	batch_submit(&b);
	if (b.file)
		coop_file_put(b.file);
	return err;
}

void coop_write_to_commit(struct inode *inode, loff_t start, loff_t end)
{
	/* for_sync as in sync(2), which also commits after the pages (coop_write_inode()). */
	struct writeback_control wbc = {
		.sync_mode = WB_SYNC_ALL,
		.for_sync = 1,
		.nr_to_write = LONG_MAX,
		.range_start = start,
		.range_end = end,
	};

	filemap_fdatawrite_wbc(inode->i_mapping, &wbc);
}

/* ---- other address space operations ----------------------------------------------------- */

/*
 * Called under the folio lock when a device that pinned the folio has finished writing to it. We do
 * not know where it wrote, and the folio may have become partly dirty since, so the whole folio is
 * dirty now. A plain unmap also calls this, but page_mkwrite has already set the whole range.
 */
static bool coop_dirty_folio(struct address_space *mapping, struct folio *folio)
{
	void *const whole = (void *)range_word(0, folio_size(folio));
	void *const word = folio_get_private(folio);

	coop_content_changes(coop_i(mapping->host));
	if (word && word != whole)
		cmpxchg(&folio->private, word, whole);
	return filemap_dirty_folio(mapping, folio);
}

static bool coop_release_folio(struct folio *folio, gfp_t gfp)
{
	bool keep;

	if (folio_test_dirty(folio) || folio_test_writeback(folio))
		return false;
	keep = coop_keep_once(folio);
	folio_detach_private(folio);
	return !keep;
}

static void coop_invalidate_folio(struct folio *folio, size_t offset, size_t length)
{
	folio_wait_writeback(folio);
	if (!offset && length == folio_size(folio))
		folio_detach_private(folio);
}

/*
 * Writes the dirty range of the folio, and waits. Keeps the folio locked, so that it cannot be
 * mapped, changed or dropped; the reply to a WRITE needs no folio lock.
 */
static void folio_write_locked(struct folio *folio)
{
	struct coop_batch b = {};

	if (!folio_clear_dirty_for_io(folio))
		return;
	b.file = coop_file_find(folio->mapping->host, COOP_ST_O_WRITE);
	batch_add(&b, folio);
	batch_submit(&b);
	folio_wait_writeback(folio);
	if (b.file)
		coop_file_put(b.file);
}

bool coop_write_again(struct inode *inode, struct folio *folio, size_t from, size_t len)
{
	bool here;

	folio_lock(folio);
	here = folio->mapping == inode->i_mapping;
	if (here) {
		folio_wait_writeback(folio);
		if (range_apart(folio, from, from + len))
			folio_write_locked(folio);
		coop_content_changes(coop_i(inode));
		range_dirty(folio, from, from + len);
	}
	folio_unlock(folio);
	return here;
}

/* invalidate_inode_pages2() found a dirty folio: write it first. */
static int coop_launder_folio(struct folio *folio)
{
	folio_write_locked(folio);
	return 0;
}

COOP_WRITE_OPS(coop_write_begin, coop_write_end)

const struct address_space_operations coop_aops = {
	.readahead = coop_readahead,
	.read_folio = coop_read_folio,
	.write_begin = COOP_WRITE_OP(coop_write_begin),
	.write_end = COOP_WRITE_OP(coop_write_end),
	.writepages = coop_writepages,
	.dirty_folio = coop_dirty_folio,
	.release_folio = coop_release_folio,
	.invalidate_folio = coop_invalidate_folio,
	.launder_folio = coop_launder_folio,
	.migrate_folio = filemap_migrate_folio,
};
