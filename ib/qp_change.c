// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * qp_change.c - changes of a queue pair in service, in a work of its own.
 *
 * A failed queue pair is stopped (one command to the firmware) and put back to work (four, or it
 * is destroyed and created anew); for one that fetches, each lost datagram does that. The device
 * may take long for a command. Readers, the pump and all other queue pairs need the node's lock
 * meanwhile, so none of that happens under it: whoever wants a change notes it in 'wants' and
 * queues the work, which takes the queue pair, gives its orders to the device without the lock, and
 * then tells the owner.
 *
 *   STOP     to ERR: a completion follows for each work request that is posted; a device that
 *            refuses shall destroy it at once
 *   DESTROY  they have not come in time, or cannot come: behind it the device owns no memory; a
 *            device that refuses is asked again after COOP_QUIET_US
 *   RENEW    all have come, or there is no queue pair: back to RTS
 *
 * From the first of them to the end of RENEW the queue pair is not ready, and nothing is posted
 * (but see post_end() in ctrl.c: one send, in ERR). They are performed in this order, because RESET
 * without ERR lets a device write to memory. A deadline runs only while the queue pair waits for
 * completions, not while it waits for the device's answer: until then its memory is the device's.
 */
#include <linux/sched/mm.h>

#include "ib/node.h"
#include "ib/trace.h"

#define WANT_STOP    1
#define WANT_DESTROY 2
#define WANT_RENEW   4

static void change(struct work_struct *work);

void coop_qp_init(struct coop_rnic *r, struct coop_qp *qp, enum coop_qp_kind kind, u16 slot,
		  const struct coop_qp_ops *ops)
{
	qp->rnic = r;
	qp->kind = kind;
	qp->slot = slot;
	qp->ops = ops;
	qp->overdue_at = ~0ULL;
	INIT_WORK(&qp->change, change);
}

static void want(struct coop_rnic *r, struct coop_qp *qp, u8 what)
{
	lockdep_assert_held(&r->node->lock);
	qp->wants |= what;
	qp->ready = false;
	qp->overdue_at = ~0ULL;
	queue_work(r->node->changes, &qp->change);
}

void coop_qp_stop(struct coop_rnic *r, struct coop_qp *qp)
{
	if (!qp->ready) /* it is stopped, or will be */
		return;
	trace_coopfs_qp(r, qp, COOP_QP_STOPPED);
	want(r, qp, WANT_STOP);
}

void coop_qp_discard(struct coop_rnic *r, struct coop_qp *qp)
{
	want(r, qp, WANT_DESTROY);
}

void coop_qp_renew(struct coop_rnic *r, struct coop_qp *qp)
{
	if (r->closing)
		return;
	trace_coopfs_qp(r, qp, COOP_QP_RECYCLED);
	if (qp->died)
		coop_count(r->node->stats, COOP_C_QP_RECYCLED, 1);
	qp->died = false;
	want(r, qp, WANT_RENEW);
}

/* The lock held: what to do next. 0: nothing. */
static u8 next_change(struct coop_rnic *r, struct coop_qp *qp)
{
	u8 what;

	if (qp->taken) /* the end of all: see coop_rnic_silence() */
		return 0;
	if (r->closing)
		qp->wants &= ~WANT_RENEW;
	if (!qp->ib)
		qp->wants &= WANT_RENEW;
	if (qp->wants & WANT_DESTROY)
		qp->wants &= ~WANT_STOP;
	/* It is in ERR and has nothing posted: what was late has come. */
	if ((qp->wants & WANT_RENEW) && qp->stopped)
		qp->wants = WANT_RENEW;
	what = qp->wants & -qp->wants;
	qp->wants &= ~what;
	return what;
}

/* The lock held: the device has answered. */
static void changed(struct coop_rnic *r, struct coop_qp *qp, u8 what, int err, u64 now)
{
	if (what == WANT_RENEW) {
		qp->wants = 0; /* nothing was posted meanwhile: they were about what was before */
		qp->ready = !err;
		qp->stopped &= err != 0;
		qp->ops->renewed(r, qp, err, now);
		return;
	}
	if (what == WANT_STOP)
		qp->stopped = !err;
	if (qp->wants & WANT_RENEW) /* nothing is posted: its owner waits for the end of that */
		return;
	if (what == WANT_DESTROY && err)
		coop_rnic_await(r, qp, now + COOP_QUIET_US);
	else if (what == WANT_DESTROY)
		qp->ops->lost(r, qp, now);
	else if (err)
		coop_rnic_await(r, qp, 0);
	else
		qp->ops->stopped(r, qp, now);
}

/* Drops and takes the lock. */
static int perform(struct coop_rnic *r, struct coop_qp *qp, u8 what)
{
	struct ib_qp *ib = coop_qp_take(qp);
	bool other = false;
	int err = 0;

	mutex_unlock(&r->node->lock);
	switch (what) {
	case WANT_STOP:
		err = coop_qp_to_error(ib);
		break;
	case WANT_DESTROY:
		err = coop_qp_end(r, &ib);
		other = !err;
		break;
	case WANT_RENEW:
		err = coop_qp_to_ready(r, qp, &ib, &other);
		break;
	}
	mutex_lock(&r->node->lock);
	coop_qp_give_back(qp, ib, other);
	return err;
}

static void change(struct work_struct *work)
{
	struct coop_qp *qp = container_of(work, struct coop_qp, change);
	struct coop_rnic *r = qp->rnic;
	struct coop_node *node = r->node;
	const unsigned int flags = memalloc_noio_save();
	struct mem_cgroup *outer = set_active_memcg(node->cfg.memcg);
	bool any = false;
	u64 now;
	u8 what;
	int err;

	mutex_lock(&node->lock);
	while ((what = next_change(r, qp))) {
		err = perform(r, qp, what);
		now = coop_now_us();
		changed(r, qp, what, err, now);
		coop_pump_drain(node, now);
		coop_pump_arm(node, now);
		any = true;
	}
	mutex_unlock(&node->lock);
	set_active_memcg(outer);
	memalloc_noio_restore(flags);
	if (any)
		coop_node_kick(node); /* to watch what drain() began, and for done() */
}
