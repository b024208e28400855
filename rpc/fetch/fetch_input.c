// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What reaches a fetch: answers on the control queue pair, completions of its
 * WRs, and its timer; see fetch.h. Every entry names the states in which it
 * means something; in all others it is counted and dropped.
 */
#include "core.h"

static u32 longest_patience(const struct coop_fetch *f)
{
	return coop_max_u32(f->budget_us / 4, COOP_RTO_MIN_US);
}

/* Data answer the REQUEST; what else comes may answer a QUERY, which tells no RTT. */
static void first_answer(struct coop_engine *e, struct coop_fetch *f, bool data, u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	if (f->t_first)
		return;
	f->t_first = now;
	if (!p)
		return;
	if (!f->queried)
		coop_peer_rtt(p, now - f->t_sent);
	else if (data && (e->cfg.flags & COOP_F_SOLE_SOURCE))
		/* Asked about early as it is, a slow way would else never be measured. A pause of
		 * the peer is no part of its way, and may be as long as the budget. */
		coop_peer_rtt(p, coop_min_u64(now - f->t_sent, longest_patience(f)));
}

/* Of this attempt's generation, so whoever sent it knows what the peer was asked. */
static void data_came(struct coop_engine *e, struct coop_fetch *f, const struct coop_rx *rx,
		      u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	f->t_last = now;
	f->t_heard = now;
	first_answer(e, f, true, now);
	if (!p || (rx->has_gid && memcmp(rx->src_gid, p->addr.gid, sizeof(rx->src_gid))))
		return;
	p->answered_at = now;
	coop_peer_spoke(e, p, now);
}

/*
 * Of a late one the RTT says little: a share of the budget at most, so that rounds are left. Those
 * are many with the only source; of several, one that is given up too early is asked anew while its
 * data are on their way, and those cost copies.
 */
static u32 grace(const struct coop_engine *e, const struct coop_fetch *f, const struct coop_peer *p)
{
	const u32 share = e->cfg.flags & COOP_F_SOLE_SOURCE ? 8 : 4;
	const u32 most = coop_max_u32(f->budget_us / share, COOP_GRACE_MIN_US);

	return p ? coop_min_u32(coop_peer_grace(p), most) : COOP_GRACE_MIN_US;
}

static bool commit_credible(const struct coop_engine *e, const struct coop_fetch *f,
			    const struct coop_msg_commit *c)
{
	if ((c->fid.hi != f->req.fid.hi || c->fid.lo != f->req.fid.lo ||
	     c->version != f->req.version) &&
	    !(e->cfg.flags & COOP_F_TEST_NO_IDENTITY))
		return false;
	if (c->pages & ~f->all)
		return false;
	if (!c->pages)
		return true;
	if (c->size != f->req.size)
		return false;
	/* Nothing less than was asked for: a peer cannot talk us out of the tags. */
	if (e->cfg.flags & COOP_F_PAGE_TAG)
		return c->tags && c->n_sums == f->plan.n_pages;
	return !c->tags &&
	       (c->n_sums == f->plan.n_pages || (!c->n_sums && !(e->cfg.flags & COOP_F_PAGE_CRC)));
}

static void on_commit(struct coop_engine *e, struct coop_fetch *f, const struct coop_msg *m,
		      u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	e->stats.commits_rx++;
	if (!commit_credible(e, f, &m->u.commit)) {
		e->stats.commits_bad++;
		if (f->state == COOP_FETCH_WAIT)
			coop_fetch_conclude(e, f, COOP_OUT_BARRED, COOP_FAILS_TO_OPEN, now);
		return;
	}
	f->commit = m->u.commit;
	f->committed = true;
	if (f->state == COOP_FETCH_STOP) /* it comes late, but before the judgement */
		return;
	/* Of few datagrams the host may hear no sooner than now: they tell no rate. */
	if (p && f->t_first && now > f->t_first && coop_fetch_posting(e, f)->n_wr > COOP_KEPT_SEGS)
		coop_peer_rate(p, coop_fetch_asked_bytes(e, f), now - f->t_first);
	first_answer(e, f, false, now);
	if (coop_posting_quiet(coop_fetch_posting(e, f))) {
		coop_fetch_conclude(e, f, COOP_OUT_CLEAN, 0, now);
		return;
	}
	f->t_armed = now;
	coop_fetch_arm(e, f, now + grace(e, f, p));
}

static void on_refused(struct coop_engine *e, struct coop_fetch *f, const struct coop_msg *m,
		       u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	if (m->reason != COOP_REASON_NO_RECORD)
		e->stats.fetches_refused++;
	switch (m->reason) {
	case COOP_REASON_NO_RECORD: /* what was asked for has not reached it, or is forgotten */
		if (!f->queried)
			return; /* nobody was asked for a record */
		coop_fetch_conclude(e, f, COOP_OUT_SILENT, 0, now);
		return;
	case COOP_REASON_MTU:
		if (p && m->value >= COOP_MTU_MIN && m->value < f->plan.mtu && m->value % 4 == 0) {
			p->mtu = m->value; /* smaller each time, so this ends */
			coop_fetch_conclude(e, f, COOP_OUT_SILENT, 0, now);
			return;
		}
		break;
	default:
		break;
	}
	coop_fetch_conclude(e, f, COOP_OUT_BARRED, COOP_FAILS_TO_OPEN, now);
}

/*
 * Microseconds that it wants to be left alone for. This fetch waits twice as long each time, and
 * for a share of its budget in all: one that is always busy must not cost a reader much.
 */
static u32 said_busy(struct coop_engine *e, struct coop_fetch *f, u32 hint, u64 now)
{
	struct coop_tried *t = coop_fetch_tried(f, f->peer);
	const u32 us = coop_min_u32(coop_max_u32(hint, COOP_GRACE_MIN_US), COOP_RTO_MAX_US);

	if (!f->t_busy)
		f->t_busy = now + f->budget_us / COOP_BUSY_SHARE;
	if (t) {
		t->rounds--; /* begin() has counted it */
		t->until = now + coop_min_u64((u64)us << t->busy++, COOP_RTO_MAX_US);
		t->until = now < f->t_busy ? coop_min_u64(t->until, f->t_busy) : ~0ull;
	}
	return us;
}

bool coop_fetch_answer(struct coop_engine *e, const struct coop_msg *m, u64 now)
{
	u32 i = coop_idtab_slot(&e->fetch_ids, (u32)m->id);
	struct coop_fetch *f = i == COOP_NONE ? NULL : &e->fetch[i];
	struct coop_tried *t;
	struct coop_peer *p;
	bool waits, late;

	if (!f || f->request_id != m->id || f->slot == COOP_NONE ||
	    coop_fetch_posting(e, f)->imm != m->imm)
		return false;
	waits = f->state == COOP_FETCH_WAIT && !f->committed;
	late = f->state == COOP_FETCH_STOP && !f->committed && m->command == COOP_CMD_COMMIT &&
	       f->outcome != COOP_OUT_BARRED;
	if (!waits && !late)
		return false;

	p = coop_peers_get(&e->peers, f->peer);
	if (p)
		p->answered_at = now;
	t = coop_fetch_tried(f, f->asked);
	if (t)
		t->silent = 0;
	switch (m->command) {
	case COOP_CMD_COMMIT:
		on_commit(e, f, m, now);
		break;
	case COOP_CMD_BUSY:
		first_answer(e, f, false, now);
		if (p) {
			p->busy++;
			p->fails = 0;
			p->busy_until = now + said_busy(e, f, m->value, now);
		}
		coop_fetch_conclude(e, f, COOP_OUT_BUSY, 0, now);
		break;
	case COOP_CMD_AGAIN: /* alive, and its COMMIT is to come; the budget is the bound */
		if (!(e->cfg.flags & COOP_F_SOLE_SOURCE))
			f->queries = 0;
		f->t_heard = now;
		f->t_armed = now;
		coop_fetch_arm(e, f,
			       now + coop_max_u32(coop_min_u32(m->value, COOP_RTO_MAX_US),
						  coop_fetch_wait(e, f, now)));
		break;
	case COOP_CMD_REFUSED:
		on_refused(e, f, m, now);
		break;
	default:
		return false;
	}
	return true;
}

/* No WR is left. */
static void ran_dry(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	struct coop_peer *p;

	switch (f->state) {
	case COOP_FETCH_WAIT:
		if (f->dead_qp || f->committed) {
			coop_fetch_conclude(e, f, f->committed ? COOP_OUT_CLEAN : COOP_OUT_SILENT,
					    0, now);
			break;
		}
		p = coop_peers_get(&e->peers, f->peer);
		f->t_armed = now; /* the COMMIT should be on its heels */
		coop_fetch_arm(e, f, now + coop_max_u32(grace(e, f, p), COOP_RTO_MIN_US / 2));
		break;
	case COOP_FETCH_ASK: /* late guests of an earlier attempt took the WRs that were to be
				reused */
		if (f->dead_qp) {
			coop_fetch_conclude(e, f, COOP_OUT_SILENT, 0, now);
		} else if (!(f->due & COOP_DUE_POST)) {
			coop_posting_start(coop_fetch_posting(e, f), &f->plan, f->want);
			coop_fetch_owe(e, f, COOP_DUE_POST);
		}
		break;
	case COOP_FETCH_PAUSE:
		if (f->dead_qp)
			coop_fetch_stop(e, f);
		break;
	case COOP_FETCH_STOP:
		if (!(f->due & COOP_DUE_STOP) || !f->dead_qp)
			coop_fetch_stopped(e, f, now);
		break;
	case COOP_FETCH_FREE:
	case COOP_FETCH_QUEUED:
	case COOP_FETCH_VERIFY:
	case COOP_FETCH_DONE:
	default:
		break;
	}
}

static struct coop_fetch *of_slot(struct coop_engine *e, u32 slot)
{
	if (WARN_ON_ONCE(slot >= e->cfg.max_fetches) || e->slot[slot].fetch == COOP_NONE)
		return NULL;
	return &e->fetch[e->slot[slot].fetch];
}

void coop_engine_rx_data(struct coop_engine *e, const struct coop_rx *rx, u64 now)
{
	struct coop_fetch *f = of_slot(e, rx->slot);
	struct coop_posting *post;

	if (!f)
		return;
	post = coop_fetch_posting(e, f);
	switch (coop_posting_rx(post, rx, e->cfg.flags)) {
	case COOP_RX_KEPT:
		e->stats.segs_rx++;
		data_came(e, f, rx, now);
		break;
	case COOP_RX_PAD:
		e->stats.pads_rx++;
		data_came(e, f, rx, now);
		break;
	case COOP_RX_STALE:
		e->stats.segs_stale++;
		break;
	case COOP_RX_DUP:
		e->stats.segs_dup++;
		break;
	case COOP_RX_FOREIGN:
		e->stats.segs_foreign++;
		break;
	case COOP_RX_BAD:
		e->stats.segs_bad++;
		break;
	case COOP_RX_IGNORED:
		e->stats.segs_bad++;
		return;
	}
	if (coop_posting_quiet(post)) {
		ran_dry(e, f, now);
		coop_fetch_admit(e, now);
	}
}

void coop_engine_rx_flush(struct coop_engine *e, u32 slot, u32 n, u64 now)
{
	struct coop_fetch *f = of_slot(e, slot);

	if (!f || coop_posting_quiet(coop_fetch_posting(e, f)))
		return;
	e->stats.flushes += n;
	f->dead_qp = true;
	coop_posting_flush(coop_fetch_posting(e, f), n);
	if (coop_posting_quiet(coop_fetch_posting(e, f)))
		ran_dry(e, f, now);
	else if (f->state == COOP_FETCH_WAIT)
		coop_fetch_conclude(e, f, f->committed ? COOP_OUT_CLEAN : COOP_OUT_SILENT, 0, now);
	else if (f->state == COOP_FETCH_ASK)
		coop_fetch_conclude(e, f, COOP_OUT_SILENT, 0, now);
	else if (f->state == COOP_FETCH_PAUSE)
		coop_fetch_stop(e, f);
	coop_fetch_admit(e, now);
}

u32 coop_fetch_patience(const struct coop_engine *e, const struct coop_fetch *f)
{
	const struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	u32 most = longest_patience(f);

	/* Asking again sooner costs the peer a second serve and us a stopped queue pair. */
	u32 least = f->budget_us / 8;

	return p ? coop_min_u32(most,
				coop_max_u32(least,
					     coop_peer_rto(p, coop_fetch_asked_bytes(e, f), most)))
		 : most;
}

/* Until when the only one that has it is asked about an attempt, if nothing more is heard of it. */
static u64 questions_end(const struct coop_engine *e, struct coop_fetch *f)
{
	const u64 patience = coop_fetch_patience(e, f);

	return f->t_heard + (patience << coop_fetch_backoff(f)) + COOP_MAX_QUERIES * patience;
}

u32 coop_fetch_wait(const struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	const struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	u32 patience = coop_fetch_patience(e, f);
	u64 soon, end;

	if (!(e->cfg.flags & COOP_F_SOLE_SOURCE) || !p || !p->srtt_us)
		return patience;
	/* A question costs the peer a look at its records, and us no more than that. */
	soon = (u64)coop_peer_rto(p, coop_fetch_asked_bytes(e, f), patience)
	       << coop_min_u32(f->queries, 8);
	soon = coop_min_u64(soon, patience);
	end = questions_end(e, f);
	return (u32)(end > now ? coop_min_u64(soon, end - now) : soon);
}

u32 coop_fetch_backoff(struct coop_fetch *f)
{
	const struct coop_tried *t = coop_fetch_tried(f, f->peer);

	return t ? coop_min_u32(t->silent, 3) : 0;
}

/* May it be asked what it committed, before another attempt? */
static bool may_question(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	if (e->cfg.flags & COOP_F_SOLE_SOURCE)
		return now < questions_end(e, f);
	if (coop_fetch_posting(e, f)->n_rx)
		return f->queries < COOP_MAX_QUERIES;
	/*
	 * Perhaps nothing has reached it, perhaps it is only slow. Then an attempt anew would make
	 * it begin anew, while the data of this one take the WRs.
	 */
	return !f->queries && !coop_fetch_elsewhere(e, f, now);
}

/*
 * It answers others of ours, so our turn is to come, or its word was lost; whichever it was, it
 * knows. An attempt anew would put us at the end of the line, with all that was sent in vain.
 */
static bool in_line(struct coop_engine *e, struct coop_fetch *f, const struct coop_peer *p, u64 now)
{
	return p && p->origin && p->health != COOP_PEER_OPEN && p->answered_at > f->t_armed &&
	       !coop_fetch_elsewhere(e, f, now);
}

/* The peer has said nothing since it was asked: counted once an attempt. */
static void unheard(struct coop_engine *e, struct coop_fetch *f, struct coop_peer *p, u64 now)
{
	if (!p || f->unheard || !p->silent_since || p->silent_since > f->t_sent)
		return;
	if ((e->cfg.flags & COOP_F_SOLE_SOURCE) &&
	    now - f->t_heard < coop_fetch_patience(e, f)) /* only asked early */
		return;
	f->unheard = true;
	coop_peer_silence(e, p, now);
}

static void wait_over(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	struct coop_tried *t;
	u64 until;

	if (!f->t_first && !f->committed && (!p || p->health == COOP_PEER_OPEN)) {
		coop_fetch_conclude(e, f, COOP_OUT_SILENT, 0, now);
		return;
	}
	if (now < f->t_end && f->t_last > f->t_armed) { /* data still came in: patience anew */
		until = f->t_last + (f->committed ? grace(e, f, p) : coop_fetch_wait(e, f, now));
		f->t_armed = f->t_last;
		if (until > now) {
			coop_fetch_arm(e, f, until);
			return;
		}
	}
	if (f->committed) {
		coop_fetch_conclude(e, f, COOP_OUT_CLEAN, 0, now);
	} else if (now < f->t_end && (may_question(e, f, now) || in_line(e, f, p, now))) {
		if (!f->t_first)
			unheard(e, f, p, now);
		if (f->queries < 0xff)
			f->queries++;
		f->t_armed = now;
		coop_fetch_arm(e, f, f->t_end);
		coop_fetch_owe(e, f, COOP_DUE_QUERY);
	} else if (now >= f->t_end || f->t_first) {
		coop_fetch_conclude(e, f, COOP_OUT_SILENT, 1, now);
	} else {
		unheard(e, f, p, now);
		t = coop_fetch_tried(f, f->peer);
		if (t)
			t->silent++;
		coop_fetch_conclude(e, f, COOP_OUT_SILENT, 0, now);
	}
}

void coop_fetch_timer(struct coop_engine *e, u32 index, u64 now)
{
	struct coop_fetch *f = &e->fetch[index];

	switch (f->state) {
	case COOP_FETCH_QUEUED:
		coop_fifo_remove(&e->waiting, index);
		f->err = -EBUSY;
		coop_fetch_finish(e, f);
		break;
	case COOP_FETCH_ASK:
		coop_fetch_conclude(e, f, COOP_OUT_SILENT, 0, now);
		break;
	case COOP_FETCH_WAIT:
		wait_over(e, f, now);
		break;
	case COOP_FETCH_PAUSE:
		coop_fetch_go_on(e, f, now);
		break;
	case COOP_FETCH_FREE:
	case COOP_FETCH_STOP:
	case COOP_FETCH_VERIFY:
	case COOP_FETCH_DONE:
	default:
		break;
	}
}

void coop_fetch_peer_down(struct coop_engine *e, u32 peer_id, u64 now)
{
	u32 i;

	for (i = 0; i < e->cfg.max_fetches; i++) {
		struct coop_fetch *f;

		if (e->slot[i].fetch == COOP_NONE)
			continue;
		f = &e->fetch[e->slot[i].fetch];
		if (f->peer == peer_id && f->state == COOP_FETCH_WAIT && !f->t_first)
			coop_fetch_arm(e, f, now); /* expire() sees to it */
	}
}
