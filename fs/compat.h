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

#endif /* COOP_FS_COMPAT_H */
