// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * keep.c - pages from storage stay longer than others when the kernel reclaims memory.
 *
 * The kernel drops a page that was read once before any other. If this node read it from storage,
 * no other node may have it, and the next reader would get it from storage again. So such a page
 * has a second chance: the first time that the kernel is about to drop it, release_folio refuses.
 * The kernel then takes the page for one in use: it moves it to the active list, or to the youngest
 * generation, and drops it there after pages that were read once. A page that came from a peer has
 * no second chance, because that peer has it.
 *
 * We do not call folio_mark_accessed() instead when the page arrives. Two calls activate a page in
 * lists, but do nothing in generations. They would also decide when nobody knows yet how much
 * memory is left.
 *
 * The node's own working set comes first. If more pages of files were active than inactive, the
 * kernel would make the oldest active ones inactive, and they might be those that programs here
 * read again and again. So a page stays only while the active ones are clearly fewer: their numbers
 * swing with each round of the reclaim. It also stays only while the inactive ones have a sensible
 * share of the machine's memory: when programs need that memory, everything goes at once. Each page
 * is refused once, so the reclaim always proceeds.
 */
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/vmstat.h>

#include "fs/keep.h"

/* Memory is short if the inactive pages of files are less than this part of it. */
#define KEEP_PART 16

/* Dropping caches, invalidation and migration release folios, too. */
static bool reclaims(void)
{
	return current->flags & PF_MEMALLOC;
}

static bool is_ample(void)
{
	const unsigned long active = global_node_page_state(NR_ACTIVE_FILE);
	const unsigned long inactive = global_node_page_state(NR_INACTIVE_FILE);

	return 4 * active < 3 * inactive && inactive > totalram_pages() / KEEP_PART;
}

bool coop_keep_once(struct folio *folio)
{
	return folio_get_private(folio) == COOP_KEEP_WORD && reclaims() && is_ample();
}
