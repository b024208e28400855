/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * rnic.h - all of a node that lives on a device.
 *
 * Made when the node attaches to a port, taken apart when the device goes. All
 * fields are under the node's lock, but for those that never change after
 * coop_rnic_create().
 *
 * Queue pairs: one for control messages, one a fetch slot (receives only), one a
 * serve slot (sends only). All are made once and reused by the rules of qp.h. One
 * completion queue for receives, one for sends, each with room for every work
 * request of every queue pair: an overflow would kill them all.
 */
#ifndef COOP_IB_RNIC_H
#define COOP_IB_RNIC_H

#include "ib/ah.h"
#include "ib/buf.h"
#include "ib/device.h"
#include "ib/qp.h"
#include "rpc/fetch/wire.h"

#define COOP_BATCH       64  /* WRs or completions a call into the driver */
#define COOP_CTRL_RECVS  512 /* control messages that may arrive between two pumps */
#define COOP_CTRL_SENDS  256
#define COOP_GRH_STRIDE  64       /* a GRH area has its cache line for itself */
#define COOP_CTRL_WAITS  64       /* messages that wait for an address handle */
#define COOP_QUIET_US    2000000  /* completions of a stopped queue pair come within this */
#define COOP_SENT_US     10000000 /* and those of sends within this */
#define COOP_SERVE_TURNS 32       /* signalled batches of one serve under way */

struct coop_ctrl {
	struct coop_qp qp;
	struct coop_bufs grh, rx, tx;
	u32 n_posted;                 /* receives */
	u32 n_sent;                   /* sends posted and not complete */
	u32 n_idle;                   /* of rx_idle */
	u32 n_free;                   /* of tx_free */
	u32 n_waiting;                /* buffers that wait for address handles */
	bool dead;                    /* waits for its WRs, then is recycled */
	u16 rx_idle[COOP_CTRL_RECVS]; /* to be posted again */
	u16 tx_free[COOP_CTRL_SENDS];
	bool rx_posted[COOP_CTRL_RECVS];
	u32 rx_len[COOP_CTRL_RECVS]; /* of those that wait for an address handle */
	struct coop_addr rx_from[COOP_CTRL_RECVS];
	u32 tx_len[COOP_CTRL_SENDS];
	struct coop_addr tx_to[COOP_CTRL_SENDS];
	struct coop_ah *tx_ah[COOP_CTRL_SENDS]; /* posted with it */
};

/* A fetch slot of the engine: a queue pair and the pages that it fills now. */
struct coop_fetch_slot {
	struct coop_qp qp;
	struct coop_bufs grh;
	struct coop_bufs own;          /* ib_copy: private pages by ordinal */
	struct coop_node_fetch *fetch; /* NULL: none has posted here */
	u32 n_posted;
	bool large;        /* more than COOP_KEPT_SEGS were posted, and some have not come back */
	u64 mapped, again; /* by ordinal: mapped now; was mapped before */
	struct page *page[COOP_MAX_PAGES];
	u64 dma[COOP_MAX_PAGES];
};

/* A serve slot: a queue pair and its batches of sends, in posting order. */
struct coop_serve_slot {
	struct coop_qp qp;
	u32 head, tail; /* of turn[], free running */
	u32 n_posted;   /* sends of those */
	bool dead;      /* waits for its sends, then is recycled */
	struct {
		u32 id;
		u32 n_seg;
		struct coop_ah *ah;
	} turn[COOP_SERVE_TURNS];
};

/* A serve as the file system knows it, from LOOKUP to SERVE_END. */
struct coop_serving {
	bool used;
	bool copied; /* pages are sent from r->kept, COOP_KEPT_PAGES each serve */
	u64 have, mapped;
	void *cookie; /* of ops->lookup() */
	struct page *page[COOP_MAX_PAGES];
	u64 dma[COOP_MAX_PAGES];
};

/*
 * Serves of so few pages send copies: those need no look after the sends, which spares both sides a
 * wake-up, and costs less than one.
 */
#define COOP_KEPT_PAGES 4

struct coop_rnic {
	struct coop_node *node;
	struct coop_port port;
	struct coop_addr self;
	u32 mtu; /* in force: of the engine */
	u32 qkey;
	u32 per_page;    /* datagrams a page, most */
	u32 fetch_pages; /* of one fetch, most */
	u32 fetch_wrs;   /* of one fetch slot */
	u32 serve_wrs;
	bool closing; /* nothing new is posted or made */
	struct ib_pd *pd;
	struct ib_cq *rcq, *scq;
	struct coop_bufs scrap; /* one page: takes what is longer than its place */
	struct coop_bufs zeros; /* one page: stands for those that we lack */
	struct coop_bufs kept;  /* COOP_KEPT_PAGES a serve: what small ones send */
	struct coop_ctrl ctrl;
	u32 n_fetch, n_serve;
	struct coop_fetch_slot *fetch;
	struct coop_serve_slot *serve;
	struct coop_serving *serves; /* by cookie */
	u32 n_serving;
	bool sends_watched; /* the next completion of a send kicks the pump */
	bool data_watched;  /* the next datagram does, not only the next message */
	u32 n_large;        /* fetch slots */
	u64 overdue_at;     /* the earliest of the queue pairs' */
	struct coop_ah_cache ah;
	void *bounce; /* COOP_MAX_PAGES pages */
	struct coop_msg msg;
	struct ib_wc wc[COOP_BATCH];
	struct ib_sge sge[COOP_BATCH * 4];
	struct ib_recv_wr recv_wr[COOP_BATCH];
	struct ib_ud_wr send_wr[COOP_BATCH];
};

/*
 * rnic.c. create: everything but the engine, or ERR_PTR and why. destroy: the queue pairs are
 * gone. Context: may sleep; no lock held but attach_lock.
 */
struct coop_rnic *coop_rnic_create(struct coop_node *node, const struct coop_port *port, char *why,
				   size_t size);
void coop_rnic_destroy(struct coop_rnic *r);
/* Destroys the queue pairs and gives the engine its completions; the lock held. */
void coop_rnic_silence(struct coop_rnic *r, u64 now);
/* Queue pairs whose completions are overdue are replaced; the lock held. */
void coop_rnic_overdue(struct coop_rnic *r, u64 now);
void coop_rnic_await(struct coop_rnic *r, struct coop_qp *qp, u64 until);

/* ctrl.c */
int coop_ctrl_create(struct coop_rnic *r);
void coop_ctrl_send(struct coop_rnic *r, const struct coop_tx *tx, u64 now);
void coop_ctrl_completed(struct coop_rnic *r, const struct ib_wc *wc, bool recv, u64 now);
void coop_ctrl_repost(struct coop_rnic *r, u64 now);
/*
 * A completion of the queue pair is overdue. True: it was in use, and is stopped now, so that all
 * its work requests come back; false: it had been stopped before.
 */
bool coop_ctrl_overdue(struct coop_rnic *r, u64 now);
/* The queue pair was destroyed: its buffers are ours. */
void coop_ctrl_lost(struct coop_rnic *r);
/* An address handle is there, or cannot be had: what waited for it goes on, or is dropped. */
void coop_ctrl_resume(struct coop_rnic *r, struct coop_ah *ah, u64 now);
/* Whence a datagram came. */
void coop_source_of(const struct coop_rnic *r, const struct ib_wc *wc, const void *grh,
		    struct coop_addr *from, bool *has_gid);

/* requester.c */
int coop_requester_create(struct coop_rnic *r, struct coop_fetch_slot *s, u16 slot);
int coop_requester_submit(struct coop_rnic *r, struct coop_node_fetch *f, u64 now);
void coop_requester_post(struct coop_rnic *r, const struct coop_tx *tx, u64 now);
void coop_requester_stop(struct coop_rnic *r, u32 slot, u64 now);
void coop_requester_reset(struct coop_rnic *r, u32 slot);
void coop_requester_completed(struct coop_rnic *r, const struct ib_wc *wc, u64 now);
void coop_requester_lost(struct coop_rnic *r, struct coop_fetch_slot *s, u64 now);
void coop_requester_verify(struct coop_rnic *r, const struct coop_ev *ev, u64 now);
void coop_requester_finished(struct coop_rnic *r, const struct coop_ev *ev, u64 now);

/* responder.c */
int coop_responder_create(struct coop_rnic *r, struct coop_serve_slot *s, u16 slot);
void coop_responder_lookup(struct coop_rnic *r, const struct coop_ev *ev, u64 now);
void coop_responder_recheck(struct coop_rnic *r, const struct coop_ev *ev, u64 now);
void coop_responder_end(struct coop_rnic *r, const struct coop_ev *ev);
void coop_responder_send(struct coop_rnic *r, const struct coop_tx *tx, u64 now);
void coop_responder_completed(struct coop_rnic *r, const struct ib_wc *wc, u64 now);
void coop_responder_lost(struct coop_rnic *r, struct coop_serve_slot *s, u64 now);

#endif /* COOP_IB_RNIC_H */
