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

#include <rdma/ib_verbs.h>

enum coop_qp_kind { COOP_QP_CTRL, COOP_QP_FETCH, COOP_QP_SERVE, COOP_QP_DATA };

struct coop_rnic;

struct coop_qp {
	struct ib_qp *ib; /* NULL: none, or taken; posting fails */
	struct ib_qp_cap cap;
	enum coop_qp_kind kind;
	u16 slot;
	u16 epoch;
	bool taken;     /* coop_qp_take(): 'ib' is with someone who needs no lock for it */
	bool ready;     /* RTS, as far as we know */
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
 * Verbs that change or destroy a queue pair wait for the device. Those of fetch slots (fetch_qp.c),
 * which every lost datagram needs, and those at the end of all (coop_rnic_silence) run without the
 * node's lock, for which readers wait: the queue pair is taken under the lock, and given back.
 * While it is taken it does not count as destroyed. Those of the control and the serving queue
 * pairs, which change only when one has failed, are performed under the lock.
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
int coop_qp_renew(struct coop_rnic *r, const struct coop_qp *qp, struct ib_qp **ib, bool *other);

/* All below: context may sleep, the node's lock held. 0 or -errno. */

/* Creates qp->ib with qp->cap, in RTS. */
int coop_qp_create(struct coop_rnic *r, struct coop_qp *qp);
/*
 * Destroys it: the device no longer owns posted memory, and later completions are ignored. On
 * error the queue pair still exists and the device still owns the memory.
 */
int coop_qp_destroy(struct coop_rnic *r, struct coop_qp *qp);
/* To ERR: a completion follows for each WR posted. */
void coop_qp_stop(struct coop_rnic *r, struct coop_qp *qp);
/* Moves a quiet queue pair from ERR back to RTS. Replaces it if the device refuses, or cannot do so
 * safely. */
int coop_qp_recycle(struct coop_rnic *r, struct coop_qp *qp);
/* Destroys and creates. */
int coop_qp_replace(struct coop_rnic *r, struct coop_qp *qp);

#endif /* COOP_IB_QP_H */
