/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * compat.h - the one place that knows kernel versions.
 *
 * The module is written against Linux 6.1 (Debian 12). What later kernels call
 * otherwise is given its 6.1 meaning here.
 */
#ifndef COOP_FS_COMPAT_H
#define COOP_FS_COMPAT_H

#include <linux/pagemap.h>
#include <linux/version.h>

/* A folio that is in the cache, with a reference, or NULL; never waits, never makes one. */
static inline struct folio *coop_filemap_peek(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = __filemap_get_folio(mapping, index, 0, 0);

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	if (IS_ERR(folio))
		return NULL;
#endif
	return folio;
}

#endif /* COOP_FS_COMPAT_H */
