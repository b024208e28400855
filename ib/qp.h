/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * qp.h - one UD queue pair: its states, and the numbers of its work requests.
 *
 * A queue pair leaves service only in this order: ERR, one completion counted
 * for each posted work request, then RESET, INIT, RTR, RTS (a plain RESET under
 * traffic lets a device write to memory after it returned). If the completions
 * do not come in time, the queue pair is destroyed, after which the device by
 * contract touches no memory, and a new one replaces it. The epoch in every
 * wr_id distinguishes completions of the old one from those of the new.
 *
 * The Q_Key has bit 31 set. With such a controlled key unprivileged programs
 * cannot send. A device that sees a controlled key in a send uses the queue
 * pair's own key instead, so all queue pairs of a fabric have the same key. A
 * node with lines (lines.h) has peers in user space, and a key without that bit;
 * it sends with no controlled key.
 */
#ifndef COOP_IB_QP_H
#define COOP_IB_QP_H

#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

enum coop_qp_kind { COOP_QP_CTRL, COOP_QP_FETCH, COOP_QP_SERVE, COOP_QP_DATA };

struct coop_rnic;
struct coop_qp;

/*
 * What its owner (ctrl.c, requester.c, responder.c) hears of a queue pair. The node's lock is held;
 * nobody has the queue pair, except that more changes may be wanted.
 */
struct coop_qp_ops {
	/* In ERR: what is posted completes, flushed. The owner sets the deadline for that. */
	void (*stopped)(struct coop_rnic *r, struct coop_qp *qp, u64 now);
	/* Destroyed: the device owns no memory of what was posted, and none of it completes. */
	void (*lost)(struct coop_rnic *r, struct coop_qp *qp, u64 now);
	/* 0: in RTS, perhaps with another number; else not ready, and qp->ib is NULL or stays. */
	void (*renewed)(struct coop_rnic *r, struct coop_qp *qp, int err, u64 now);
	/* Its deadline has passed. */
	void (*overdue)(struct coop_rnic *r, struct coop_qp *qp, u64 now);
};

struct coop_qp {
	struct ib_qp *ib; /* NULL: none, or taken; posting fails */
	struct coop_rnic *rnic;
	const struct coop_qp_ops *ops;
	struct work_struct change; /* on node->changes: performs 'wants', see qp_change.c */
	struct ib_qp_cap cap;
	enum coop_qp_kind kind;
	u32 num; /* QPN of 'ib', also while that is taken; then of the last one */
	u16 slot;
	u16 epoch;
	u8 wants;       /* changes that are wanted: qp_change.c has the bits */
	bool taken;     /* coop_qp_take(): 'ib' is with someone who needs no lock for it */
	bool ready;     /* RTS, as far as we know, and no change is wanted: may be posted to */
	bool stopped;   /* ERR, as the device has confirmed */
	bool died;      /* went to ERR by itself */
	u64 overdue_at; /* us: deadline of its completions; ~0: none expected */
};

/* wr_id: kind | epoch | slot | number chosen by the poster */
#define COOP_WR_EPOCH_MASK 0x3fffu

static inline u64 coop_wr_id(const struct coop_qp *qp, u32 number)
{
	return (u64)qp->kind << 62 | (u64)(qp->epoch & COOP_WR_EPOCH_MASK) << 48 |
	       (u64)qp->slot << 32 | number;
}

static inline enum coop_qp_kind coop_wr_kind(u64 id)
{
	return id >> 62;
}

static inline u32 coop_wr_slot(u64 id)
{
	return id >> 32 & 0xffff;
}

static inline bool coop_wr_of(u64 id, const struct coop_qp *qp)
{
	return (id >> 48 & COOP_WR_EPOCH_MASK) == (qp->epoch & COOP_WR_EPOCH_MASK);
}

/*
 * Verbs that change or destroy a queue pair wait for the device, perhaps for long. All of them run
 * without the node's lock, for which readers wait: the queue pair is taken under the lock, and
 * given back. While it is taken nothing is posted to it, and it does not count as destroyed. A
 * queue pair that nobody else knows yet, or any more, needs no lock.
 */

/* Under the lock; it is not taken. NULL: there is none. */
struct ib_qp *coop_qp_take(struct coop_qp *qp);
/* Under the lock. other: ib replaces the one that was taken, or is NULL. */
void coop_qp_give_back(struct coop_qp *qp, struct ib_qp *ib, bool other);

/* Of one that was taken, without the lock. Context: may sleep. 0 or -errno. */
int coop_qp_to_error(struct ib_qp *ib);
/* On error *ib exists still; else it is NULL. */
int coop_qp_end(const struct coop_rnic *r, struct ib_qp **ib);
/*
 * Moves it from ERR back to RTS, or replaces it if that cannot be; *ib is NULL: creates one.
 * *other: it is another one. On error *ib is not in RTS, or NULL.
 */
int coop_qp_to_ready(struct coop_rnic *r, const struct coop_qp *qp, struct ib_qp **ib, bool *other);

/* While its node is being attached, or has been detached. Context: may sleep. 0 or -errno. */

/* Creates qp->ib with qp->cap, in RTS. */
int coop_qp_create(struct coop_rnic *r, struct coop_qp *qp);
/* On error the queue pair exists still, and the device may write to its memory. */
int coop_qp_destroy(struct coop_rnic *r, struct coop_qp *qp);

/* qp_change.c: the lock held; a work of the queue pair performs what is wanted, without it. */

/* Before any other call. */
void coop_qp_init(struct coop_rnic *r, struct coop_qp *qp, enum coop_qp_kind kind, u16 slot,
		  const struct coop_qp_ops *ops);
/* To ERR, unless it is out of service already; stopped() follows. */
void coop_qp_stop(struct coop_rnic *r, struct coop_qp *qp);
/* Destroys it, whatever is posted; lost() follows. If the device refuses, it is overdue later. */
void coop_qp_discard(struct coop_rnic *r, struct coop_qp *qp);
/*
 * All that was posted has completed, or there is none: back to RTS; renewed() follows. While the
 * node is being detached: nothing.
 */
void coop_qp_renew(struct coop_rnic *r, struct coop_qp *qp);

/* There is none, and no change under way that would bring one. */
static inline bool coop_qp_is_gone(const struct coop_qp *qp)
{
	return !qp->ib && !qp->taken && !qp->wants;
}

#endif /* COOP_IB_QP_H */
