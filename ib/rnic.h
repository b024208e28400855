/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * rnic.h - a node's objects on a device.
 *
 * Created when the node attaches to a port, destroyed when it detaches. The
 * node's lock protects all fields, except those that never change after
 * coop_rnic_create().
 *
 * Queue pairs: one for control messages, one a fetch slot (receives only),
 * those that serves send from, and one for data with lines (lines.h). All are created once and
 * reused by the rules of qp.h; a work of each changes its state (qp_change.c). Most serves wait for
 * pages on their way to this node and send nothing meanwhile, so COOP_SERVES_A_QP of them share a
 * queue pair. There is one completion queue for receives and one for sends, each with room for
 * every work request that is posted at once: an overflow would kill them all.
 */
#ifndef COOP_IB_RNIC_H
#define COOP_IB_RNIC_H

#include "ib/ah.h"
#include "ib/buf.h"
#include "ib/device.h"
#include "ib/lines.h"
#include "ib/qp.h"
#include "rpc/fetch/wire.h"

#define COOP_BATCH       64      /* WRs or completions a call into the driver */
#define COOP_CTRL_RECVS  512     /* control messages that may arrive between two runs of the pump */
#define COOP_CTRL_SENDS  256     /* a power of two */
#define COOP_CTRL_CHAIN  32      /* messages a call into the driver */
#define COOP_GRH_STRIDE  64      /* a GRH area has a cache line of its own */
#define COOP_CTRL_WAITS  64      /* most messages that wait for address handles */
#define COOP_QUIET_US    2000000 /* time limit for completions of a stopped queue pair */
#define COOP_SENT_US     10000000 /* time limit for completions of sends */
#define COOP_SERVE_TURNS 32       /* most batches under way, of all serves */
#define COOP_SERVES_A_QP 4        /* serves that share a queue pair */
/*
 * Most bytes of serves that are posted and not sent. A device takes turns between queue pairs, so
 * with all posted at once each of many children would have its pages as late as the last one. A
 * queue pair out of service sends nothing: what it has, for as long as the device likes, does not
 * count.
 */
#define COOP_SENDING_MAX SZ_512K

/* A queue pair for messages: the control queue pair, or the second one of a node with lines. */
struct coop_ctrl {
	struct coop_qp qp;
	struct coop_bufs grh, rx, tx;
	u32 most;                     /* bytes of a message */
	u32 n_posted;                 /* receives posted */
	u32 n_chain;                  /* sends built and not posted: the last ones of sent[] */
	u32 head, tail;               /* of sent[], free running; the number in a wr_id */
	u32 n_idle;                   /* entries of rx_idle */
	u32 n_free;                   /* entries of tx_free */
	u32 n_waiting;                /* buffers that wait for address handles */
	u32 n_kept;                   /* of rx_idle, never posted: for mail */
	bool cut;                     /* a chain was cut: once it is in ERR, post_end() */
	bool ending;                  /* what post_end() posted is not complete */
	u32 end;                      /* its number */
	u16 rx_idle[COOP_CTRL_RECVS]; /* buffers to post again */
	u16 tx_free[COOP_CTRL_SENDS];
	u16 sent[COOP_CTRL_SENDS]; /* buffers of sends, in posting order */
	struct ib_ud_wr wr[COOP_CTRL_CHAIN];
	struct ib_sge sge[COOP_CTRL_CHAIN];
	bool rx_posted[COOP_CTRL_RECVS];
	u32 rx_len[COOP_CTRL_RECVS]; /* of messages that wait for an address handle */
	struct coop_addr rx_from[COOP_CTRL_RECVS];
	u32 tx_len[COOP_CTRL_SENDS];
	struct coop_addr tx_to[COOP_CTRL_SENDS];
	struct coop_ah *tx_ah[COOP_CTRL_SENDS]; /* handle of a send that is built or posted */
};

/* A fetch slot of the engine: a queue pair and the pages that it fills. */
struct coop_fetch_slot {
	struct coop_qp qp;
	struct coop_bufs grh;
	struct coop_bufs own;          /* ib_copy: private pages by ordinal */
	struct coop_node_fetch *fetch; /* NULL: none has posted here */
	u32 n_posted;
	bool large;        /* more than COOP_KEPT_SEGS were posted, and some are not complete */
	u64 mapped, again; /* by ordinal: mapped now; was mapped before */
	struct page *page[COOP_MAX_PAGES];
	u64 dma[COOP_MAX_PAGES];
};

/* A queue pair that serves send from, and their batches of sends, in posting order. */
struct coop_serve_slot {
	struct coop_qp qp;
	u32 head, tail; /* of turn[], free running */
	u32 n_posted;   /* sends in these batches */
	u32 bytes;      /* of them */
	struct {
		u32 id;
		u32 n_seg;
		u32 bytes;
		struct coop_ah *ah;
	} turn[COOP_SERVE_TURNS];
};

/* The pages of a serve, from LOOKUP to SERVE_END. */
struct coop_serving {
	bool used;
	bool copied; /* pages are sent from r->kept, COOP_KEPT_PAGES each of the first n_serve */
	u32 id;      /* the engine's */
	u64 have, mapped;
	u64 coming;   /* pages that it waits for; the engine may have given them up */
	void *cookie; /* of ops->lookup() */
	struct page *page[COOP_MAX_PAGES];
	u64 dma[COOP_MAX_PAGES];
};

/*
 * Serves of at most so many pages send copies. Copies need no recheck after the sends, which saves
 * both sides a wake-up, and the copy costs less than that.
 */
#define COOP_KEPT_PAGES 4

struct coop_rnic {
	struct coop_node *node;
	struct coop_port port;
	struct coop_addr self;
	u32 data_qpn; /* with lines: as 'self' */
	u32 mtu;      /* in use: the engine's */
	u32 qkey;
	u32 per_page;    /* most datagrams a page */
	u32 fetch_pages; /* most pages a fetch */
	u32 fetch_wrs;   /* receives a fetch slot */
	u32 serve_wrs;   /* most sends posted at once, on one queue pair or on all */
	bool closing;    /* nothing new is posted or created */
	struct ib_pd *pd;
	struct ib_cq *rcq, *scq;
	struct coop_bufs scrap; /* one page: takes bytes past the end of a segment */
	struct coop_bufs zeros; /* one page: sent for pages that we lack */
	struct coop_bufs kept;  /* COOP_KEPT_PAGES each: copies that small serves send */
	struct coop_ctrl ctrl;
	struct coop_ctrl data; /* with lines */
	u32 n_fetch, n_serve;  /* queue pairs */
	u32 n_serves;          /* n_serve times COOP_SERVES_A_QP */
	struct coop_fetch_slot *fetch;
	struct coop_serve_slot *serve;
	struct coop_serve_slot *stand_in; /* sends for those not ready; NULL: none does */
	struct coop_serving *serves;      /* by cookie */
	u32 n_serving;
	u32 n_sending;      /* sends posted and not complete */
	u32 n_turns;        /* batches of them on queue pairs in service */
	u64 sending;        /* their bytes, likewise */
	bool sends_watched; /* the next completion of a send kicks the pump */
	bool data_watched;  /* any datagram kicks the pump, not only a message */
	u32 n_large;        /* fetch slots that are 'large' */
	u64 overdue_at;     /* no later than that of any queue pair */
	struct coop_ah_cache ah;
	struct rdma_cgroup *payer; /* with lines: of 'n_charged', see charge.c */
	u32 n_charged;
	void *bounce; /* COOP_MAX_PAGES pages */
	struct coop_msg msg;
	struct ib_wc wc[COOP_BATCH];
	struct ib_sge sge[COOP_BATCH * 4];
	struct ib_recv_wr recv_wr[COOP_BATCH];
	struct ib_ud_wr send_wr[COOP_BATCH];
};

/*
 * rnic.c. create: all objects except the engine; or ERR_PTR and why. destroy: r->closing is set.
 * Context: may sleep; only attach_lock is held.
 */
struct coop_rnic *coop_rnic_create(struct coop_node *node, const struct coop_port *port, char *why,
				   size_t size);
void coop_rnic_destroy(struct coop_rnic *r);
/*
 * charge.c, for these two: in the process's call; 0, -EAGAIN (the group's limit), -ENOMEM. Context:
 * may sleep.
 */
int coop_rnic_charge(struct coop_rnic *r, u32 objects);
void coop_rnic_uncharge(struct coop_rnic *r);
/*
 * Destroys the queue pairs and reports all their WRs to the engine as flushed; r->closing is set.
 * The lock is held, but not while the device destroys one. False: the device refused some, or a
 * work has one, and the device may still write to their pages; try again.
 */
bool coop_rnic_silence(struct coop_rnic *r, u64 now);
/* How long to wait after this many refusals. */
static inline u32 coop_rnic_pause_ms(u32 tries)
{
	return tries < 50 ? 100 : 1000;
}
/* Tells the owners of queue pairs whose completions are overdue; the lock held. */
void coop_rnic_overdue(struct coop_rnic *r, u64 now);
/* Sets the deadline for the queue pair's completions; the lock held. */
void coop_rnic_await(struct coop_rnic *r, struct coop_qp *qp, u64 until);

/*
 * The Q_Key for a send. A process must not reach queue pairs of the kernel by way of its machine,
 * whatever it or its peers name: with lines no send has a controlled key.
 */
static inline u32 coop_qkey_to(const struct coop_rnic *r, const struct coop_addr *to)
{
	return r->qkey & BIT(31) ? to->qkey : to->qkey & ~BIT(31);
}

/* ctrl.c */
extern const struct coop_qp_ops coop_ctrl_qp_ops;
int coop_ctrl_create(struct coop_rnic *r, struct coop_ctrl *c);
void coop_ctrl_send(struct coop_rnic *r, const struct coop_tx *tx, u64 now);
void coop_ctrl_completed(struct coop_rnic *r, struct coop_ctrl *c, const struct ib_wc *wc,
			 bool recv, u64 now);
/* Posts the sends that were built. Whoever builds some calls it before the lock is dropped. */
void coop_ctrl_flush(struct coop_rnic *r, u64 now);
/* Takes messages of other shards out of the mailboxes; returns how many. */
u32 coop_ctrl_mail(struct coop_rnic *r, u64 now);
/* Posts receives again on all of them. */
void coop_ctrl_repost(struct coop_rnic *r);
/* The message in a buffer of c->tx that was taken from c->tx_free. */
void coop_ctrl_launch(struct coop_rnic *r, struct coop_ctrl *c, u32 i, u32 len,
		      const struct coop_addr *to, u64 now);
/* An address handle was resolved, or failed: sends and delivers the messages that waited for it, or
 * drops them. */
void coop_ctrl_resume(struct coop_rnic *r, struct coop_ah *ah, u64 now);
/* The source address of a datagram. */
void coop_source_of(const struct coop_rnic *r, const struct ib_wc *wc, const void *grh,
		    struct coop_addr *from, bool *has_gid);

/* requester.c */
extern const struct coop_qp_ops coop_requester_qp_ops;
int coop_requester_create(struct coop_rnic *r, struct coop_fetch_slot *s);
int coop_requester_submit(struct coop_rnic *r, struct coop_node_fetch *f, u64 now);
void coop_requester_post(struct coop_rnic *r, const struct coop_tx *tx, u64 now);
void coop_requester_stop(struct coop_rnic *r, u32 slot);
void coop_requester_reset(struct coop_rnic *r, u32 slot);
void coop_requester_completed(struct coop_rnic *r, const struct ib_wc *wc, u64 now);
void coop_requester_verify(struct coop_rnic *r, const struct coop_ev *ev, u64 now);
void coop_requester_finished(struct coop_rnic *r, const struct coop_ev *ev, u64 now);

/* responder.c */
extern const struct coop_qp_ops coop_responder_qp_ops;
int coop_responder_create(struct coop_rnic *r, struct coop_serve_slot *s);
void coop_responder_lookup(struct coop_rnic *r, const struct coop_ev *ev, u64 now);
/* Some pages that serves wait for have arrived, or will not come. */
void coop_responder_look_again(struct coop_rnic *r, u64 now);
/* No serve waits any longer: r->closing is set. */
void coop_responder_wait_no_more(struct coop_rnic *r, u64 now);
void coop_responder_recheck(struct coop_rnic *r, const struct coop_ev *ev, u64 now);
void coop_responder_end(struct coop_rnic *r, const struct coop_ev *ev);
/* May the engine give out the next batch? A completion makes room. */
bool coop_responder_has_room(const struct coop_rnic *r);
void coop_responder_send(struct coop_rnic *r, const struct coop_tx *tx, u64 now);
void coop_responder_completed(struct coop_rnic *r, const struct ib_wc *wc, u64 now);

#endif /* COOP_IB_RNIC_H */
