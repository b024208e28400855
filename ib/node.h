/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * node.h - the node itself: the engine, its lock and its pump.
 *
 * A node has one mutex, and all its code runs in process context. A completion
 * only queues the pump. The pump polls both completion queues, feeds the engine
 * and performs the engine's work until all are empty. A spinlock would suffice
 * for the engine alone, but its work (mapping pages, page cache lookups, checksums,
 * the one copy of ib_copy) takes long, and with lines it sleeps. The pump polls
 * the completion queues itself, because the callbacks of ib_alloc_cq() would take
 * the lock for each completion. A thread that submits a fetch also performs the
 * engine's work, so that its request leaves without a context switch.
 *
 * Locks, outer first: attach_lock, lock, news_lock. The list of nodes (device.c) has one of its
 * own, under which none of them is taken. done() runs without any of them, ops->address() under
 * attach_lock only.
 *
 * Who holds lock waits neither for the device nor for memory nor for another task, because all
 * readers of the mount wait for lock, and pages that are being filled. So under it
 *
 *   - only verbs that do not sleep are called: posting, polling, requests for a notification. What
 *     changes or destroys an object of the device is left to a work, which does it without lock. A
 *     queue pair is not in use from the wish for a change until the work reports its end: nothing
 *     is posted to it, and its memory stays the device's.
 *   - memory is allocated with GFP_NOWAIT, and its lack costs a request. With lines the host may
 *     wait for memory, without I/O: only its own process waits for that node (lines.h).
 *
 * Who waits for whom:
 *
 *   a reader that begins a fetch    for lock, until a signal kills it; then for done()
 *   the pump                        for lock; the timer and completions only queue it
 *   the work of a queue pair        for lock, and without it for the device (qp_change.c)
 *   the works of address handles    the same, and for neighbours (ah.c)
 *   storage's receiver              for news_lock, a spinlock (peers.c)
 *   attach, detach                  for lock; without it for the device and works of queue pairs
 *   removal of a device, refresh    for attach_lock
 */
#ifndef COOP_IB_NODE_H
#define COOP_IB_NODE_H

#include <linux/crc32c.h>
#include <linux/hashtable.h>
#include <linux/highmem.h>
#include <linux/hrtimer.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "ib/ib.h"
#include "ib/mail.h"
#include "ib/rnic.h"

#define COOP_PEERS_MAX   (4096 + 256) /* members that this node knows, plus some by hand */
#define COOP_MEMBER_BITS 9            /* of the hash table of members */

struct coop_shards {
	u32 n;                               /* of node[], all of them once the mount is made */
	struct coop_mail out;                /* what others send through the first */
	struct coop_node *node[COOP_SHARDS]; /* the first is at the address */
};

struct coop_node {
	struct coop_node_cfg cfg;
	struct coop_shards *shards; /* NULL: it has its address alone */
	u32 shard;                  /* its number among them */
	struct coop_mail mail;      /* with shards: came to the first for this one */
	struct coop_stats *stats;
	const struct coop_node_ops *ops;
	void *host;

	struct list_head link;    /* in device.c's list of nodes */
	u32 visits;               /* of removals of devices; likewise */
	struct mutex attach_lock; /* protects attach and detach, which set 'rnic' */
	bool leaving;             /* under attach_lock: never attach again */
	bool entered;             /* under attach_lock: the host wants to know the address */

	struct mutex lock;
	struct coop_rnic *rnic;        /* NULL: no device */
	struct coop_engine *engine;    /* NULL before the first attach; kept without a device */
	struct coop_addr announced;    /* all zero: none; under attach_lock */
	u32 max_pages;                 /* of a fetch, from the engine */
	u64 timer_at;                  /* us: when the timer fires; ~0: not armed */
	bool up;                       /* the port is active and has its address */
	bool table_full;               /* the warning was printed */
	struct coop_engine_stats past; /* sum over earlier engines */
	u32 n_members;
	u64 member_salt;
	DECLARE_HASHTABLE(by_number, COOP_MEMBER_BITS); /* members, by storage's number */
	DECLARE_HASHTABLE(by_addr, COOP_MEMBER_BITS);   /* the same, by address */
	struct list_head fetches;                       /* in the engine */
	struct list_head ended;                         /* finished, wait for done() */

	spinlock_t news_lock;  /* guards the following; inside of lock */
	struct list_head news; /* of members, not yet taken: see peers.c */
	u32 n_news;
	bool news_of_all;           /* all members have left before them */
	struct work_struct members; /* on coop_ib_wq: takes the news */

	unsigned int lines_flags;       /* of memalloc_noio_save(), for lines.c */
	struct mem_cgroup *lines_outer; /* of set_active_memcg(), likewise */

	atomic_t settled; /* not 0: serves that wait must look for their pages again */
	struct workqueue_struct *wq;
	struct workqueue_struct *changes; /* of queue pairs: see qp_change.c */
	struct workqueue_struct *paths; /* resolves addresses: coop_ib_wq, or with lines its own */
	struct work_struct pump;
	struct delayed_work refresh; /* on coop_ib_wq */
	atomic_t paths_changed;      /* the next refresh retires address handles */
	struct hrtimer timer;
	wait_queue_head_t idle; /* woken when a detach made progress */

	/* With lines: a process in place of the pump; see pump.c. */
	bool helped;  /* it sleeps, and looks when it wakes */
	atomic_t due; /* not 0: a completion came, for it */
	ktime_t due_at;
	struct hrtimer help; /* the process has not come */
};

/*
 * How memory of the node is allocated. With lines it is on behalf of a process, so its memory
 * cgroup pays: the one of the caller, or set_active_memcg(node->cfg.memcg) in a worker.
 */
static inline gfp_t coop_node_gfp(const struct coop_node *node)
{
	return node->cfg.lines ? GFP_KERNEL_ACCOUNT : GFP_KERNEL;
}

static inline u64 coop_now_us(void)
{
	return (u64)ktime_to_us(ktime_get());
}

/* Converts megabits a second; 0, no limit, stays 0. */
static inline u32 coop_bytes_s(u32 mbps)
{
	return mbps * 125000;
}

/* The sum of a page's bytes for a COMMIT: tag or CRC32C, as the event asks. */
static inline u64 coop_page_sum(const struct coop_node *node, const struct coop_ev *ev, u32 ordinal,
				struct page *page)
{
	void *p = kmap_local_page(page);
	u64 sum = ev->sum == COOP_SUM_TAG ? coop_engine_tag(node->engine, ev, ordinal, p)
					  : (u32)~crc32c(~0u, p, PAGE_SIZE);

	kunmap_local(p);
	return sum;
}

/* Any context. */
static inline void coop_node_kick(struct coop_node *node)
{
	queue_work(node->wq, &node->pump);
}

/* pump.c */
void coop_pump_work(struct work_struct *work);
enum hrtimer_restart coop_pump_timer(struct hrtimer *timer);
enum hrtimer_restart coop_pump_unhelped(struct hrtimer *timer);
/* A completion queue has an entry. Any context. */
void coop_pump_completed(struct coop_node *node);
/* Performs the work of the engine, and of the host of lines, until they have none; the lock held.
 */
void coop_pump_drain(struct coop_node *node, u64 now);
/* A large fetch has begun; the lock held. */
void coop_pump_watch_data(struct coop_rnic *r);
/* Sets the timer for the next deadline; the lock held. */
void coop_pump_arm(struct coop_node *node, u64 now);
/* Calls done() of finished fetches; no lock held. */
void coop_pump_report(struct coop_node *node);

/*
 * node.c: as coop_node_create(), for one of several; and coop_node_destroy() in two steps. Only
 * when all are stopped, none has a pump any more that looks at another.
 */
struct coop_node *coop_node_create_shard(const struct coop_node_cfg *cfg, struct coop_shards *s,
					 u32 shard, struct coop_stats *stats,
					 const struct coop_node_ops *ops, void *host, char *why,
					 size_t why_size);
void coop_node_stop(struct coop_node *node);
void coop_node_end(struct coop_node *node);

/* shards.c */
/* The message is for another shard, which has it now, or it is lost. */
bool coop_shards_route(struct coop_node *node, const struct coop_addr *from, const void *buf,
		       u32 len);
/* The message has to come from the address: the first sends it. */
bool coop_shards_relay(struct coop_node *node, const struct coop_tx *tx);
/* The first one's port and address are not what they were: the others look. */
void coop_shards_moved(struct coop_node *first);
/* The port of the first shard, for another; false: it has none now. */
bool coop_shards_port(struct coop_node *node, struct coop_port *port);
/* The address of all; false: there is none now. */
bool coop_shards_address_of(struct coop_node *node, struct coop_addr *self);

/* attach.c: attach_lock held, lock not. */
int coop_node_attach(struct coop_node *node, char *why, size_t size);
/* Ends everything in flight and destroys all objects on the device. The node must be attached. */
void coop_node_detach(struct coop_node *node);
/* Calls ops->address() if the address changed since the last call. */
void coop_node_announce(struct coop_node *node);
/* The fabric address of a control QP on this port. */
void coop_rnic_address(const struct coop_rnic *r, struct coop_addr *self);

/* peers.c; the lock held. Adds the peers of the old engine (may be NULL) to the new one. */
void coop_peers_carry(struct coop_node *node, struct coop_engine *engine,
		      const struct coop_engine *old, u64 now);
/* Names the known ones among parents and openers, and with parents what they need to know. */
void coop_peers_name(struct coop_node *node, const struct coop_node_fetch *f,
		     struct coop_fetch_req *req);
void coop_peers_free(struct coop_node *node);
void coop_peers_work(struct work_struct *work); /* without the lock */

/* events.c */
void coop_refresh_work(struct work_struct *work);

#endif /* COOP_IB_NODE_H */
