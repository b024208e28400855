/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * stale.h - what ESTALE about a directory means: it was removed, or storage has lost its handle.
 *
 * What was removed has no names, and a program may take that as final: one that copies a tree
 * deletes the copy. So a client shows a directory as removed only if that is proved: storage has
 * told a link count of 0, or ESTALE is itself a proof. It is one where handles are not paths and
 * the export's root is found by its own, older one: then the key of the handles is still the same,
 * and the file system has no such file any more. A path may just lead elsewhere by now.
 *
 * Both are in the answer to LOOKUP of ".." in the export's root.
 */
#ifndef COOP_STORAGE_STALE_H
#define COOP_STORAGE_STALE_H

#include "rpc/base/host.h"

/* answer: to that LOOKUP, sent after the ESTALE; 0 or -errno. */
static inline bool coop_st_stale_proves(int answer)
{
	/* Where handles are paths: EOPNOTSUPP. Without the key, or the root: ESTALE. */
	return !answer || answer == -EINVAL;
}

#endif /* COOP_STORAGE_STALE_H */
