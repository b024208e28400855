/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ah.h - address handles, by where they lead.
 *
 * Making one resolves the link address, sleeps, and takes seconds when nobody
 * answers. So each is made by a work of its own while the pump goes on, and a few
 * datagrams that need it wait with it: those to be sent, and those received that
 * could not be answered. What is too many is dropped, as any datagram may be.
 *
 * ib_core misses a neighbour's answer that comes before it waits for it, as it may
 * on a fast or virtual link, and looks again after a second. So a second work tries
 * soon after the first one asked, if there is no answer by then.
 *
 * An entry that could not be made is tried again after a while. One that has been
 * in use for long is made again in the background, since the link address may
 * have moved. When the port's address changes all are retired: a retired entry
 * ends when no send needs it any more.
 */
#ifndef COOP_IB_AH_H
#define COOP_IB_AH_H

#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "rpc/fetch/engine.h"

#define COOP_AH_BUCKETS 256
#define COOP_AH_MAX     4096 /* entries; the one not used for longest makes room */
#define COOP_AH_WAITING 8    /* datagrams of each direction that wait for one entry */

struct coop_rnic;

struct coop_ah {
	struct hlist_node hash; /* unhashed: retired */
	struct list_head link;  /* cache->all, in order of use, or cache->retired */
	struct coop_rnic *rnic;
	struct work_struct first; /* make it, one or the other */
	struct delayed_work second;
	u8 gid[16];
	u16 lid;
	u8 sl;
	bool wanted;           /* by the works; neither has an answer */
	u32 making;            /* works that are queued or run: they pin it */
	struct ib_ah *ib;      /* NULL: not there (yet) */
	struct ib_ah *renewed; /* takes its place when it has no users */
	u32 users;             /* sends posted with ib and not complete */
	u64 made_us;           /* or failed */
	u32 n_send, n_recv;
	u16 send[COOP_AH_WAITING]; /* control buffers; their destination is in the ring */
	u16 recv[COOP_AH_WAITING];
};

struct coop_ah_cache {
	struct hlist_head bucket[COOP_AH_BUCKETS];
	struct list_head all, retired;
	u32 n;
};

/* All but destroy: the node's lock held, no sleep but for memory. */
void coop_ah_cache_init(struct coop_ah_cache *c);
/*
 * The entry for an address; ah->ib is NULL and ah->wanted set while it is being made. NULL: it
 * could not be made, or there is no room.
 */
struct coop_ah *coop_ah_get(struct coop_rnic *r, const struct coop_addr *to, u64 now);
/* The entry, if there is one; none is made. */
struct coop_ah *coop_ah_find(struct coop_rnic *r, const struct coop_addr *to);
/* An entry to that port, whatever its service level, for which messages of it wait. */
struct coop_ah *coop_ah_line(struct coop_rnic *r, const struct coop_addr *from);
/* A send that uses it was posted, or completed. */
void coop_ah_hold(struct coop_ah *ah);
void coop_ah_put(struct coop_rnic *r, struct coop_ah *ah);
/* From now on all are made anew. */
void coop_ah_retire_all(struct coop_rnic *r);
/* The queue pairs are gone, r->closing is set, the lock is not held: waits for the works. */
void coop_ah_cache_destroy(struct coop_rnic *r);

int coop_ah_init(void);
void coop_ah_exit(void);
extern struct workqueue_struct *coop_ib_wq; /* works that may take seconds */

#endif /* COOP_IB_AH_H */
