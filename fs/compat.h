/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * compat.h - the one place that knows kernel versions.
 *
 * The module is written against Linux 6.1 (Debian 12). What later kernels call
 * otherwise is given its 6.1 meaning here.
 */
#ifndef COOP_FS_COMPAT_H
#define COOP_FS_COMPAT_H

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/uio.h>
#include <linux/version.h>
#include <net/sock.h>

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

/*
 * A kernel's socket has no reference to its network namespace, but TCP goes on for a while after
 * the socket was closed. Before the socket is locked or connected.
 */
static inline void coop_sock_hold_net(struct sock *sk)
{
	struct net *net = sock_net(sk);

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	__netns_tracker_free(net, &sk->ns_tracker, false);
#endif
	sk->sk_net_refcnt = 1;
	get_net_track(net, &sk->ns_tracker, GFP_NOFS);
	sock_inuse_add(net, 1);
}

/* What keeps the pages of a caller's memory. */
enum coop_hold {
	COOP_HOLD_CALLER, /* the caller itself, until the I/O is over */
	COOP_HOLD_REF,    /* a reference each */
	COOP_HOLD_PIN,    /* a pin each: whoever looks at such a page knows that bytes may come */
};

/*
 * The pages of the iterator's next bytes, at most so many of each, and moves it on. Pins those of
 * user memory. Return: bytes from *offset in the first page on, or -errno.
 */
static inline ssize_t coop_iter_hold(struct iov_iter *iter, struct page **pages, size_t most,
				     u32 max_pages, size_t *offset, enum coop_hold *hold)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	*hold = iov_iter_extract_will_pin(iter) ? COOP_HOLD_PIN : COOP_HOLD_CALLER;
	return iov_iter_extract_pages(iter, &pages, most, max_pages, 0, offset) ?: -EFAULT;
#else
	unsigned int gup = iov_iter_rw(iter) == READ ? FOLL_WRITE : 0;
	size_t skip = iter->iov_offset, len = 0, bytes;
	unsigned long at = 0, k;
	int got;

	if (!user_backed_iter(iter)) {
		*hold = COOP_HOLD_REF;
		return iov_iter_get_pages2(iter, pages, most, max_pages, offset) ?: -EFAULT;
	}
	*hold = COOP_HOLD_PIN;
	if (iter_is_ubuf(iter)) {
		at = (unsigned long)iter->ubuf + skip;
		len = iter->count;
	} else {
		for (k = 0; k < iter->nr_segs && !len; k++, skip = 0) {
			at = (unsigned long)iter->iov[k].iov_base + skip;
			len = iter->iov[k].iov_len - skip;
		}
	}
	len = min3(len, most, iter->count);
	*offset = offset_in_page(at);
	if (iter->nofault)
		gup |= FOLL_NOFAULT;
	got = pin_user_pages_fast(at & PAGE_MASK,
				  min_t(size_t, DIV_ROUND_UP(*offset + len, PAGE_SIZE), max_pages),
				  gup, pages);
	if (got <= 0)
		return got ?: -EFAULT;
	bytes = min_t(size_t, len, got * PAGE_SIZE - *offset);
	iov_iter_advance(iter, bytes);
	return bytes;
#endif
}

#endif /* COOP_FS_COMPAT_H */
