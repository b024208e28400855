/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ib.h - a mount's node on the fabric, as the file system sees it.
 *
 * A node is one engine (rpc/fetch/engine.h), one pool of UD queue pairs on one port of
 * one RDMA device, and the work that moves completions to the engine and the
 * engine's orders to the device. Nothing here knows an inode; nothing of the file
 * system knows ib_verbs.h. State is per node, never global: two nodes can live in
 * one kernel, on one device.
 *
 * The device can go at any moment (hot removal) and come back. While it is gone
 * the node stays, fetches are refused with -ENODEV and the mount goes on over
 * storage. All that was in flight ends first, by the rules: a page is never left
 * to a queue pair that still may write to it.
 *
 * Ownership: pages given to coop_node_fetch() belong to the network until done()
 * runs. Pages that a lookup() returned are read by the network until release().
 */
#ifndef COOP_IB_H
#define COOP_IB_H

#include <linux/mm_types.h>

#include "rpc/fetch/engine.h"
#include "stats/stats.h"

#define COOP_DEVNAME_MAX 64
/* Megabits a second: bytes a second fit 32 bits, as the engine counts them. */
#define COOP_SERVE_MBPS_MAX (U32_MAX / 125000)

struct coop_node;
struct net;

struct coop_node_cfg {
	char devname[COOP_DEVNAME_MAX]; /* empty: the first device with an active port */
	u32 port;                       /* 0: the first active one */
	int gid_index;                  /* -1: chosen: RoCE v2 IPv4, then RoCE v2, else 0 */
	u8 addr[16]; /* not all zero: the GID index that holds this address (v4-mapped) */
	u32 sl;
	u32 pkey; /* of the partition; 0: the port's first */
	u32 qkey; /* bit 31 is set by the node: a controlled Q_Key */
	u32 mtu;  /* 0: the port's active MTU */
	u32 num_rrpc, num_srpc;
	u32 peer_timeout_ms;
	u32 serve_mbps; /* up to COOP_SERVE_MBPS_MAX; 0: no limit */
	bool page_crc, page_mac;
	bool copy; /* ib_copy: private receive buffers and one verified copy */
	u8 fabric_key[16];
	struct net *net;
};

/*
 * What the file system does for the node. All are called from the node's
 * worker: they may sleep for memory but must not wait for a page lock, for
 * writeback, or for the network.
 */
struct coop_node_ops {
	/*
	 * Finds pages of exactly (fid, version): fills pages[] by ordinal over the extents, each
	 * with a reference, NULL where not held or not among 'want'. Returns the bitmap of those
	 * held, *size the file's bytes, *cookie for the other two. Rule 11: only folios that are
	 * uptodate, clean, unlocked and not under writeback.
	 */
	u64 (*lookup)(void *host, const struct coop_fid *fid, u64 version,
		      const struct coop_extent *ext, u32 n_ext, u64 want, struct page **pages,
		      u64 *size, void **cookie);
	/* Of 'have', the pages that did not change from lookup until now. */
	u64 (*recheck)(void *host, void *cookie, struct page *const *pages, u64 have);
	/* Drops what lookup() took; never with have == 0 and cookie == NULL. */
	void (*release)(void *host, void *cookie, struct page **pages, u64 have);
	/*
	 * The node's address is another one (NULL: none now, the device or its link is gone):
	 * register at storage. Not called during destroy.
	 */
	void (*address)(void *host, const struct coop_addr *self);
};

/* One fetch: the caller's memory, untouched by the caller until done(). */
struct coop_node_fetch {
	struct coop_fid fid;
	u64 version;
	u64 size;    /* bytes of the file at that version */
	u64 index;   /* of pages[0]; the rest follow it without a gap */
	u32 n_pages; /* 1 .. COOP_MAX_PAGES, within one aligned run of COOP_MAX_PAGES */
	u64 want;    /* bit i: pages[i] is wanted; others may be NULL */
	struct page *pages[COOP_MAX_PAGES];
	u32 n_openers;
	u32 openers[COOP_MAX_HINTS]; /* the storage daemon's node ids */
	/*
	 * Worker context, may sleep, no lock of the node held. good: pages that hold exactly
	 * this version's bytes, those past the end of the file zeroed. err: why not all.
	 */
	void (*done)(struct coop_node_fetch *f, u64 good, int err);
	/* the node's own */
	struct coop_node *node;
	u32 id;    /* the engine's */
	u32 slot;  /* COOP_NONE until receives were posted */
	u64 asked; /* of 'want', what goes to peers: at most so many extents and pages */
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
 * @ops: what the file system does, with @host
 * @why: on failure, what is wrong and what to do, for the mount's log; at least 128 bytes
 * @why_size: of @why
 * Context: may sleep.
 * Return: the node, or ERR_PTR: -ENODEV (no such device or port), -EADDRNOTAVAIL (no such GID),
 * -EINVAL (the device cannot hold so many queue pairs or WRs, MTU, no such P_Key), -ENOMEM.
 */
struct coop_node *coop_node_create(const struct coop_node_cfg *cfg, struct coop_stats *stats,
				   const struct coop_node_ops *ops, void *host, char *why,
				   size_t why_size);
/*
 * Leaves the fabric: every fetch ends (done() runs), every serve is released, all queue
 * pairs are quiet and gone. Context: may sleep; not from ops or done().
 */
void coop_node_destroy(struct coop_node *node);

/*
 * Starts a fetch. 0, or done() does not run: -EAGAIN (too much in flight), -ENOENT (no peer
 * worth asking), -ENODEV (no device now). Context: may sleep.
 */
int coop_node_fetch(struct coop_node_fetch *f, struct coop_node *node);

/* Most pages of one fetch; fewer than COOP_MAX_PAGES where the MTU is small. */
u32 coop_node_max_pages(const struct coop_node *node);

/* Own control address; false while there is no device. */
bool coop_node_self(struct coop_node *node, struct coop_addr *self);
/*
 * Tells the host of the node's address, as ops->address() does at every later change. Not before
 * the host can hear of others.
 */
void coop_node_enter(struct coop_node *node);

/* What the storage daemon pushes. Context: may sleep. */
void coop_node_join(struct coop_node *node, u32 node_id, const struct coop_addr *addr);
void coop_node_leave(struct coop_node *node, u32 node_id);
void coop_node_forget_all(struct coop_node *node);
/* By hand: 0, -EINVAL (own address), -ENOSPC. */
int coop_node_add_by_hand(struct coop_node *node, const struct coop_addr *addr);

/* For /proc: as the engine's functions of the same names. *cursor starts at 0. */
bool coop_node_peer_next(struct coop_node *node, u32 *cursor, struct coop_peer_info *info);
bool coop_node_request_next(struct coop_node *node, u32 *cursor, struct coop_request_info *info);
void coop_node_engine_stats(struct coop_node *node, struct coop_engine_stats *stats);
void coop_node_reset_stats(struct coop_node *node);
/* Device, port, GID index, MTU in force, or "no device": one line, no newline. */
void coop_node_describe(struct coop_node *node, char *buf, size_t size);
/* What remount can change. */
void coop_node_tune(struct coop_node *node, u32 peer_timeout_ms, u32 serve_mbps);

#endif /* COOP_IB_H */
