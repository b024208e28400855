// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * pump.c - drives a node: feeds completions to the engine, performs the engine's
 * work, and checks deadlines.
 *
 * A completion queue or the timer queues the work. A turn processes all
 * completions before it checks deadlines, because after a pause of this thread
 * answers wait in the queue while their deadlines have passed. Only an endless
 * backlog is cut short. Before the work ends it requests the next notification,
 * and continues if a completion came in between.
 */
#include <linux/sched/mm.h>

#include "ib/node.h"

#define ROUNDS_PER_TURN 8
#define BEHIND_US       2000  /* longest delay of data sends while completions keep arriving */
#define LATE_US         20000 /* longest delay of the deadlines of lines, likewise */
#define SPIN_MOST_US    2000  /* then the pump gives its worker back */

static void dispatch(struct coop_rnic *r, const struct ib_wc *wc, bool recv, u64 now)
{
	u32 slot = coop_wr_slot(wc->wr_id);

	switch (coop_wr_kind(wc->wr_id)) {
	case COOP_QP_CTRL:
		if (coop_wr_of(wc->wr_id, &r->ctrl.qp))
			coop_ctrl_completed(r, &r->ctrl, wc, recv, now);
		break;
	case COOP_QP_DATA:
		if (coop_wr_of(wc->wr_id, &r->data.qp))
			coop_ctrl_completed(r, &r->data, wc, recv, now);
		break;
	case COOP_QP_FETCH:
		if (slot < r->n_fetch && coop_wr_of(wc->wr_id, &r->fetch[slot].qp))
			coop_requester_completed(r, wc, now);
		break;
	case COOP_QP_SERVE:
		if (slot < r->n_serve && coop_wr_of(wc->wr_id, &r->serve[slot].qp))
			coop_responder_completed(r, wc, now);
		break;
	}
}

static u32 poll_queue(struct coop_rnic *r, struct ib_cq *cq, bool recv, u64 now)
{
	int n, i;

	n = ib_poll_cq(cq, COOP_BATCH, r->wc);
	for (i = 0; i < n; i++)
		dispatch(r, &r->wc[i], recv, now);
	return n > 0 ? (u32)n : 0;
}

/*
 * Do we need a wake-up when a send completes? Not for control messages: the next event frees their
 * buffers as well, and a wake-up for the send would come just before that for the answer and cost
 * as much. That also finds a failed send, at the latest with the timer of its request.
 */
static bool messages_matter(const struct coop_ctrl *c)
{
	return !c->qp.ready || c->n_free <= COOP_CTRL_SENDS / 2;
}

static bool sends_matter(const struct coop_rnic *r)
{
	return r->n_serving || r->closing || messages_matter(&r->ctrl) ||
	       (r->node->cfg.lines && messages_matter(&r->data));
}

/*
 * The few datagrams of a small fetch can wait for the COMMIT behind them, which is a solicited
 * event like every message. Datagrams of a large fetch are processed as they arrive; otherwise all
 * of them would be processed at its end. So are datagrams of lines.
 */
static bool notify_recv(struct coop_rnic *r)
{
	r->data_watched = r->n_large || r->node->cfg.lines;
	return ib_req_notify_cq(r->rcq,
				IB_CQ_REPORT_MISSED_EVENTS |
					(r->data_watched ? IB_CQ_NEXT_COMP : IB_CQ_SOLICITED)) <= 0;
}

void coop_pump_watch_data(struct coop_rnic *r)
{
	if (!r->data_watched && !notify_recv(r))
		coop_node_kick(r->node);
}

/* Requests a notification for the next completion. False: there is a completion already. */
static bool notify(struct coop_rnic *r)
{
	const enum ib_cq_notify_flags flags = IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS;
	bool rest = notify_recv(r);

	r->sends_watched = sends_matter(r);
	if (r->sends_watched)
		rest &= ib_req_notify_cq(r->scq, flags) <= 0;
	return rest;
}

static void perform(struct coop_rnic *r, const struct coop_tx *tx, u64 now)
{
	switch (tx->kind) {
	case COOP_TX_CTRL:
		coop_ctrl_send(r, tx, now);
		break;
	case COOP_TX_POST_RECV:
		coop_requester_post(r, tx, now);
		break;
	case COOP_TX_DATA:
		coop_responder_send(r, tx, now);
		break;
	case COOP_TX_STOP_QP:
		coop_requester_stop(r, tx->slot);
		break;
	case COOP_TX_RESET_QP:
		coop_requester_reset(r, tx->slot);
		break;
	}
}

static void handle(struct coop_rnic *r, const struct coop_ev *ev, u64 now)
{
	switch (ev->kind) {
	case COOP_EV_LOOKUP:
		coop_responder_lookup(r, ev, now);
		break;
	case COOP_EV_RECHECK:
		coop_responder_recheck(r, ev, now);
		break;
	case COOP_EV_SERVE_END:
		coop_responder_end(r, ev);
		break;
	case COOP_EV_VERIFY:
		coop_requester_verify(r, ev, now);
		break;
	case COOP_EV_FETCH_DONE:
		coop_requester_finished(r, ev, now);
		break;
	case COOP_EV_PEER:  /* the peers file in /proc shows it */
	case COOP_EV_OFFER: /* this node makes no room for what others drop */
		break;
	}
}

static bool next_tx(struct coop_rnic *r, bool data, u64 now, struct coop_tx *tx)
{
	struct coop_engine *engine = r->node->engine;

	return data && coop_responder_has_room(r) ? coop_engine_next_tx(engine, now, tx)
						  : coop_engine_next_urgent_tx(engine, now, tx);
}

/* data: send segments of serves too, not only urgent messages. */
static void drain(struct coop_node *node, bool data, u64 now)
{
	const struct coop_lines_ops *lines = node->cfg.lines;
	struct coop_engine *engine = node->engine;
	struct coop_rnic *r = node->rnic;
	bool more = true, looked = false;
	struct coop_tx tx;
	struct coop_ev ev;

	lockdep_assert_held(&node->lock);
	while (more && r) {
		more = false;
		for (; next_tx(r, data, now, &tx); more = true) {
			if (tx.kind != COOP_TX_CTRL)
				coop_ctrl_flush(r, now); /* in the engine's order */
			perform(r, &tx, now);
		}
		coop_ctrl_flush(r, now);
		for (; coop_engine_next_event(engine, now, &ev); more = true)
			handle(r, &ev, now);
		/* The mark first: what settles after this look sets it again, with a kick of its
		 * own. Once a drain: storage could set it faster than we look. */
		if (!looked && atomic_read(&node->settled) && atomic_xchg(&node->settled, 0)) {
			looked = true;
			coop_responder_look_again(r, now);
			more = true;
		}
		if (lines) {
			more |= lines->drain(node->host, now);
			coop_ctrl_flush(r, now);
		}
	}
}

void coop_pump_drain(struct coop_node *node, u64 now)
{
	drain(node, true, now);
}

void coop_pump_arm(struct coop_node *node, u64 now)
{
	u64 when;

	lockdep_assert_held(&node->lock);
	if (!node->rnic)
		return;
	when = coop_engine_deadline(node->engine);
	if (!node->rnic->closing) /* else coop_rnic_overdue() does nothing about it */
		when = min(when, node->rnic->overdue_at);
	if (node->cfg.lines && !node->rnic->closing)
		when = min(when, node->cfg.lines->deadline(node->host));
	/* If the timer fires too early, the pump only sets it again. */
	if (when == ~0ULL || (when >= node->timer_at && node->timer_at > now))
		return;
	node->timer_at = when;
	hrtimer_start(&node->timer, ns_to_ktime(when * NSEC_PER_USEC), HRTIMER_MODE_ABS_SOFT);
}

enum hrtimer_restart coop_pump_timer(struct hrtimer *timer)
{
	coop_node_kick(container_of(timer, struct coop_node, timer));
	return HRTIMER_NORESTART;
}

/* The host's deadlines, as those of the engine: after a pause received datagrams come first. */
static void lines_overdue(struct coop_node *node, bool dry, u64 now)
{
	const struct coop_lines_ops *lines = node->cfg.lines;
	u64 deadline;

	if (!lines || node->rnic->closing)
		return;
	deadline = lines->deadline(node->host);
	if (now < deadline || (!dry && now - deadline < LATE_US))
		return;
	lines->expire(node->host, now);
	coop_pump_drain(node, now);
}

/* True: there is more work at once. */
static bool turn(struct coop_node *node)
{
	const struct coop_lines_ops *lines = node->cfg.lines;
	struct coop_rnic *r = node->rnic;
	u64 now = coop_now_us(), began = now;
	bool dry = false, rest = false, data;
	u32 round, n;

	for (round = 0; round < ROUNDS_PER_TURN && !dry; round++) {
		now = coop_now_us();
		if (lines) /* first: what arrives may be for a buffer that it gives now */
			rest = lines->awake(node->host, now);
		n = poll_queue(r, r->rcq, true, now);
		data = !n || round + 1 == ROUNDS_PER_TURN || now - began >= BEHIND_US;
		n += poll_queue(r, r->scq, false, now);
		coop_ctrl_repost(r);
		n += coop_ctrl_mail(r, now);
		dry = !n;
		drain(node, data, now);
	}
	if (coop_engine_overdue(node->engine, dry, now)) {
		coop_engine_expire(node->engine, now);
		coop_pump_drain(node, now);
	}
	/* Check after all completions were processed, unless they never end. */
	if (now >= r->overdue_at && (dry || now - r->overdue_at >= COOP_QUIET_US)) {
		coop_rnic_overdue(r, now);
		coop_pump_drain(node, now);
	}
	lines_overdue(node, dry, now);
	coop_pump_arm(node, now);
	return !dry || rest;
}

/* True: nothing is left to do, and the next completion queues the pump. */
static bool may_sleep(struct coop_node *node)
{
	const struct coop_lines_ops *lines = node->cfg.lines;

	return (!lines || lines->asleep(node->host)) && notify(node->rnic);
}

void coop_pump_report(struct coop_node *node)
{
	struct coop_node_fetch *f, *next;
	LIST_HEAD(ended);

	mutex_lock(&node->lock);
	list_splice_init(&node->ended, &ended);
	mutex_unlock(&node->lock);
	list_for_each_entry_safe(f, next, &ended, link) {
		list_del(&f->link);
		f->done(f, f->good, f->err); /* the caller owns f again */
	}
}

/* spin: the host may want to look for completions for a while. True: call it again. */
static bool pump_turn(struct coop_node *node, bool spin)
{
	const struct coop_lines_ops *lines = node->cfg.lines;
	bool again = false, ended;
	struct mem_cgroup *outer;
	unsigned int flags;

	flags = memalloc_noio_save();
	outer = set_active_memcg(node->cfg.memcg);
	mutex_lock(&node->lock);
	if (node->rnic) {
		again = turn(node) || (spin && lines && lines->spin(node->host, coop_now_us())) ||
			!may_sleep(node);
	}
	ended = !list_empty(&node->ended);
	if (node->rnic && node->rnic->closing)
		wake_up(&node->idle);
	mutex_unlock(&node->lock);
	set_active_memcg(outer);
	memalloc_noio_restore(flags);
	if (ended)
		coop_pump_report(node);
	return again;
}

void coop_pump_work(struct work_struct *work)
{
	struct coop_node *node = container_of(work, struct coop_node, pump);
	const u64 began = coop_now_us();

	while (pump_turn(node, true))
		if (need_resched() || coop_now_us() - began >= SPIN_MOST_US) {
			coop_node_kick(node);
			break;
		}
}

/* ---- a process in place of the pump ---------------------------------------------- */

/*
 * A process that sleeps for its machine's events has to run for them anyway. So a completion
 * wakes it, and it performs the turn itself: one change of context instead of two. Before it
 * sleeps it stores that it does, and looks whether a completion came; a completion is marked
 * first, and then finds whether the process sleeps. If the process does not come (it is stopped,
 * or does other work), the pump takes over after HELP_US, and until the process sleeps again.
 */
#define HELP_US    250ULL
#define HELP_TURNS 4 /* then the pump goes on */

static void help(struct coop_node *node)
{
	u32 n = 0;
	bool again;

	do
		again = pump_turn(node, false);
	while (again && ++n < HELP_TURNS);
	if (again)
		coop_node_kick(node);
}

void coop_pump_completed(struct coop_node *node)
{
	if (READ_ONCE(node->helped)) {
		WRITE_ONCE(node->due_at, ktime_get());
		atomic_set(&node->due, 1);
		smp_mb(); /* pairs with those of coop_lines_sleep() and coop_lines_wake() */
		if (READ_ONCE(node->helped)) {
			node->cfg.lines->rouse(node->host);
			if (!hrtimer_is_queued(&node->help))
				hrtimer_start(&node->help, ns_to_ktime(HELP_US * NSEC_PER_USEC),
					      HRTIMER_MODE_REL_SOFT);
			return;
		}
	}
	coop_node_kick(node);
}

enum hrtimer_restart coop_pump_unhelped(struct hrtimer *timer)
{
	struct coop_node *node = container_of(timer, struct coop_node, help);
	ktime_t until;

	smp_mb(); /* who saw the timer queued has set 'due' before */
	if (!atomic_read(&node->due))
		return HRTIMER_NORESTART;
	until = ktime_add_us(READ_ONCE(node->due_at), HELP_US);
	if (ktime_before(ktime_get(), until)) {
		hrtimer_start(timer, until,
			      HRTIMER_MODE_ABS_SOFT); /* completions may start it, too */
		return HRTIMER_NORESTART;
	}
	WRITE_ONCE(node->helped, false);
	coop_node_kick(node);
	return HRTIMER_NORESTART;
}

void coop_lines_sleep(struct coop_node *node)
{
	WRITE_ONCE(node->helped, true);
	smp_mb(); /* a completion sees this, or we see its mark */
	coop_lines_look(node);
}

void coop_lines_look(struct coop_node *node)
{
	if (atomic_read(&node->due) && atomic_xchg(&node->due, 0))
		help(node);
}

void coop_lines_wake(struct coop_node *node)
{
	WRITE_ONCE(node->helped, false);
	smp_mb(); /* as above */
	if (atomic_read(&node->due) && atomic_xchg(&node->due, 0))
		coop_node_kick(node);
}

bool coop_lines_due(struct coop_node *node)
{
	return atomic_read(&node->due);
}
