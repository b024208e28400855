/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * engine.h - what a host calls.
 *
 * One engine is one node of the fabric: it asks peers for pages (fetches) and
 * answers their requests (serves). It performs no I/O. A host
 *
 *   - feeds it: submit, cancel, rx_ctrl, rx_data, rx_flush, tx_done, expire,
 *     and the answers to events (lookup_done or _kept, recheck_done, verify_done);
 *   - pulls from it, after every feed and until each is empty:
 *     next_tx (work for the network) and next_event (work for the host).
 *
 * Nothing re-enters: no function of the engine calls the host, and completions
 * appear only in next_event. One owner calls at a time (kernel: the holder of
 * one spinlock; user space: the thread that drives the engine; simulator: the
 * virtual clock).
 *
 * Normal operation of a fetch, as the requester's host sees it:
 *
 *   submit            -> TX_POST_RECV   post one receive WR a segment on QP[slot]
 *                     -> TX_CTRL        send the REQUEST
 *   rx_data (each WR) ...
 *   rx_ctrl (COMMIT)  -> EV_VERIFY      move displaced segments, check sums
 *   verify_done       -> EV_FETCH_DONE  good pages and their peer; then fetch_release
 *
 * and when anything is lost: TX_STOP_QP (to ERR), rx_flush for each WR that had
 * not completed, TX_RESET_QP, and either a new attempt (TX_POST_RECV ...) or
 * EV_VERIFY / EV_FETCH_DONE with the pages that arrived. Between TX_POST_RECV and the
 * EV_FETCH_DONE of the same fetch the memory of its pages belongs to the network.
 *
 * As the responder's host sees it:
 *
 *   rx_ctrl (REQUEST) -> EV_LOOKUP      find and pin pages
 *   lookup_done       -> TX_DATA ...    send the segments and pads from QP
 *   tx_done (all)     -> EV_RECHECK     which pages did not change since the lookup?
 *   recheck_done      -> TX_CTRL        send the COMMIT
 *                     -> EV_SERVE_END   unpin
 *
 * or, where the bytes cannot change any more (lookup_kept), the COMMIT right behind
 * the data and EV_SERVE_END when all is sent. Where pages are on their way to this node, a request
 * that may wait for them does (lookup_wait), and its segments follow the pages (lookup_more).
 * A node that lacks the pages may pass the request on to one that holds them (lookup_pass).
 *
 * Times are microseconds of a monotonic clock that the host passes in as 'now'.
 * PROTOCOL.md has the messages, the states and every loss case.
 */
#ifndef COOP_ENGINE_H
#define COOP_ENGINE_H

#include "policy.h"
#include "rpc/base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_MAX_PAGES      64   /* pages a fetch */
#define COOP_MAX_SEGS       1024 /* datagrams a fetch, any MTU */
#define COOP_MAX_EXTENTS    4    /* runs of contiguous pages a fetch */
#define COOP_BUDGET_MOST_US (1u << 30)
#define COOP_KEPT_SEGS      16  /* datagrams that a COMMIT hardly overtakes; see lookup_kept */
#define COOP_CTRL_MAX       512 /* bytes of a control message; never more than the MTU either */
#define COOP_SHARDS         8   /* engines that one control address may have */
#define COOP_PAGE_MIN_SHIFT 12
#define COOP_PAGE_MAX_SHIFT 16
#define COOP_BITMAP_WORDS   (COOP_MAX_PAGES / 64)

struct coop_extent {
	u64 index; /* first page of the file, in pages of the engine's size */
	u32 count;
	u32 reserved;
};

enum coop_engine_flag {
	COOP_F_PAGE_CRC = 1,  /* ask peers for a CRC32C a page */
	COOP_F_PACKED = 2,    /* packed layout where a page is no whole number of datagrams */
	COOP_F_PAGE_TAG = 8,  /* ask peers for a keyed tag a page, instead of a CRC */
	COOP_F_FORWARDS = 16, /* serve what peers pass on, for other peers */
	COOP_F_TEST_NO_QUIESCE = 256,    /* tests only: reuse a QP at once (breaks rule 2) */
	COOP_F_TEST_NO_GENERATION = 512, /* tests only: believe any generation (breaks rule 4) */
	COOP_F_TEST_TRUST_ORDER = 1024,  /* tests only: WR i holds segment i (breaks rule 6) */
	COOP_F_TEST_NO_IDENTITY = 2048,  /* tests only: believe a COMMIT of any file and version */
	COOP_F_TEST_NO_SUMS = 4096,      /* tests only: accept pages without checking their sums */
};

/* Pages that their holder is about to drop. */
struct coop_offer {
	struct coop_fid fid;
	u64 version;
	u64 size; /* bytes of the file at that version */
	struct coop_extent ext;
	u32 chances;    /* how often a node that takes them may offer them again */
	u32 page_shift; /* the engine fills it in */
};

struct coop_engine_cfg {
	u64 seed;              /* entropy; equal seeds give equal engines */
	u8 key[16];            /* fabric key: keys the MAC of every control message and the tags of
				* pages */
	struct coop_addr self; /* control QP, as peers reach it */
	u32 page_shift;        /* 12..16 */
	u32 mtu;               /* payload bytes a datagram, 256..4096, multiple of 4 */
	u32 max_fetches;       /* ib_num_srpc: fetches in flight, each with its own QP */
	u32 max_serves;        /* requests served at once */
	u32 max_queued;        /* fetches that wait for a slot or for the window */
	u32 max_peers;
	u32 peer_timeout_us; /* budget of a fetch over all its attempts, unless it sets its own */
	u32 silence_us;   /* a peer that owes an answer and is silent for this long is down; 0: peer
			   * timeout */
	u32 window_bytes; /* most bytes invited at once, over all peers */
	u32 serve_bytes_s; /* most bytes a second served to peers, 0: no limit */
	u32 fetch_depth;   /* most receive WRs of one fetch slot, 0: as many as any fetch takes; a
			    * slot takes 14 bytes of memory for each */
	u32 serve_depth;   /* most sends of one serve posted and not done, 0: no limit */
	u32 chunk_pages;   /* unit of placement, default 1 MiB worth */
	u32 flags;         /* enum coop_engine_flag */
	u32 shards, shard; /* engines that share 'self', at most COOP_SHARDS, and which one this is:
			    * see wire.h; 0: it has the address alone */
	struct coop_fetch_policy policy; /* all zero: coop_policy_many_sources() */
};

struct coop_engine;

/* Bytes of memory that an engine of this shape needs; 0 if cfg is out of range. */
size_t coop_engine_size(const struct coop_engine_cfg *cfg);
/* Builds an engine in mem (at least coop_engine_size() bytes, 8-aligned). NULL if cfg is out of
 * range. */
struct coop_engine *coop_engine_init(void *mem, size_t size, const struct coop_engine_cfg *cfg,
				     u64 now);

/* The data QP of fetch slot / serve slot 'slot' (0 .. max_fetches-1 / max_serves-1). */
void coop_engine_set_fetch_qp(struct coop_engine *e, u32 slot, u32 qpn, u32 qkey);
void coop_engine_set_serve_qp(struct coop_engine *e, u32 slot, u32 qpn);
/* The own address changed (GID or LID event); peers learn it from the next message. */
void coop_engine_set_self(struct coop_engine *e, const struct coop_addr *self);
/* Sets new values, within the same ranges; they apply from the next fetch and serve on. */
void coop_engine_tune(struct coop_engine *e, u32 peer_timeout_us, u32 serve_bytes_s, u64 now);
/*
 * Another fabric key, for the next message on. Fetches under way end with -ECANCELED and the pages
 * that they have, serves without a COMMIT, and all peers count as healthy. The same key: no effect.
 */
void coop_engine_rekey(struct coop_engine *e, const u8 key[16], u64 now);

/* ---- peers -------------------------------------------------------------- */

enum coop_peer_health {
	COOP_PEER_HEALTHY,   /* asked as placed */
	COOP_PEER_SUSPECT,   /* a recent failure; weight lowered */
	COOP_PEER_OPEN,      /* circuit open: not asked until the probe time */
	COOP_PEER_HALF_OPEN, /* one probe is out */
};

enum coop_peer_origin {
	COOP_PEER_BY_HAND = 1,   /* an administrator registered it: candidate for every file */
	COOP_PEER_BY_DAEMON = 2, /* storage named it: candidate where it is a hint */
};

struct coop_peer_info {
	u32 id; /* slot | generation */
	struct coop_addr addr;
	u32 origin; /* enum coop_peer_origin, or-ed */
	u32 health; /* enum coop_peer_health */
	u32 srtt_us, rttvar_us;
	u32 fails_in_row;
	u32 in_flight;
	u64 fetches, hits, misses,
		failures; /* fetches sent; pages hit; pages missed; attempts that failed */
	u64 pages, bytes; /* received from it and accepted */
	u64 served_pages, served_bytes; /* sent to it */
	u64 busy;                       /* BUSY messages from it */
	u64 probe_at;                   /* when OPEN: next probe, host time */
};

/*
 * Adds a peer or, if its control address is known, adds the origin to it.
 * Returns its id (> 0) or -ENOSPC, -EINVAL (own address, bad QPN).
 */
s64 coop_engine_peer_add(struct coop_engine *e, const struct coop_addr *addr, u32 origin, u64 now);
/* Removes the origin; the peer is freed once it has no origin and nothing is in flight. */
int coop_engine_peer_del(struct coop_engine *e, const struct coop_addr *addr, u32 origin);
/* The words for a health and for origins in texts that people and scripts read. */
const char *coop_peer_health_name(u32 health);
const char *coop_peer_origin_name(u32 origin);
/* Iterates: *cursor starts at 0; false at the end. */
bool coop_engine_peer_next(const struct coop_engine *e, u32 *cursor, struct coop_peer_info *out);
/* The one with this control address; false: none. */
bool coop_engine_peer_at(const struct coop_engine *e, const struct coop_addr *addr,
			 struct coop_peer_info *out);

/* ---- fetches ------------------------------------------------------------ */

/* Most pages of one fetch: COOP_MAX_PAGES, or fewer if the MTU bounds REQUEST and COMMIT. */
u32 coop_engine_max_pages(const struct coop_engine *e);

struct coop_fetch_req {
	u64 cookie; /* the host's; events return it */
	struct coop_fid fid;
	u64 version;   /* data version; a peer serves exactly this one */
	u64 size;      /* bytes of the file at that version */
	u32 budget_us; /* over all attempts, at most COOP_BUDGET_MOST_US; 0: peer_timeout_us */
	u32 n_ext;
	u32 n_hints;
	struct coop_extent ext[COOP_MAX_EXTENTS]; /* ascending, disjoint, within one chunk */
	u32 hints[COOP_MAX_HINTS]; /* peer ids that storage says opened this version */
	/*
	 * The first n_parents hints are asked first and in their order, and may let the fetch wait
	 * for pages on their way to them. They must speak this: storage names only such nodes.
	 * level is that of the load which this fetch is for (PROTOCOL.md, Waiting), 0 if it must
	 * not wait.
	 */
	u32 n_parents;
	u32 level;
	bool load;  /* parents shall load what they lack */
	bool relay; /* for a peer that waits: may use the slots and the window kept for this */
};

/*
 * Appends pages, behind all that the request has so far. False: the request has no extent left,
 * and is as it was.
 */
bool coop_fetch_req_add(struct coop_fetch_req *req, u64 first, u32 count);
/*
 * Starts a fetch. Returns 0 and *id, or -EAGAIN (queue full: go to storage),
 * -ENOENT (no usable peer: go to storage), -EINVAL.
 * The engine owns the pages' memory from now until EV_FETCH_DONE.
 */
int coop_engine_submit(struct coop_engine *e, const struct coop_fetch_req *req, u64 now, u32 *id);
/* Ends a fetch early; EV_FETCH_DONE still comes, once its WRs are quiet. -ENOENT: stale id. */
int coop_engine_cancel(struct coop_engine *e, u32 id, u64 now);
/* The host is done with the arrays of EV_FETCH_DONE; the slot is free. */
void coop_engine_fetch_release(struct coop_engine *e, u32 id, u64 now);

/*
 * Tells a peer that this node is about to drop pages. A peer that has room for them fetches them
 * soon. Nothing is kept: the offer may be lost. -ENOENT: the peer is not one that takes offers;
 * -EAGAIN: too many offers wait to be sent.
 */
int coop_engine_offer(struct coop_engine *e, u32 peer, const struct coop_offer *offer);

/* ---- input from the network --------------------------------------------- */

/* A datagram arrived on the control QP; buf starts after the GRH. src: as the completion reports
 * it (qkey unknown: 0). */
void coop_engine_rx_ctrl(struct coop_engine *e, const void *buf, u32 len,
			 const struct coop_addr *src, u64 now);

struct coop_rx {
	u32 slot;     /* fetch slot whose QP completed */
	u32 wr;       /* WR number within the posting, 0-based: TX_POST_RECV's order */
	u32 imm;      /* immediate data, host byte order */
	u32 byte_len; /* as the completion reports it: 40 + payload */
	u32 src_qp;
	bool has_imm;
	bool has_gid; /* src_gid is valid */
	u8 src_gid[16];
};
/* A receive WR of a fetch completed with success. */
void coop_engine_rx_data(struct coop_engine *e, const struct coop_rx *rx, u64 now);
/* n receive WRs of a fetch completed with an error (flush or other). Any error means that the QP
 * is in ERR. */
void coop_engine_rx_flush(struct coop_engine *e, u32 slot, u32 n, u64 now);

/* ---- work for the network ----------------------------------------------- */

enum coop_tx_kind {
	COOP_TX_CTRL,      /* send buf[len] from the control QP to addr */
	COOP_TX_POST_RECV, /* on fetch QP 'slot' post the WRs of segments seg[0..n_seg) in order */
	COOP_TX_DATA,      /* from serve QP 'slot' send segments seg[0..n_seg) to addr */
	COOP_TX_STOP_QP,   /* fetch QP 'slot' to ERR; then rx_flush for every WR still posted */
	COOP_TX_RESET_QP,  /* fetch QP 'slot': RESET, INIT, RTR, RTS; all its WRs have completed; at
			      once, or between reset_begin() and reset_done() */
};

/* Where one datagram lies in the pages. Built by plan.c; both sides compute the same. */
struct coop_seg {
	u16 seg;   /* segment number within the fetch, = low bits of imm */
	u8 n_frag; /* 0: pad, 1 or 2 */
	u8 reserved;
	u32 imm;   /* immediate data to send (TX_DATA) */
	u32 len;   /* payload bytes: sum of frag[].len; 0: pad */
	u32 spill; /* TX_POST_RECV: append so much scrap memory; the WR then fits any datagram */
	struct {
		u16 page;   /* ordinal of the page in the fetch: 0 .. n_pages-1 over its extents in
			       order */
		u16 absent; /* TX_DATA: the responder lacks this page, send zeros */
		u32 off;    /* byte within the page */
		u32 len;
	} frag[2];
};

struct coop_tx {
	enum coop_tx_kind kind;
	u32 slot;              /* fetch or serve slot */
	u32 id;                /* fetch or serve id; pass to tx_done for CTRL and DATA */
	u64 cookie;            /* of the fetch, or of the serve's lookup_done */
	struct coop_addr addr; /* destination */
	const u8 *buf;         /* CTRL: valid until the next call into the engine */
	u32 len;
	const struct coop_seg *seg; /* valid until the next call into the engine */
	u32 n_seg;
};
/* Next piece of work for the network; false: none. TX_DATA comes in batches of <= 64 segments. */
bool coop_engine_next_tx(struct coop_engine *e, u64 now, struct coop_tx *tx);
/*
 * The same, without TX_DATA. A host with a receive backlog uses this, and drains the backlog
 * before it sends data: a later attempt in it may make the data needless, and requesters wait
 * for the answers to their QUERYs.
 */
bool coop_engine_next_urgent_tx(struct coop_engine *e, u64 now, struct coop_tx *tx);
/*
 * The host has pulled a TX_RESET_QP, and it will take time. Until reset_done() nothing is posted on
 * the slot, no REQUEST names it, and no other fetch gets it. A reset that fails is done as well:
 * the host then flushes what it cannot post.
 */
void coop_engine_reset_begin(struct coop_engine *e, u32 slot);
void coop_engine_reset_done(struct coop_engine *e, u32 slot, u64 now);
/*
 * n_seg sends of a TX_DATA of serve 'id' completed or failed (err < 0): the network no longer
 * reads their memory. Not called for the other kinds: the host copies a control datagram before
 * its next call.
 */
void coop_engine_tx_done(struct coop_engine *e, u32 id, u32 n_seg, int err, u64 now);

/* ---- work for the host ---------------------------------------------------- */

enum coop_ev_kind {
	COOP_EV_LOOKUP, /* responder: find and pin pages; answer with lookup_done, _kept or _busy */
	COOP_EV_RECHECK,    /* responder: all sent; answer with recheck_done */
	COOP_EV_SERVE_END,  /* responder: unpin; the serve id is dead */
	COOP_EV_VERIFY,     /* requester: WRs are quiet; coop_engine_move(), check sums, answer with
			       verify_done; comes any number of times in a fetch */
	COOP_EV_FETCH_DONE, /* requester: finished; take the pages, then fetch_release */
	COOP_EV_PEER,       /* a peer's health changed (for logs and traces) */
	COOP_EV_OFFER,      /* a peer is about to drop pages: fetch them if there is room */
};

/* The sum of each page's bytes that a COMMIT carries. */
enum coop_sum {
	COOP_SUM_NONE,
	COOP_SUM_CRC, /* CRC32C: detects damage */
	COOP_SUM_TAG, /* coop_engine_tag(): detects forgery as well */
};

/* Segment 'seg' arrived in the memory of segment 'into', which is no shorter. */
struct coop_move {
	u16 seg;
	u16 into;
};

struct coop_ev {
	enum coop_ev_kind kind;
	u32 id; /* fetch or serve id */
	u64 cookie;
	/* LOOKUP */
	struct coop_addr from; /* the requester: where the answer goes; OFFER: who offers */
	struct coop_fid fid;
	u64 version;
	u32 n_ext;
	struct coop_extent ext[COOP_MAX_EXTENTS];
	/* LOOKUP: the request may wait for pages whose load has a smaller level; 0: it may not */
	u32 level;
	bool load;     /* LOOKUP: load what this node lacks */
	bool may_pass; /* LOOKUP: lookup_pass is possible */
	u32 budget_us; /* LOOKUP: how long the requester still waits */
	/* LOOKUP, RECHECK: the sums that lookup_kept, recheck_done must bring; VERIFY: the kind of
	 * sums */
	enum coop_sum sum;
	u64 request; /* LOOKUP, RECHECK, VERIFY: the attempt, for coop_engine_tag() */
	u32 imm;
	/* bit i = page ordinal i over the extents */
	u64 pages; /* LOOKUP: pages asked for; VERIFY: pages to judge, may be none; FETCH_DONE:
		      pages that are good */
	const struct coop_move *moves;
	u32 n_moves;
	const u64 *sums; /* VERIFY: expected by page ordinal, or NULL */
	u32 peer;        /* id of the peer that delivered last, or COOP_NONE */
	int err;         /* FETCH_DONE: 0, or why pages are missing: -ENOENT all peers lack them,
			    -ETIMEDOUT, -EBUSY, -ECANCELED, -EIO */
	u32 elapsed_us;  /* FETCH_DONE: since submit */
	/* PEER */
	u32 health;
	/* OFFER: bytes of the file, and how often a taker may offer the pages again; fid, version
	 * and ext[0] as above */
	u64 size;
	u32 chances;
};
bool coop_engine_next_event(struct coop_engine *e, u64 now, struct coop_ev *ev);

/* The place of segment 'seg' of a fetch in VERIFY; imm is 0. False: no such segment. */
bool coop_engine_fetch_seg(const struct coop_engine *e, u32 id, u32 seg, struct coop_seg *out);
/*
 * Copies the first len bytes of a segment's place in the pages to the host's buffer at offset
 * 'at', if gather, or back.
 */
typedef void coop_copy_seg(void *host, const struct coop_seg *place, u32 len, u32 at, bool gather);
/*
 * Does the moves of a VERIFY: gathers all segments first, because cycles occur, then scatters.
 * The buffer needs room for all bytes of the fetch. Returns the bytes moved.
 */
u32 coop_engine_move(const struct coop_engine *e, const struct coop_ev *ev, coop_copy_seg *copy,
		     void *host);

/* have: a bit per page ordinal held and pinned. size: bytes of the file as this node knows it.
 * cookie: later events return it. */
void coop_engine_lookup_done(struct coop_engine *e, u32 id, u64 have, u64 size, u64 cookie,
			     u64 now);
/*
 * The same for bytes that cannot change until EV_SERVE_END: the host took copies, or its pages
 * are immutable. With few segments the COMMIT does not wait for the sends. With many it would
 * overtake them, so those get a recheck like any other. sums: by page ordinal the sums that the
 * event asked for, or NULL if the recheck will bring them.
 */
void coop_engine_lookup_kept(struct coop_engine *e, u32 id, u64 have, u64 size, u64 cookie,
			     const u64 *sums, u64 now);
/* The host cannot say now what it holds: the requester is told BUSY and asks again. The serve
 * ends. */
void coop_engine_lookup_busy(struct coop_engine *e, u32 id, u64 cookie);
/*
 * As lookup_done, for a request that may wait: the pages 'coming' are on their way to this node.
 * For each of them the host calls lookup_more, until the serve ends. Too many waiting serves: the
 * requester is told BUSY and the serve ends.
 */
void coop_engine_lookup_wait(struct coop_engine *e, u32 id, u64 have, u64 coming, u64 size,
			     u64 cookie, u64 now);
/* The size of the file, which the host did not know at lookup_wait because it had no page. */
void coop_engine_lookup_size(struct coop_engine *e, u32 id, u64 size);
/* arrived: pages that came, pinned like those of the lookup. lost: pages that will not come. */
void coop_engine_lookup_more(struct coop_engine *e, u32 id, u64 arrived, u64 lost, u64 now);
/*
 * Answers a LOOKUP of pages that this node lacks, and that the peer with this id may hold: the peer
 * gets the request and answers its sender. The serve ends. -ENOENT: the request has been passed on
 * before, or the peer cannot be asked; the host then answers in another way.
 */
int coop_engine_lookup_pass(struct coop_engine *e, u32 id, u32 peer, u64 cookie, u64 now);
/* still: those of 'have' that did not change since the lookup. sums: by page ordinal the sums
 * that the event asked for, or NULL. */
void coop_engine_recheck_done(struct coop_engine *e, u32 id, u64 still, const u64 *sums, u64 now);
/* The COOP_SUM_TAG of a page for the attempt of this event; bytes: all of the page. */
u64 coop_engine_tag(const struct coop_engine *e, const struct coop_ev *ev, u32 page,
		    const void *bytes);
/* good: those of the event's pages whose sum matched (all of them where sums was NULL). */
void coop_engine_verify_done(struct coop_engine *e, u32 id, u64 good, u64 now);

/* ---- time and statistics -------------------------------------------------- */

/* Earliest time at which expire() has work; ~0: none. */
u64 coop_engine_deadline(const struct coop_engine *e);
/*
 * Must the host call expire() now? Received messages come before deadlines: after a pause of the
 * host, or on an overloaded machine, answers wait in its receive queues while their deadlines
 * pass. dry: those queues are empty. If they are not, the deadline is extended by 20 ms, or by a
 * tenth of the peer timeout if that is more.
 */
bool coop_engine_overdue(const struct coop_engine *e, bool dry, u64 now);
void coop_engine_expire(struct coop_engine *e, u64 now);

struct coop_engine_stats {
	u64 fetches, fetches_full, fetches_partial, fetches_failed, fetches_refused;
	u64 pages_ok, pages_missed, bytes_ok;
	u64 attempts, retries, queries;
	u64 segs_rx, segs_stale, segs_foreign, segs_bad, segs_displaced, segs_dup, pads_rx;
	u64 stops, flushes, crc_bad, tag_bad;
	u64 waits; /* attempts that a parent told to wait for pages on their way to it */
	u64 serves, serves_dup, serves_busy, serves_limited, serve_pages, serve_bytes, serve_misses,
		serve_changed, serve_tx_errors;
	/* serves that waited for pages on their way; pages that came; serves whose wait ran out */
	u64 serve_waits, serve_wait_pages, serve_wait_timeouts;
	/* attempts that a peer passed on to another; requests that this node passed on; that it got
	 * in this way */
	u64 passes, serves_passed, serves_forwarded, forwards_refused;
	u64 offers_tx, offers_rx, offers_dropped;
	u64 commits_tx, commits_rx, commits_stale, commits_bad;
	u64 ctrl_rx, ctrl_short, ctrl_mac, ctrl_version, ctrl_command, ctrl_malformed,
		ctrl_refused_tx, ctrl_dropped_tx;
	u64 peer_down, peer_up;
	u64 window_bytes, invited_bytes; /* gauges: most bytes to invite, bytes invited now */
	u64 serves_waiting;              /* gauge */
	u64 window_shrinks;
};
void coop_engine_stats(const struct coop_engine *e, struct coop_engine_stats *out);
void coop_engine_stats_reset(struct coop_engine *e);

/* A fetch or serve in flight, for the 'requests' file. *cursor starts at 0. */
struct coop_request_info {
	u32 id;
	bool serve;
	const char *state; /* static text */
	struct coop_fid fid;
	u64 version;
	u64 first_index;
	u32 n_pages;
	u32 peer;
	u32 attempt;
	u64 age_us;
};
bool coop_engine_request_next(const struct coop_engine *e, u32 *cursor, u64 now,
			      struct coop_request_info *out);

#ifdef __cplusplus
}
#endif

#endif /* COOP_ENGINE_H */
