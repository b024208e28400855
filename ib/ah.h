/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ah.h - the cache of address handles, by destination and flow (rpc/base/flow.h).
 *
 * Messages go by flow 0; data by all of them, but for a flow whose handle is not there yet. So no
 * datagram waits for another handle than that of flow 0.
 *
 * Creating a handle resolves the link address, which sleeps, and takes seconds
 * if the neighbour does not answer. So each entry has works of its own that
 * create the handle while the pump goes on. A few datagrams wait in the entry:
 * some to be sent, and some received that we could not answer yet. Further ones
 * are dropped, which the protocol allows for any datagram.
 *
 * ib_core misses a neighbour's answer that arrives before ib_core waits for it,
 * which happens on a fast or virtual link, and looks again only after a second.
 * So a second work tries soon after the first, if there is no answer by then.
 *
 * A failed entry is tried again after a while. An entry that has been in use for
 * long is renewed in the background, because the link address may have moved; if
 * sends use it then, another entry takes its place. When the port's address
 * changes, all entries are retired. A retired entry is spent when no send needs
 * it any more. A work destroys the handles of spent entries, because a device may
 * take long for that, and readers wait for the node's lock.
 *
 * A device has a limited number of handles. All entries count, also spent ones, and
 * those that are being resolved count twice, because both works may make a handle.
 * There is a new entry only if both fit, a second work only if its handle fits, and an
 * entry is renewed when there is room for that. So if the device destroys handles more
 * slowly than new ones are asked for, there are no new entries for a while.
 */
#ifndef COOP_IB_AH_H
#define COOP_IB_AH_H

#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "rpc/base/flow.h"
#include "rpc/fetch/engine.h"

#define COOP_AH_BUCKETS 1024
#define COOP_AH_MAX     (4096 * COOP_FLOWS) /* entries of a device, or fewer if it says so */
#define COOP_AH_DATA    0x8000
#define COOP_AH_WAITING 8 /* datagrams of each direction that wait for one entry */

struct coop_rnic;

struct coop_ah {
	struct hlist_node hash; /* unhashed: retired */
	struct list_head link;  /* cache->all, in order of use, ->retired or ->spent */
	struct coop_rnic *rnic;
	struct work_struct first; /* either work may create 'ib' */
	struct delayed_work second;
	u8 gid[16];
	u16 lid;
	u8 sl;
	u8 flow;
	bool wanted;      /* the works are creating it; neither has a result */
	u32 making;       /* works that are queued or run: they pin the entry */
	struct ib_ah *ib; /* NULL: not resolved (yet) */
	u32 users;        /* sends posted with 'ib' and not complete */
	u64 made_us;      /* when it was last created, or failed */
	u32 n_send, n_recv;
	/* Control buffers, and with COOP_AH_DATA those of rnic->data; their destination is there.
	 */
	u16 send[COOP_AH_WAITING];
	u16 recv[COOP_AH_WAITING];
};

struct coop_ah_cache {
	struct hlist_head bucket[COOP_AH_BUCKETS];
	struct list_head all, retired, spent;
	struct work_struct reap; /* frees what is spent */
	u32 n;                   /* in 'all': a new entry evicts the least recently used */
	u32 n_exist;             /* in any list, or being freed */
	u32 n_making;            /* entries that are being resolved */
	u32 most;                /* n_exist + n_making */
};

/* All but init and destroy: the node's lock held; they do not sleep. */
void coop_ah_cache_init(struct coop_rnic *r);
/*
 * The entry for an address and flow 0, created if necessary. While it is being resolved ah->ib is
 * NULL and ah->wanted set. NULL: resolution failed lately, or there is no room.
 */
struct coop_ah *coop_ah_get(struct coop_rnic *r, const struct coop_addr *to, u64 now);
/* The same for data from the queue pair with this number: of its flow, if that is resolved. */
struct coop_ah *coop_ah_of_data(struct coop_rnic *r, const struct coop_addr *to, u32 own_qpn,
				u64 now);
/* The existing entry for an address and flow 0, or NULL. */
struct coop_ah *coop_ah_find(struct coop_rnic *r, const struct coop_addr *to);
/* An entry for that port, of any service level, in which messages from the port wait. */
struct coop_ah *coop_ah_line(struct coop_rnic *r, const struct coop_addr *from);
/* A send that uses it was posted (hold), or completed (put). */
void coop_ah_hold(struct coop_ah *ah);
void coop_ah_put(struct coop_rnic *r, struct coop_ah *ah);
/* Retires all entries: later calls create new ones. */
void coop_ah_retire_all(struct coop_rnic *r);
/* The queue pairs are gone, r->closing is set, the lock is not held: waits for the works. */
void coop_ah_cache_destroy(struct coop_rnic *r);

int coop_ah_init(void);
void coop_ah_exit(void);
extern struct workqueue_struct *coop_ib_wq; /* works that may take seconds */

#endif /* COOP_IB_AH_H */
