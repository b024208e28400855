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
 */
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "fs/fs.h"
#include "fs/trace.h"

struct coop_served {
	struct inode *inode; /* a reference; put with coop_iput_later() */
	u64 version;
	u64 change;
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

static bool folio_is_servable(struct folio *folio)
{
	return folio_test_uptodate(folio) && !folio_test_dirty(folio) &&
	       !folio_test_locked(folio) && !folio_test_writeback(folio) &&
	       !folio_maybe_dma_pinned(folio);
}

static struct page *servable_page(struct address_space *mapping, u64 index)
{
	struct folio *folio = coop_filemap_peek(mapping, index);

	if (!folio)
		return NULL;
	if (folio_is_servable(folio) && folio->mapping == mapping)
		return folio_file_page(folio, index);
	folio_put(folio);
	return NULL;
}

static u64 serve_lookup(void *host, const struct coop_fid *fid, u64 version,
			const struct coop_extent *ext, u32 n_ext, u64 want, struct page **pages,
			u64 *size, void **cookie)
{
	struct coop_mount *mount = host;
	struct inode *inode = coop_ilookup(mount->sb, fid);
	struct coop_served *served;
	u64 have = 0;
	u32 e, i, ordinal = 0;

	*cookie = NULL;
	*size = 0;
	if (!inode)
		return 0;
	served = kmalloc(sizeof(*served), GFP_NOFS | __GFP_NOWARN);
	if (!served) {
		coop_iput_later(inode);
		return 0;
	}
	served->inode = inode;
	served->version = version;
	served->change = atomic64_read(&coop_i(inode)->change);
	/* Before the first page lookup; pairs with smp_mb__after_atomic() in
	 * coop_content_changes(). */
	smp_rmb();
	if (!S_ISREG(inode->i_mode) || !content_is(coop_i(inode), version, size)) {
		coop_iput_later(inode);
		kfree(served);
		return 0;
	}
	for (e = 0; e < n_ext; e++)
		for (i = 0; i < ext[e].count && ordinal < COOP_MAX_PAGES; i++, ordinal++) {
			pages[ordinal] = NULL;
			if (want & BIT_ULL(ordinal))
				pages[ordinal] = servable_page(inode->i_mapping, ext[e].index + i);
			if (pages[ordinal])
				have |= BIT_ULL(ordinal);
		}
	*cookie = served;
	trace_coopfs_serve(inode, version, ext[0].index, ordinal, have);
	return have;
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

		if (!folio_is_servable(folio) || folio->mapping != served->inode->i_mapping)
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
	coop_iput_later(served->inode);
	kfree(served);
}

static void serve_address(void *host, const struct coop_addr *self)
{
	struct coop_mount *mount = host;

	coop_storage_register(mount->storage, self);
}

const struct coop_node_ops coop_serve_ops = {
	.lookup = serve_lookup,
	.recheck = serve_recheck,
	.release = serve_release,
	.address = serve_address,
};
