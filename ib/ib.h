/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ib.h - a mount's node on the fabric, as the file system sees it.
 *
 * A node is one engine (rpc/fetch/engine.h), one pool of UD queue pairs on one
 * port of one RDMA device, and the work that moves completions to the engine and
 * the engine's orders to the device. ib/ never sees an inode, and the file system
 * never sees ib_verbs.h. State is per node, never global: one kernel can have two
 * nodes, even on one device.
 *
 * The device can be removed at any moment and come back. Without a device the
 * node stays, fetches fail with -ENODEV, and the mount continues over storage.
 * All requests in flight end before the removal completes: no page is unlocked
 * while a queue pair may still write to it.
 *
 * Ownership: pages given to coop_node_fetch() belong to the network until done()
 * runs. The network reads pages that lookup() returned until release().
 */
#ifndef COOP_IB_H
#define COOP_IB_H

#include <linux/mm_types.h>

#include "rpc/fetch/engine.h"
#include "stats/stats.h"

#define COOP_DEVNAME_MAX 64
#define COOP_PARENTS     4 /* asked first: parent and alternate, or nodes that storage names */
/* Megabits a second; the engine counts bytes a second in 32 bits. */
#define COOP_SERVE_MBPS_MAX (U32_MAX / 125000)

struct coop_node;
struct coop_lines_ops;
struct mem_cgroup;
struct net;

struct coop_node_cfg {
	char devname[COOP_DEVNAME_MAX]; /* empty: the first device with an active port */
	u32 port;                       /* 0: the first active one */
	int gid_index;                  /* -1: choose RoCE v2 IPv4, then RoCE v2, else 0 */
	u8 addr[16]; /* not all zero: choose the GID that is this address (v4-mapped) */
	u32 sl;
	u32 tclass; /* traffic class: DSCP and ECN bits of RoCE v2, as far as there is a GRH */
	u32 pkey;   /* of the partition; 0: the port's first */
	u32 qkey;   /* the node sets bit 31: a controlled Q_Key; with lines it clears the bit */
	u32 mtu;    /* 0: the port's active MTU */
	u32 num_rrpc, num_srpc;
	u32 peer_timeout_ms;
	u32 silence_us; /* as in coop_engine_cfg */
	u32 serve_mbps; /* up to COOP_SERVE_MBPS_MAX; 0: no limit */
	bool page_crc, page_mac;
	bool copy; /* ib_copy: private receive buffers and one verified copy */
	u8 fabric_key[16];
	struct net *net;
	const struct coop_lines_ops *lines; /* see lines.h; NULL: none */
	struct mem_cgroup *memcg;           /* with lines: pays for memory; outlives the node */
};

/* What lookup() found. A bit per ordinal over the extents. */
struct coop_found {
	struct page *
		*pages; /* by ordinal, COOP_MAX_PAGES, NULL; those in 'have' with a reference */
	u64 have;
	u64 coming;   /* on their way here by a load of a smaller level than that of the request */
	u64 size;     /* bytes of the file */
	void *cookie; /* for more(), recheck() and release() */
	bool later;   /* cannot say now: the requester shall ask again; nothing else is set */
};

/*
 * The node's callbacks into the file system, under its lock, for which readers wait: they must not
 * wait for memory, for a page lock, for writeback, or for the network. (Those of a host of lines
 * may wait for memory: nobody but its process waits for that lock.)
 */
struct coop_node_ops {
	/*
	 * Finds pages of exactly (ev->fid, ev->version), those of ev->pages. Rule 11: only folios
	 * that are uptodate, clean, unlocked and not under writeback. If the request may wait
	 * (ev->level), it also names pages that are on their way here.
	 */
	void (*lookup)(void *host, const struct coop_ev *ev, struct coop_found *found, u64 now);
	/*
	 * After coop_node_settled(), for a lookup with pages coming. Returns those of 'coming' that
	 * are still on their way. Adds those that have arrived to pages[], with a reference each,
	 * and to *arrived.
	 */
	u64 (*more)(void *host, void *cookie, struct page **pages, u64 coming, u64 *arrived);
	/* Returns the pages of 'have' that did not change since lookup(). */
	u64 (*recheck)(void *host, void *cookie, struct page *const *pages, u64 have);
	/*
	 * Drops the references that lookup() and more() took; not called with have == 0 and
	 * cookie == NULL.
	 */
	void (*release)(void *host, void *cookie, struct page **pages, u64 have);
	/*
	 * The node's address changed (NULL: no address, because the device or its link is gone).
	 * mbps: what the node can send, megabits a second; 0: unknown.
	 * The file system registers it at storage. Not called during destroy.
	 */
	void (*address)(void *host, const struct coop_addr *self, u32 mbps);
};

/* One fetch. The caller provides the memory and does not touch it until done(). */
struct coop_node_fetch {
	struct coop_fid fid;
	u64 version;
	u64 size;    /* bytes of the file at that version */
	u64 index;   /* page index of pages[0]; the others follow without a gap */
	u32 n_pages; /* 1 .. COOP_MAX_PAGES, within one aligned run of COOP_MAX_PAGES */
	u64 want;    /* bit i: pages[i] is wanted; pages[] may be NULL elsewhere */
	struct page *pages[COOP_MAX_PAGES];
	/* Node ids of the storage daemon. */
	u32 n_openers;
	u32 openers[COOP_MAX_HINTS];
	u32 parents[COOP_PARENTS];    /* asked first, in this order; 0: none */
	const struct coop_addr *from; /* not NULL: ask this node only, see lines.h */
	/* With parents, which let the fetch wait for pages on their way to them: */
	u32 level;     /* of the load that the fetch is for */
	bool load;     /* they shall load what they lack */
	bool relay;    /* peers may wait for this fetch */
	u32 budget_us; /* with parents or from: over all peers; 0: peer_timeout_ms */
	/*
	 * Worker context, may sleep, no lock of the node held. good: pages that hold exactly
	 * this version's bytes, zeroed past the end of the file. err: why pages are missing.
	 */
	void (*done)(struct coop_node_fetch *f, u64 good, int err);
	/* private to the node */
	struct coop_node *node;
	u32 id;    /* the engine's */
	u32 slot;  /* COOP_NONE until receives were posted */
	u64 asked; /* the pages of 'want' that the fetch asks for, within the engine's limits */
	u64 good;
	int err;
	struct list_head link;
};

/* Module load and unload: the ib_client. Context: may sleep. */
int coop_ib_init(void);
void coop_ib_exit(void);

/**
 * coop_node_create - join the fabric
 * @cfg: copied
 * @stats: the mount's counters, outlives the node
 * @ops: the file system's callbacks, called with @host
 * @why: on failure, what is wrong and what to do, for the mount's log; at least 128 bytes
 * @why_size: of @why
 * Context: may sleep.
 * Return: the node, or ERR_PTR: -ENODEV (no such device or port), -EADDRNOTAVAIL (no such GID),
 * -EINVAL (the device cannot hold so many queue pairs or WRs, MTU, no such P_Key), -EAGAIN (with
 * lines: the limit of the process's rdma cgroup), -ENOMEM.
 */
struct coop_node *coop_node_create(const struct coop_node_cfg *cfg, struct coop_stats *stats,
				   const struct coop_node_ops *ops, void *host, char *why,
				   size_t why_size);
/*
 * Leaves the fabric: ends every fetch (done() runs), releases every serve, and destroys all
 * queue pairs. Context: may sleep; not from ops or done().
 */
void coop_node_destroy(struct coop_node *node);

/*
 * Starts a fetch. 0, or an error, after which done() does not run: -EAGAIN (too many in flight),
 * -ENOENT (no usable peer), -ENODEV (no device now), -EINTR (a signal kills this process). Context:
 * may sleep.
 */
int coop_node_fetch(struct coop_node_fetch *f, struct coop_node *node);

/* Ends all fetches early; done() follows for each. Context: may sleep. */
void coop_node_cancel(struct coop_node *node);

/* Pages that a serve waits for have arrived, or will not come. Any context. */
void coop_node_settled(struct coop_node *node);

/* Most pages of one fetch; fewer than COOP_MAX_PAGES where the MTU is small. */
u32 coop_node_max_pages(const struct coop_node *node);

/* Own control address; false while there is no device. */
bool coop_node_self(struct coop_node *node, struct coop_addr *self);
/* What the node can send, megabits a second; 0: unknown. Context: may sleep. */
u32 coop_node_mbps(struct coop_node *node);
/*
 * Calls ops->address() with the node's address for the first time; later changes follow by
 * themselves. Call it once the host can process coop_node_join().
 */
void coop_node_enter(struct coop_node *node);

/*
 * Storage's new run has another fabric key: what is under way with the old one ends, done()
 * follows. The same key: no effect. Context: may sleep.
 */
void coop_node_rekey(struct coop_node *node, const u8 key[16]);

/* The storage daemon's pushes about members. Any context but interrupts: they wait for nothing. */
void coop_node_join(struct coop_node *node, u32 node_id, const struct coop_addr *addr);
void coop_node_leave(struct coop_node *node, u32 node_id);
void coop_node_forget_all(struct coop_node *node);
/* The address of a member; false: unknown. */
bool coop_node_address(struct coop_node *node, u32 node_id, struct coop_addr *addr);
/* Adds a peer by hand: 0, -EINVAL (own address), -ENOSPC. */
int coop_node_add_by_hand(struct coop_node *node, const struct coop_addr *addr);

/* For /proc: as the engine's functions of the same names. *cursor starts at 0. */
bool coop_node_peer_next(struct coop_node *node, u32 *cursor, struct coop_peer_info *info);
bool coop_node_peer_at(struct coop_node *node, const struct coop_addr *addr,
		       struct coop_peer_info *info);
bool coop_node_request_next(struct coop_node *node, u32 *cursor, struct coop_request_info *info);
void coop_node_engine_stats(struct coop_node *node, struct coop_engine_stats *stats);
void coop_node_reset_stats(struct coop_node *node);
/* Device, port, GID index, MTU in force, or "no device": one line, no newline. */
void coop_node_describe(struct coop_node *node, char *buf, size_t size);
/* Sets the options that remount can change. */
void coop_node_tune(struct coop_node *node, u32 peer_timeout_ms, u32 serve_mbps);

/* ---- a mount's engines --------------------------------------------------------------------------
 */

/*
 * What the file system calls: several nodes behind one address, so that several processors share
 * the work of one mount; see shards.c. With one shard every call goes to the one node.
 */
struct coop_shards;

/*
 * As the functions of a node above. n: 1 .. COOP_SHARDS; fewer are made where
 * cfg->num_srpc, num_rrpc or serve_mbps, which they share, are too few. cfg->serve_mbps is for all
 * together.
 */
struct coop_shards *coop_shards_create(const struct coop_node_cfg *cfg, u32 n,
				       struct coop_stats *stats, const struct coop_node_ops *ops,
				       void *host, char *why, size_t why_size);
void coop_shards_destroy(struct coop_shards *s);
int coop_shards_fetch(struct coop_node_fetch *f, struct coop_shards *s);
void coop_shards_cancel(struct coop_shards *s);
void coop_shards_settled(struct coop_shards *s);
u32 coop_shards_max_pages(const struct coop_shards *s);
bool coop_shards_self(struct coop_shards *s, struct coop_addr *self);
void coop_shards_enter(struct coop_shards *s);
void coop_shards_rekey(struct coop_shards *s, const u8 key[16]);
void coop_shards_join(struct coop_shards *s, u32 node_id, const struct coop_addr *addr);
void coop_shards_leave(struct coop_shards *s, u32 node_id);
void coop_shards_forget_all(struct coop_shards *s);
bool coop_shards_address(struct coop_shards *s, u32 node_id, struct coop_addr *addr);
int coop_shards_add_by_hand(struct coop_shards *s, const struct coop_addr *addr);
/* A peer of the first shard, with the sums of all; the worst health, the best round trip. */
bool coop_shards_peer_next(struct coop_shards *s, u32 *cursor, struct coop_peer_info *info);
bool coop_shards_request_next(struct coop_shards *s, u32 *cursor, struct coop_request_info *info);
void coop_shards_engine_stats(struct coop_shards *s, struct coop_engine_stats *stats);
void coop_shards_reset_stats(struct coop_shards *s);
void coop_shards_describe(struct coop_shards *s, char *buf, size_t size);
void coop_shards_tune(struct coop_shards *s, u32 peer_timeout_ms, u32 serve_mbps);

#endif /* COOP_IB_H */
