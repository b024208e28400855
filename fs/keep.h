/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * keep.h - pages from storage stay longer than others when the kernel reclaims memory.
 */
#ifndef COOP_FS_KEEP_H
#define COOP_FS_KEEP_H

#include <linux/mm.h>

/*
 * The private word of a clean folio that was filled from storage. write.c owns the word, and has
 * another one in a dirty folio: whatever makes the folio dirty replaces this.
 */
#define COOP_KEEP_WORD ((void *)~0ul)

/* The folio, which is locked, holds bytes that peers may ask for, and they came from storage. */
static inline void coop_keep_mark(struct folio *folio)
{
	if (!folio_test_private(folio))
		folio_attach_private(folio, COOP_KEEP_WORD);
}

/*
 * Shall this clean folio, which is locked and about to be released, stay in memory? True at most
 * once after coop_keep_mark(): the caller takes the word off whatever the answer is.
 */
bool coop_keep_once(struct folio *folio);

#endif /* COOP_FS_KEEP_H */
