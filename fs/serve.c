// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * serve.c - serves peers from this node's page cache.
 *
 * A peer gets exactly the file id and data version that it asked for, from folios that are
 * uptodate, clean, unlocked, not under writeback and not pinned: a device that writes to a
 * pinned folio marks it dirty only at the end. This code never locks or waits for a folio
 * (rule 11): a busy folio counts as not held.
 *
 * The network reads the pages while the file may change. So we read 'change' before the
 * lookup and again after the last byte was sent; code that changes content increments it
 * first. The COMMIT lists the pages only if 'change' did not move.
 *
 * A request may wait for pages that are being read here (read.c), and want absent ones to be
 * read for it (relay.c). Such a page is served under the same rules from the moment when it is
 * uptodate. To fill a page is no change of the content, so 'change' as read before the lookup
 * stands for these pages, too. Readers of this node wake at the same moment and lock the page to
 * map it, so such a page may be locked when it is taken. Who locks it to change it moves 'change'
 * first. One that did so just before the lookup has the page still locked at the recheck, or has
 * made it dirty, or has moved the version; the recheck asks for all three.
 */
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "fs/fs.h"
#include "fs/read.h"
#include "fs/trace.h"

/* Only callbacks of the node use it, which its lock orders. */
struct coop_served {
	struct inode *inode; /* a reference; put with coop_iput_later() */
	u64 version;
	u64 change;
	/* of a request that waits */
	bool waits; /* counted in coop_inode.awaited */
	u32 level;
	u32 n_ext;
	struct coop_extent ext[COOP_MAX_EXTENTS];
	u64 came;                 /* by ordinal: were seen in a window since 'change' was read */
	struct coop_relay *relay; /* NULL: none */
	u64 relayed;              /* its pages, by ordinal */
};

static bool content_is(struct coop_inode *ci, u64 version, u64 *size)
{
	bool same;

	spin_lock(&ci->lock);
	same = ci->version == version;
	*size = ci->size;
	spin_unlock(&ci->lock);
	return same;
}

static bool folio_is_servable(struct folio *folio, bool locked_too)
{
	return folio_test_uptodate(folio) && !folio_test_dirty(folio) &&
	       (locked_too || !folio_test_locked(folio)) && !folio_test_writeback(folio) &&
	       !folio_maybe_dma_pinned(folio);
}

static struct page *servable_page(struct address_space *mapping, u64 index, bool locked_too)
{
	struct folio *folio = coop_filemap_peek(mapping, index);

	if (!folio)
		return NULL;
	if (folio_is_servable(folio, locked_too) && folio->mapping == mapping)
		return folio_file_page(folio, index);
	folio_put(folio);
	return NULL;
}

/* Takes those of the pages 'want' that can be served now; returns them. */
static u64 take_pages(struct coop_served *served, u64 want, struct page **pages)
{
	u32 e, i, ordinal = 0;
	u64 have = 0;

	for (e = 0; e < served->n_ext; e++) {
		for (i = 0; i < served->ext[e].count && ordinal < COOP_MAX_PAGES; i++, ordinal++) {
			if (!(want & BIT_ULL(ordinal)))
				continue;
			pages[ordinal] =
				servable_page(served->inode->i_mapping, served->ext[e].index + i,
					      served->came & BIT_ULL(ordinal));
			if (pages[ordinal])
				have |= BIT_ULL(ordinal);
		}
	}
	return have;
}

/* By ordinal: the pages that the request may wait for; in *reading all that are being read. */
static u64 pages_coming(struct coop_served *served, u64 *reading)
{
	struct coop_inode *ci = coop_i(served->inode);
	u32 e, n, ordinal = 0;
	u64 coming = 0, some;

	*reading = 0;
	for (e = 0; e < served->n_ext && ordinal < COOP_MAX_PAGES; e++, ordinal += n) {
		n = min_t(u32, served->ext[e].count, COOP_MAX_PAGES - ordinal);
		coming |= coop_windows_coming(ci, served->ext[e].index, n, served->level, &some)
			  << ordinal;
		*reading |= some << ordinal;
	}
	served->came |= coming;
	return coming;
}

/* Has absent pages loaded, by ordinal, if all are of one tree. Returns those that will be. */
static u64 relay(struct coop_served *served, const struct coop_ev *ev, u64 absent)
{
	struct coop_relay_ask ask = {.version = ev->version,
				     .index = round_down(ev->ext[0].index, COOP_MAX_PAGES),
				     .level = ev->level,
				     .budget_us = ev->budget_us};
	u32 e, i, ordinal = 0;

	for (e = 0; e < ev->n_ext; e++) {
		for (i = 0; i < ev->ext[e].count; i++, ordinal++) {
			const u64 at = ev->ext[e].index + i - ask.index;

			if (at >= COOP_MAX_PAGES || ordinal >= COOP_MAX_PAGES)
				return 0;
			if (!(absent & BIT_ULL(ordinal)))
				continue;
			if (ask.pages &&
			    at / COOP_UNIT_PAGES != __ffs64(ask.pages) / COOP_UNIT_PAGES)
				return 0;
			ask.pages |= BIT_ULL(at);
		}
	}
	served->relay = coop_relay_start(served->inode, &ask);
	served->relayed = served->relay ? absent : 0;
	return served->relayed;
}

static void wait_begin(struct coop_served *served)
{
	served->waits = true;
	/* Before the look at the windows: a page that settles after it finds us counted. */
	atomic_inc(&coop_i(served->inode)->awaited);
}

static void wait_end(struct coop_served *served)
{
	if (served->waits)
		atomic_dec(&coop_i(served->inode)->awaited);
	served->waits = false;
}

static struct coop_served *served_alloc(struct inode *inode, const struct coop_ev *ev)
{
	/* Readers wait for the lock of the node: without memory at once, the peer asks elsewhere.
	 */
	struct coop_served *served = kmalloc(sizeof(*served), GFP_NOWAIT | __GFP_NOWARN);

	if (!served)
		return NULL;
	served->inode = inode;
	served->version = ev->version;
	served->waits = false;
	served->relay = NULL;
	served->relayed = 0;
	served->came = 0;
	served->level = ev->level;
	served->n_ext = ev->n_ext;
	memcpy(served->ext, ev->ext, sizeof(served->ext));
	return served;
}

static void serve_lookup(void *host, const struct coop_ev *ev, struct coop_found *found, u64 now)
{
	struct coop_mount *mount = host;
	struct inode *inode = coop_ilookup(mount->sb, &ev->fid);
	struct coop_served *served;
	u64 reading = 0, absent;

	if (!inode)
		return;
	served = served_alloc(inode, ev);
	if (!served) {
		coop_iput_later(inode);
		return;
	}
	served->change = atomic64_read(&coop_i(inode)->change);
	/* Before the first page lookup; pairs with smp_mb__after_atomic() in
	 * coop_content_changes(). */
	smp_rmb();
	if (!S_ISREG(inode->i_mode) || !content_is(coop_i(inode), ev->version, &found->size)) {
		coop_iput_later(inode);
		kfree(served);
		return;
	}
	if (ev->level) {
		wait_begin(served);
		/* Before the pages: one that arrives in between is taken below. */
		found->coming = pages_coming(served, &reading) & ev->pages;
	}
	found->have = take_pages(served, ev->pages, found->pages);
	found->coming &= ~found->have;
	absent = ev->pages & ~(found->have | reading);
	if (ev->level && ev->load && absent)
		found->coming |= relay(served, ev, absent);
	if (!found->coming)
		wait_end(served);
	found->cookie = served;
	trace_coopfs_serve(inode, ev, found);
}

static u64 serve_more(void *host, void *cookie, struct page **pages, u64 coming, u64 *arrived)
{
	struct coop_served *served = cookie;
	struct coop_inode *ci = coop_i(served->inode);
	u64 left, size, reading, relayed;

	/* The recheck would find the same later. */
	if (atomic64_read(&ci->change) != served->change ||
	    !content_is(ci, served->version, &size)) {
		wait_end(served);
		return 0;
	}
	/* First: what the relay has started is in a window, or has settled. */
	relayed = served->relay && !coop_relay_started(served->relay) ? served->relayed : 0;
	left = (pages_coming(served, &reading) | relayed) & coming;
	*arrived = take_pages(served, coming, pages);
	left &= ~*arrived;
	if (!left)
		wait_end(served);
	return left;
}

static u64 serve_recheck(void *host, void *cookie, struct page *const *pages, u64 have)
{
	struct coop_served *served = cookie;
	struct coop_inode *ci;
	u64 left, size;

	if (!served)
		return 0;
	ci = coop_i(served->inode);
	/* The bytes were read for sending before 'change' is read here. */
	smp_mb();
	if (atomic64_read(&ci->change) != served->change || !content_is(ci, served->version, &size))
		return 0;
	for (left = have; left; left &= left - 1) {
		const u32 i = __ffs64(left);
		struct folio *folio = page_folio(pages[i]);

		if (!folio_is_servable(folio, false) || folio->mapping != served->inode->i_mapping)
			have &= ~BIT_ULL(i);
	}
	return have;
}

static void serve_release(void *host, void *cookie, struct page **pages, u64 have)
{
	struct coop_served *served = cookie;

	for (; have; have &= have - 1)
		put_page(pages[__ffs64(have)]);
	if (!served)
		return;
	wait_end(served);
	if (served->relay)
		coop_relay_put(served->relay);
	coop_iput_later(served->inode);
	kfree(served);
}

static void serve_address(void *host, const struct coop_addr *self, u32 mbps)
{
	struct coop_mount *mount = host;

	coop_storage_register(mount->storage, self, mbps);
}

const struct coop_node_ops coop_serve_ops = {
	.lookup = serve_lookup,
	.more = serve_more,
	.recheck = serve_recheck,
	.release = serve_release,
	.address = serve_address,
};
