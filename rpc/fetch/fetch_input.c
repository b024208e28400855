// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A fetch's inputs: answers on the control queue pair, completions of its WRs,
 * and its timer; see fetch.h. Every entry point names the states in which it
 * acts; in all others it counts the input and drops it.
 */
#include "core.h"

/* Patience is a share of this. A parent that lives answers at once, so a long budget for pages on
 * their way does not make a silent parent cost more than another peer. */
static u32 pace(const struct coop_engine *e, const struct coop_fetch *f)
{
	return f->req.level ? coop_min_u32(f->budget_us, e->cfg.peer_timeout_us) : f->budget_us;
}

/* A parent answers at once, whatever it waits for: its silence means loss, or its death. */
static bool early_queries(const struct coop_engine *e, const struct coop_fetch *f)
{
	return e->cfg.policy.early_queries || f->asks_parent;
}

static u32 longest_patience(const struct coop_engine *e, const struct coop_fetch *f)
{
	return coop_max_u32(pace(e, f) / 4, COOP_RTO_MIN_US);
}

/* Data answer the REQUEST. A message after a QUERY may answer the QUERY, so it gives no RTT. */
static void first_answer(struct coop_engine *e, struct coop_fetch *f, bool data, u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	if (f->t_first)
		return;
	f->t_first = now;
	if (!p)
		return;
	if (f->told_to_wait)
		return;
	if (!f->queried)
		coop_peer_rtt(p, now - f->t_sent);
	else if (data && e->cfg.policy.early_queries)
		/* A sole source gets QUERYs early; without this sample we would never measure a
		 * slow path. Bound it: a pause of the peer is not part of its RTT and may last as
		 * long as the budget. */
		coop_peer_rtt(p, coop_min_u64(now - f->t_sent, longest_patience(e, f)));
}

/* Data of this attempt's generation arrived, so the sender has seen the REQUEST. */
static void data_came(struct coop_engine *e, struct coop_fetch *f, const struct coop_rx *rx,
		      u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	f->t_last = now;
	f->t_heard = now;
	if (f->told_to_wait)
		f->queries = 0;
	first_answer(e, f, true, now);
	if (!p || (rx->has_gid && memcmp(rx->src_gid, p->addr.gid, sizeof(rx->src_gid))))
		return;
	p->answered_at = now;
	coop_peer_spoke(e, p, now);
}

/*
 * How long data may trail the COMMIT. At most a share of the budget, so that time is left for more
 * attempts. The share is smaller with a sole source, which gets many attempts. With several peers a
 * grace that is too short costs more: the data of the old attempt take the WRs of the new one, and
 * its segments must then be copied into place.
 */
static u32 grace(const struct coop_engine *e, const struct coop_fetch *f, const struct coop_peer *p)
{
	const u32 most = coop_max_u32(pace(e, f) / e->cfg.policy.grace_share, COOP_GRACE_MIN_US);

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
	/* The sums must be what we asked for: a peer cannot make us do without tags. */
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
	if (f->state == COOP_FETCH_STOP) /* late, but in time for judge() */
		return;
	/* The host may learn of a few datagrams only with the COMMIT, so they give no rate. */
	if (p && f->t_first && !f->told_to_wait && now > f->t_first &&
	    coop_fetch_posting(e, f)->n_wr > COOP_KEPT_SEGS)
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
	case COOP_REASON_NO_RECORD: /* the REQUEST was lost, or its record was evicted */
		if (!f->queried)
			return; /* we sent no QUERY */
		coop_fetch_conclude(e, f, COOP_OUT_SILENT, 0, now);
		return;
	case COOP_REASON_MTU:
		if (p && m->value >= COOP_MTU_MIN && m->value < f->plan.mtu && m->value % 4 == 0) {
			p->mtu = m->value; /* it only shrinks, so this terminates */
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
 * Returns how many microseconds the peer asks us to wait. This fetch doubles the time with each
 * BUSY and waits for a share of its budget in total: a peer that is always busy must not delay a
 * reader much.
 */
static u32 said_busy(struct coop_engine *e, struct coop_fetch *f, u32 hint, u64 now)
{
	struct coop_tried *t = coop_fetch_tried(f, f->peer);
	const u32 us = coop_min_u32(coop_max_u32(hint, COOP_GRACE_MIN_US), COOP_RTO_MAX_US);

	if (!f->t_busy)
		f->t_busy = now + pace(e, f) / COOP_BUSY_SHARE;
	if (t) {
		t->rounds--; /* begin() counted this attempt */
		t->until = now + coop_min_u64((u64)us << t->busy++, COOP_RTO_MAX_US);
		t->until = now < f->t_busy ? coop_min_u64(t->until, f->t_busy) : ~0ull;
	}
	return us;
}

/*
 * The peer lacks the pages and has passed the REQUEST on. The peer that has it now answers for the
 * rest of the attempt: QUERYs go to it, and its silence is its own. Its RTT cannot be measured,
 * because we do not know when it got the REQUEST.
 */
static void on_passed(struct coop_engine *e, struct coop_fetch *f, const struct coop_addr *to,
		      u64 now)
{
	u32 slot = coop_peers_find(&e->peers, to);
	struct coop_peer *next = slot == COOP_NONE ? NULL : &e->peers.v[slot];
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	struct coop_tried *t;

	if (f->passed || next == p)
		return; /* a repetition */
	e->stats.passes++;
	f->passed = true;
	if (p)
		p->misses += coop_weight(f->ask);
	if (!next || !coop_peer_usable(next) || !coop_fetch_try(f, next->id)) {
		coop_fetch_conclude(e, f, COOP_OUT_CLEAN, 0, now);
		return;
	}
	t = coop_fetch_tried(f, f->peer);
	if (t)
		t->outcome = COOP_OUT_CLEAN;
	if (p) {
		p->in_flight--;
		coop_peers_unhold(&e->peers, p);
	}
	next->in_flight++;
	next->fetches++;
	f->peer = next->id;
	f->asked = next->id;
	f->told_to_wait = false;
	f->queries = 0;
	f->queried = true;
	f->t_sent = now;
	f->t_heard = now;
	f->t_armed = now;
	coop_fetch_arm(e, f, now + coop_fetch_wait(e, f, now));
}

/* The fetch whose attempt has the id and imm of the answer; NULL: none. */
static struct coop_fetch *asked_by(struct coop_engine *e, const struct coop_msg *m)
{
	const u32 i = coop_idtab_slot(&e->fetch_ids, (u32)m->id);
	struct coop_fetch *f = i == COOP_NONE ? NULL : &e->fetch[i];

	if (!f || f->request_id != m->id || f->slot == COOP_NONE ||
	    coop_fetch_posting(e, f)->imm != m->imm)
		return NULL;
	return f;
}

struct coop_peer *coop_fetch_answerer(struct coop_engine *e, const struct coop_msg *m)
{
	const struct coop_fetch *f = asked_by(e, m);

	return f ? coop_peers_get(&e->peers, f->peer) : NULL;
}

bool coop_fetch_answer(struct coop_engine *e, const struct coop_msg *m, u64 now)
{
	struct coop_fetch *f = asked_by(e, m);
	struct coop_tried *t;
	struct coop_peer *p;
	bool waits, late;

	if (!f)
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
	case COOP_CMD_AGAIN: /* its COMMIT will follow; only the budget bounds the wait */
		if (!early_queries(e, f))
			f->queries = 0;
		if (f->asks_parent && !f->told_to_wait) {
			if (p && !f->queried)
				coop_peer_rtt(p, now - f->t_sent); /* it comes at once */
			f->told_to_wait = true;
			e->stats.waits++;
		}
		f->t_heard = now;
		f->t_armed = now;
		coop_fetch_arm(e, f,
			       now + coop_max_u32(coop_min_u32(m->value, COOP_RTO_MAX_US),
						  coop_fetch_wait(e, f, now)));
		break;
	case COOP_CMD_REFUSED:
		on_refused(e, f, m, now);
		break;
	case COOP_CMD_PASSED:
		on_passed(e, f, &m->u.passed_to, now);
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
		f->t_armed = now; /* the COMMIT should follow at once */
		coop_fetch_arm(e, f, now + coop_max_u32(grace(e, f, p), COOP_RTO_MIN_US / 2));
		break;
	case COOP_FETCH_ASK: /* late data of an earlier attempt took the WRs that this one was to
				reuse */
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
	u32 most = longest_patience(e, f);

	/* A shorter wait would cost the peer a second serve and us a stopped queue pair. */
	u32 least = pace(e, f) / 8;

	return p ? coop_min_u32(most,
				coop_max_u32(least,
					     coop_peer_rto(p, coop_fetch_asked_bytes(e, f), most)))
		 : most;
}

/* Until when a sole source or a parent gets QUERYs for an attempt without data or AGAIN. */
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

	if (!p || !early_queries(e, f) || (!p->srtt_us && !f->asks_parent))
		return patience;
	/* A QUERY is cheap: it costs the peer only a look at its records. */
	soon = (u64)coop_peer_rto(p, coop_fetch_asked_bytes(e, f),
				  f->asks_parent ? COOP_RTO_MIN_US : patience)
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

/* May a QUERY go out before the next attempt? */
static bool may_question(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	if (early_queries(e, f))
		return now < questions_end(e, f);
	if (coop_fetch_posting(e, f)->n_rx)
		return f->queries < COOP_MAX_QUERIES;
	/*
	 * The REQUEST may be lost, or the peer may be slow. If it is slow, a new attempt would
	 * make it start over, while the data of this attempt take the WRs.
	 */
	return !f->queries && !coop_fetch_elsewhere(e, f, now);
}

/*
 * The peer answers our other fetches, so our turn is still to come or its answer was lost. A QUERY
 * tells which. A new attempt would put us at the end of its queue and waste all data sent so far.
 */
static bool in_line(struct coop_engine *e, struct coop_fetch *f, const struct coop_peer *p, u64 now)
{
	return p && p->origin && p->health != COOP_PEER_OPEN && p->answered_at > f->t_armed &&
	       !coop_fetch_elsewhere(e, f, now);
}

/* Reports a peer as silent that has sent nothing since the REQUEST, once an attempt. */
static void unheard(struct coop_engine *e, struct coop_fetch *f, struct coop_peer *p, u64 now)
{
	if (!p || f->unheard || !p->silent_since)
		return;
	if (p->silent_since > f->t_sent && !f->passed) /* the REQUEST was not sent by us then */
		return;
	if (early_queries(e, f) &&
	    now - f->t_heard < coop_fetch_patience(e, f)) /* this is only an early QUERY */
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
	if (now < f->t_end && f->t_last > f->t_armed) { /* data still arrive: extend the wait */
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
		if (f->passed && p)
			coop_peer_asked(p, f->t_sent); /* by another node, for us */
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
		coop_fifo_remove(coop_fetch_line(e, f), index);
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
			coop_fetch_arm(e, f, now); /* the next expire() ends the attempt */
	}
}
