// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * fetch_qp.c - changes of a fetch slot's queue pair, in a work of the slot.
 *
 * A lost datagram stops the queue pair (one command to the firmware) and puts it back to work
 * (four, or it is destroyed and created anew). Readers, the pump and all other slots need the
 * node's lock meanwhile, so none of that happens under it: whoever wants a change notes it in
 * 'wants' and queues the work, which takes the queue pair, gives its orders to the device without
 * the lock, and then reports to the engine.
 *
 *   STOP     to ERR: a completion follows for each receive that is posted
 *   DESTROY  they have not come in time: behind it the device owns no memory, and they count as
 *            flushed; a device that refuses is asked again after COOP_QUIET_US
 *   RENEW    all have come: back to RTS. The engine uses the slot again when it hears of the end
 *            (reset_done); if that failed, the receives of the next attempt fail, and so it wants
 *            the same again.
 *
 * Nothing is posted from STOP to the end of RENEW, so a later wish includes those before it.
 */
#include <linux/sched/mm.h>

#include "ib/node.h"
#include "ib/trace.h"

static void want(struct coop_rnic *r, struct coop_fetch_slot *s, u8 what)
{
	lockdep_assert_held(&r->node->lock);
	s->wants |= what;
	s->qp.ready = false;
	queue_work(r->node->changes, &s->change);
}

void coop_fetch_qp_stop(struct coop_rnic *r, struct coop_fetch_slot *s)
{
	if (!s->qp.ready) /* it is stopped, or will be */
		return;
	trace_coopfs_qp(r, &s->qp, COOP_QP_STOPPED);
	want(r, s, COOP_WANT_STOP);
}

void coop_fetch_qp_destroy(struct coop_rnic *r, struct coop_fetch_slot *s)
{
	s->qp.overdue_at = ~0ULL;
	want(r, s, COOP_WANT_DESTROY);
}

void coop_fetch_qp_renew(struct coop_rnic *r, struct coop_fetch_slot *s)
{
	trace_coopfs_qp(r, &s->qp, COOP_QP_RECYCLED);
	if (s->qp.died)
		coop_count(r->node->stats, COOP_C_QP_RECYCLED, 1);
	s->qp.died = false;
	s->qp.overdue_at = ~0ULL;
	coop_engine_reset_begin(r->node->engine, s->qp.slot);
	want(r, s, COOP_WANT_RENEW);
}

/* The lock held: what to do next. 0: nothing. */
static u8 next_change(struct coop_rnic *r, struct coop_fetch_slot *s)
{
	const u8 wants = s->wants;

	if (s->qp.taken) /* the end of all: see coop_rnic_silence() */
		return 0;
	s->wants = 0;
	if (wants & COOP_WANT_RENEW)
		return r->closing ? 0 : COOP_WANT_RENEW;
	if (!s->qp.ib)
		return 0;
	return wants & COOP_WANT_DESTROY ? COOP_WANT_DESTROY : wants;
}

/* The lock held: the device has answered. */
static void changed(struct coop_rnic *r, struct coop_fetch_slot *s, u8 what, int err, u64 now)
{
	struct coop_engine *engine = r->node->engine;

	switch (what) {
	case COOP_WANT_STOP:
		if (err) /* refused: destroy it at once */
			coop_rnic_await(r, &s->qp, 0);
		break;
	case COOP_WANT_DESTROY:
		if (err)
			coop_rnic_await(r, &s->qp, now + COOP_QUIET_US);
		else
			coop_requester_lost(r, s, now);
		break;
	case COOP_WANT_RENEW:
		s->qp.ready = !err;
		if (!err) /* it may have a new QPN */
			coop_engine_set_fetch_qp(engine, s->qp.slot, s->qp.ib->qp_num, r->qkey);
		coop_engine_reset_done(engine, s->qp.slot, now);
		break;
	}
}

/* Takes and drops the lock. */
static int perform(struct coop_rnic *r, struct coop_fetch_slot *s, u8 what)
{
	struct ib_qp *ib = coop_qp_take(&s->qp);
	bool other = false;
	int err = 0;

	mutex_unlock(&r->node->lock);
	switch (what) {
	case COOP_WANT_STOP:
		err = coop_qp_to_error(ib);
		break;
	case COOP_WANT_DESTROY:
		err = coop_qp_end(r, &ib);
		other = !err;
		break;
	case COOP_WANT_RENEW:
		err = coop_qp_renew(r, &s->qp, &ib, &other);
		break;
	}
	mutex_lock(&r->node->lock);
	coop_qp_give_back(&s->qp, ib, other);
	return err;
}

void coop_fetch_qp_work(struct work_struct *work)
{
	struct coop_fetch_slot *s = container_of(work, struct coop_fetch_slot, change);
	struct coop_rnic *r = s->rnic;
	struct coop_node *node = r->node;
	const unsigned int flags = memalloc_noio_save();
	struct mem_cgroup *outer = set_active_memcg(node->cfg.memcg);
	bool any = false;
	u64 now;
	u8 what;
	int err;

	mutex_lock(&node->lock);
	while ((what = next_change(r, s))) {
		err = perform(r, s, what);
		now = coop_now_us();
		changed(r, s, what, err, now);
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
