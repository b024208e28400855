// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * bundle_learn.c - takes what a bundle says, as if storage had replied it.
 *
 * Attributes and leases go through the same functions as those of any reply, with the ticket of
 * BUNDLE. All else in the bundle is vouched for by the lease that came with it, file by file:
 * coop_lease_within() says whether nothing has happened to the file since BUNDLE was sent, and
 * gives the ticket of names, listings and rights. Rights are those of the user for whom storage
 * made the bundle, with these groups, and of no other.
 *
 * Contents become pages only while the inode's content has the version in the bundle. The check is
 * made under the page's lock, for which a change of the version has to wait.
 */
#include <linux/highmem.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "fs/fs.h"
#include "rpc/storage/bundle.h"

#define PART_BYTES (COOP_LIST_PAGES * PAGE_SIZE)

struct learner {
	struct coop_mount *mount;
	struct coop_bundle_bytes *from;
	struct coop_bundle at;
	struct coop_st_body *body; /* the record read last */
	struct coop_st_bytes content;
	u32 believed; /* directories */
	/* the directory at work */
	struct inode *dir;        /* NULL: none */
	u64 ticket;               /* 0: it is not believed */
	struct coop_names *names; /* NULL: none are kept */
	u8 *part;                 /* entries for its listing; NULL: none are kept */
	u32 part_len;
	u64 part_cookie, next_cookie;
};

static int learner_next(struct learner *l)
{
	return coop_bundle_next(&l->at, l->body, &l->content);
}

/* A bundle is believed as a whole or not at all. */
static bool well_formed(struct learner *l)
{
	int what;

	if (coop_bundle_begin(&l->at, l->from->bytes, l->from->size))
		return false;
	do
		what = learner_next(l);
	while (what > COOP_BUNDLE_END);
	return what == COOP_BUNDLE_END && !coop_bundle_begin(&l->at, l->from->bytes, l->from->size);
}

/* ---- contents --------------------------------------------------------------------- */

static struct folio *folio_of(struct address_space *mapping, const u8 *bytes, u32 n)
{
	struct folio *folio = filemap_alloc_folio(readahead_gfp_mask(mapping), 0);

	if (!folio)
		return NULL;
	memcpy_to_page(folio_page(folio, 0), 0, bytes, n);
	if (n < PAGE_SIZE)
		zero_user_segment(folio_page(folio, 0), n, PAGE_SIZE);
	return folio;
}

/* Adds one page where the page cache has none. Returns the bytes that it has added. */
static u32 add_page(struct inode *inode, u64 version, u32 index, const u8 *bytes, u32 n)
{
	struct address_space *mapping = inode->i_mapping;
	struct folio *folio = coop_filemap_peek(mapping, index);
	struct coop_inode *ci = coop_i(inode);
	bool same = false;

	if (folio) {
		folio_put(folio);
		return 0;
	}
	folio = folio_of(mapping, bytes, n);
	if (!folio)
		return 0;
	if (!filemap_add_folio(mapping, folio, index, readahead_gfp_mask(mapping))) {
		spin_lock(&ci->lock);
		same = ci->version == version;
		spin_unlock(&ci->lock);
		if (same)
			folio_mark_uptodate(folio);
		folio_unlock(folio);
	}
	folio_put(folio);
	return same ? n : 0;
}

static void learn_content(struct inode *inode, u64 version, const struct coop_st_bytes *content)
{
	struct address_space *mapping = inode->i_mapping;
	struct coop_inode *ci = coop_i(inode);
	u32 at, n, kept = 0;

	/* As an open would do, where there is nothing to drop. */
	if (READ_ONCE(ci->version) != version && !mapping->nrpages)
		coop_content_settle(inode);
	/* No task drops pages of the file meanwhile, and we wait for none that does. */
	if (READ_ONCE(ci->version) != version || !filemap_invalidate_trylock_shared(mapping))
		return;
	for (at = 0; at < content->len; at += n) {
		n = min_t(u32, PAGE_SIZE, content->len - at);
		kept += add_page(inode, version, at >> PAGE_SHIFT, content->p + at, n);
	}
	filemap_invalidate_unlock_shared(mapping);
	/* Its bytes were counted when the bundle came. */
	atomic64_add(kept, &ci->fetched);
}

/* ---- entries ---------------------------------------------------------------------- */

static void part_keep(struct learner *l, bool end)
{
	coop_listing_keep(l->dir, l->ticket, l->part_cookie, l->part, l->part_len, end);
	l->part_cookie = l->next_cookie;
	l->part_len = 0;
}

static void part_add(struct learner *l)
{
	int n;

	if (!l->part || !l->ticket)
		return;
	n = coop_st_dirent_put(l->body, l->part + l->part_len, PART_BYTES - l->part_len);
	if (n < 0) {
		part_keep(l, false);
		n = coop_st_dirent_put(l->body, l->part, PART_BYTES);
	}
	if (n > 0)
		l->part_len += n;
	l->next_cookie = l->body->cookie;
}

static void learn_file(struct learner *l)
{
	const struct coop_st_body *e = l->body;
	struct inode *inode = coop_iget(l->mount->sb, &e->attr, e->fh.p, e->fh.len, l->from->asked);
	u64 ticket;

	if (IS_ERR(inode))
		return;
	if (e->text.len && !READ_ONCE(inode->i_link))
		(void)coop_link_keep(inode, &e->text);
	ticket = e->flags & COOP_BUNDLE_READ ? coop_lease_within(inode, l->from->asked) : 0;
	if (ticket) {
		learn_content(inode, e->attr.version, &l->content);
		if (!(e->attr.has & COOP_ST_HAS_ASK_OPEN))
			coop_lease_allow(inode, l->from->who, COOP_MAY_READ, ticket);
		l->from->files++;
	}
	iput(inode);
}

static void learn_entry(struct learner *l)
{
	const struct coop_st_body *e = l->body;
	const bool leased = e->attr.has & COOP_ST_HAS_LEASE;

	part_add(l);
	if (l->names)
		coop_names_add(l->names, &e->name, leased ? &e->attr.fid : NULL);
	if (leased)
		learn_file(l);
}

/* ---- directories ------------------------------------------------------------------ */

/* For the 'count' names that come next. */
static struct coop_names *names_ahead(struct learner *l, u32 count)
{
	const struct coop_bundle here = l->at;
	u32 i, bytes = 0;

	for (i = 0; i < count && learner_next(l) == COOP_BUNDLE_ENTRY; i++)
		bytes += l->body->name.len;
	l->at = here;
	return i == count ? coop_names_alloc(count, bytes) : NULL;
}

static void directory_begin(struct learner *l)
{
	const struct coop_st_body *d = l->body;
	struct coop_bundle_bytes *from = l->from;
	u32 rights = 0;

	l->ticket = 0;
	l->part_len = 0;
	l->part_cookie = 0;
	l->next_cookie = 0;
	l->dir = coop_iget(l->mount->sb, &d->attr, d->fh.p, d->fh.len, from->asked);
	if (IS_ERR(l->dir)) {
		l->dir = NULL;
		return;
	}
	l->ticket = coop_lease_within(l->dir, from->asked);
	if (!l->ticket)
		return;
	l->believed++;
	from->had |= d->attr.fid.hi == from->sought.hi && d->attr.fid.lo == from->sought.lo;
	if (d->flags & COOP_BUNDLE_SEARCH)
		rights |= COOP_MAY_SEARCH;
	if (d->flags & COOP_BUNDLE_LIST)
		rights |= COOP_MAY_LIST;
	if (rights)
		coop_lease_allow(l->dir, from->who, rights, l->ticket);
}

static void directory_end(struct learner *l)
{
	if (l->part && l->ticket)
		part_keep(l, true);
	if (l->names)
		coop_names_keep(l->dir, l->names, l->ticket);
	l->names = NULL;
	if (l->dir)
		iput(l->dir);
	l->dir = NULL;
}

/* The directory's record was read. */
static void learn_directory(struct learner *l)
{
	u32 left = l->body->count;

	directory_begin(l);
	l->names = l->ticket ? names_ahead(l, left) : NULL;
	for (; left && learner_next(l) == COOP_BUNDLE_ENTRY; left--) {
		learn_entry(l);
		cond_resched();
	}
	directory_end(l);
}

int coop_bundle_learn(struct coop_mount *m, struct coop_bundle_bytes *b)
{
	struct learner *l = kzalloc(sizeof(*l), GFP_KERNEL);
	int err = -ENOMEM;

	if (!l)
		return -ENOMEM;
	l->mount = m;
	l->from = b;
	l->body = kmalloc(sizeof(*l->body), GFP_KERNEL);
	if (!l->body)
		goto out;
	err = -EPROTO;
	if (!well_formed(l))
		goto out;
	b->taken = true;
	l->part = kmalloc(PART_BYTES, GFP_KERNEL | __GFP_NOWARN);
	while (learner_next(l) == COOP_BUNDLE_DIRECTORY)
		learn_directory(l);
	err = l->believed ? 0 : -ESTALE;
out:
	kfree(l->part);
	kfree(l->body);
	kfree(l);
	return err;
}
