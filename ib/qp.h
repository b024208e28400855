/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * qp.h - one UD queue pair: its states, and the numbers of its work requests.
 *
 * A queue pair is taken out of service in this order only: ERR, one completion
 * counted for each work request that is posted, then RESET, INIT, RTR, RTS
 * (plain RESET under traffic lets a device write after it returned). If the
 * completions do not come in time, the queue pair is destroyed, after which by
 * contract the device touches nothing, and another one takes its place; the
 * epoch in every wr_id tells completions of the old one from those of the new.
 *
 * The Q_Key has bit 31 set, a controlled one: unprivileged programs cannot send
 * with it. A device that sees such a key in a send takes the queue pair's own
 * instead, so all queue pairs of a fabric have the same.
 */
#ifndef COOP_IB_QP_H
#define COOP_IB_QP_H

#include <rdma/ib_verbs.h>

enum coop_qp_kind { COOP_QP_CTRL, COOP_QP_FETCH, COOP_QP_SERVE };

struct coop_rnic;

struct coop_qp {
	struct ib_qp *ib; /* NULL: there is none, posting fails */
	struct ib_qp_cap cap;
	enum coop_qp_kind kind;
	u16 slot;
	u16 epoch;
	bool ready;     /* RTS as far as we know */
	bool died;      /* went to ERR by itself */
	u64 overdue_at; /* us: when its completions must have come; ~0: none awaited */
};

/* wr_id: kind | epoch | slot | the poster's number */
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

/* All: context may sleep, the node's lock held. 0 or -errno. */

/* Makes qp->ib of qp->cap, in RTS. */
int coop_qp_create(struct coop_rnic *r, struct coop_qp *qp);
/*
 * What is posted is no longer the device's; completions of it are not counted any more. An error:
 * the device would not, so the queue pair is there still, and the memory is not ours.
 */
int coop_qp_destroy(struct coop_rnic *r, struct coop_qp *qp);
/* To ERR: a completion follows for each WR posted. */
void coop_qp_stop(struct coop_rnic *r, struct coop_qp *qp);
/* From quiet ERR back to RTS; replaced by another one if the device will not, or had better not. */
int coop_qp_recycle(struct coop_rnic *r, struct coop_qp *qp);
/* Destroys and creates. */
int coop_qp_replace(struct coop_rnic *r, struct coop_qp *qp);

#endif /* COOP_IB_QP_H */
