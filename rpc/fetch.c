// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The requester's state machine; see fetch.h for its states and PROTOCOL.md for
 * the cases. How it recovers:
 *
 * - No answer: the WRs are untouched, so the next attempt (at another peer, or
 *   the same one) only takes a new generation. The queue pair is left alone.
 * - Data but no COMMIT: QUERY asks for the record of it.
 * - A COMMIT, but segments missing: wait a grace for those that are late, stop
 *   the queue pair, count its WRs back, judge, ask again for just those.
 *
 * An attempt ends in conclude(). From there the way leads, through STOP if WRs
 * are still out, to judge(), accept(), and to go_on(), which either begins the
 * next attempt or finishes the fetch. Memory is judged in judge() only.
 */
#include "core.h"

#include "addr.h"
#include "place.h"

enum todo {
	TODO_STOP = 1,
	TODO_RESET = 2,
	TODO_POST = 4,
	TODO_REQUEST = 8,
	TODO_QUERY = 16,
};

static void go_on(struct coop_engine *e, struct coop_fetch *f, u64 now);

static u32 index_of(const struct coop_engine *e, const struct coop_fetch *f)
{
	return (u32)(f - e->fetch);
}

static struct coop_posting *posting(const struct coop_engine *e, const struct coop_fetch *f)
{
	return &e->slot[f->slot].posting;
}

static u32 asked_bytes(const struct coop_engine *e, const struct coop_fetch *f)
{
	return coop_weight(f->ask) << e->cfg.page_shift;
}

static void add_todo(struct coop_engine *e, struct coop_fetch *f, u8 what)
{
	f->todo |= what;
	coop_fifo_push(&e->fetch_tx, index_of(e, f));
}

static void arm(struct coop_engine *e, struct coop_fetch *f, u64 when)
{
	coop_timer_set(&e->timers, index_of(e, f), coop_min_u64(when, f->t_end));
}

static void disarm(struct coop_engine *e, struct coop_fetch *f)
{
	coop_timer_clear(&e->timers, index_of(e, f));
}

/* ---- whom to ask, and for what ------------------------------------------- */

static struct coop_tried *tried(struct coop_fetch *f, u32 peer)
{
	u32 i;

	for (i = 0; i < f->n_tried; i++)
		if (f->tried[i].peer == peer)
			return &f->tried[i];
	return NULL;
}

static bool pristine(const struct coop_fetch *f)
{
	u32 i;

	for (i = 0; i < COOP_SEG_WORDS; i++)
		if (f->have[i])
			return false;
	return !f->good;
}

/* The plan for a fetch from this peer. Segments in place fix the plan. */
static bool plan_for(const struct coop_engine *e, const struct coop_fetch *f,
		     const struct coop_peer *p, struct coop_plan *plan)
{
	u32 mtu = coop_min_u32(e->cfg.mtu, p->mtu), pages = coop_weight(f->all);
	bool packed = (e->cfg.flags & COOP_F_PACKED) && mtu == e->cfg.mtu;

	if (!pristine(f)) {
		*plan = f->plan;
		return p->mtu >= plan->mtu;
	}
	if (coop_plan_init(plan, e->cfg.page_shift, mtu, e->cfg.mtu, pages, packed))
		return false;
	return plan->n_segs <= coop_wire_max_segs(mtu) && pages <= coop_wire_max_pages(mtu);
}

/* Candidate i of n_hints + n_hand; NULL if it is not to be asked, or was. */
static struct coop_peer *candidate(struct coop_engine *e, struct coop_fetch *f, u32 i)
{
	struct coop_plan plan;
	struct coop_peer *p;

	if (i < f->req.n_hints)
		p = coop_peers_get(&e->peers, f->req.hints[i]);
	else
		p = &e->peers.v[e->peers.hand[i - f->req.n_hints]];
	if (!p || !coop_peer_usable(p) || tried(f, p->id) || !plan_for(e, f, p, &plan))
		return NULL;
	return p;
}

static struct coop_peer *best_untried(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	u64 chunk = f->req.ext[0].index >> e->chunk_shift;
	u32 i, n = f->req.n_hints + e->peers.n_hand, best_srtt = 0;
	struct coop_draw best_draw = {0, 0};
	struct coop_peer *best = NULL, *p;

	if (f->n_tried == COOP_MAX_TRIED)
		return NULL;
	for (i = 0; i < n; i++) {
		p = candidate(e, f, i);
		if (p && p->srtt_us && (!best_srtt || p->srtt_us < best_srtt))
			best_srtt = p->srtt_us;
	}
	for (i = 0; i < n; i++) {
		struct coop_draw draw;

		p = candidate(e, f, i);
		if (!p)
			continue;
		draw = coop_place_draw(&f->req.fid, chunk, &p->addr,
				       coop_place_weight(p, best_srtt, now));
		if (!best || coop_place_better(draw, best_draw)) {
			best = p;
			best_draw = draw;
		}
	}
	return best;
}

/*
 * Missing pages that can be asked for. In the packed layout a segment may hold
 * bytes of a page that is good already, whose memory must not be posted again:
 * what depends on such a segment is left to storage.
 */
static u64 askable(const struct coop_fetch *f)
{
	u64 missing = f->all & ~f->good, out = missing, left;
	u32 page, seg, last;

	if (!f->plan.packed || !f->good)
		return missing;
	for (left = missing; left; left &= left - 1) {
		page = coop_lowest(left);
		coop_plan_range(&f->plan, page, &seg, &last);
		for (; seg <= last; seg++)
			if (!coop_bit(f->have, seg) && (coop_plan_pages(&f->plan, seg) & f->good))
				out &= ~(1ull << page);
	}
	return out;
}

/* The next peer and the pages to ask it for. NULL: none; *pause then says when one may be ready. */
static struct coop_peer *choose(struct coop_engine *e, struct coop_fetch *f, u64 now, u64 *pages,
				u64 *pause)
{
	struct coop_tried *t = tried(f, f->asked), *least = NULL;
	struct coop_plan plan;
	struct coop_peer *p;
	u32 i;

	*pause = ~0ull;
	*pages = askable(f);
	if (!*pages || f->cancelled || now >= f->t_end || f->attempt >= COOP_MAX_ATTEMPTS)
		return NULL;

	/* What was lost on the way is still where it was. */
	if (t && t->outcome == COOP_OUT_LOST && t->rounds < COOP_MAX_ROUNDS && (f->lost & *pages)) {
		p = coop_peers_get(&e->peers, t->peer);
		if (p && p->origin && p->health != COOP_PEER_OPEN && plan_for(e, f, p, &plan)) {
			*pages &= f->lost;
			return p;
		}
	}
	p = best_untried(e, f, now);
	if (p)
		return p;

	for (i = 0; i < f->n_tried; i++) {
		t = &f->tried[i];
		p = coop_peers_get(&e->peers, t->peer);
		if (!p || !p->origin || p->health == COOP_PEER_OPEN ||
		    t->rounds >= COOP_MAX_ROUNDS || !plan_for(e, f, p, &plan))
			continue;
		if (t->outcome == COOP_OUT_BUSY && p->busy_until > now) {
			*pause = coop_min_u64(*pause, p->busy_until);
			continue;
		}
		if (t->outcome != COOP_OUT_SILENT && t->outcome != COOP_OUT_BUSY)
			continue;
		if (!least || t->rounds < least->rounds)
			least = t;
	}
	return least ? coop_peers_get(&e->peers, least->peer) : NULL;
}

/* ---- the window ------------------------------------------------------------ */

static void window_grow(struct coop_engine *e, u32 bytes)
{
	e->credit += bytes;
	if (e->credit < e->window)
		return;
	e->credit = 0;
	e->window = coop_min_u32(e->window + COOP_WINDOW_STEP, e->cfg.window_bytes);
}

static void window_shrink(struct coop_engine *e, const struct coop_fetch *f, u64 now)
{
	/* Attempts that were under way at the last decrease tell nothing new. */
	if (f->t_sent < e->shrunk_at)
		return;
	e->shrunk_at = now;
	e->credit = 0;
	e->window = coop_max_u32(e->window - e->window / 4,
				 coop_min_u32(COOP_WINDOW_STEP, e->cfg.window_bytes));
	e->stats.window_shrinks++;
}

/* ---- the end ------------------------------------------------------------------ */

static void finish(struct coop_engine *e, struct coop_fetch *f)
{
	f->state = COOP_FETCH_DONE;
	disarm(e, f);
	e->invited -= f->invited;
	f->invited = 0;
	if (f->good == f->all) {
		f->err = 0;
		e->stats.fetches_full++;
	} else {
		if (f->cancelled)
			f->err = -ECANCELED;
		if (f->good)
			e->stats.fetches_partial++;
		else
			e->stats.fetches_failed++;
		e->stats.pages_missed += coop_weight(f->all & ~f->good);
	}
	coop_fifo_push(&e->fetch_ev, index_of(e, f));
}

static void stop(struct coop_engine *e, struct coop_fetch *f)
{
	f->state = COOP_FETCH_STOP;
	disarm(e, f);
	e->stats.stops++;
	add_todo(e, f, TODO_STOP);
}

/* ---- an attempt ------------------------------------------------------------- */

static void want_segments(const struct coop_fetch *f, const struct coop_plan *plan, u64 pages,
			  u64 *want)
{
	u32 seg, last;

	memset(want, 0, COOP_SEG_WORDS * sizeof(*want));
	for (; pages; pages &= pages - 1) {
		coop_plan_range(plan, coop_lowest(pages), &seg, &last);
		for (; seg <= last; seg++)
			if (!coop_bit(f->have, seg))
				coop_bit_set(want, seg);
	}
}

static void begin(struct coop_engine *e, struct coop_fetch *f, struct coop_peer *p, u64 pages)
{
	struct coop_posting *post = posting(e, f);
	struct coop_plan plan;
	struct coop_tried *t;
	bool fresh = true;

	plan_for(e, f, p, &plan);
	want_segments(f, &plan, pages, f->want);
	if (!coop_posting_quiet(post) && !(e->cfg.flags & COOP_F_TEST_NO_QUIESCE)) {
		if (!coop_posting_reusable(post, &plan, f->want)) {
			stop(e, f); /* and choose again */
			return;
		}
		fresh = false;
	}
	f->plan = plan;
	if (fresh)
		coop_posting_start(post, &plan, f->want);
	else
		coop_posting_renew(post);

	t = tried(f, p->id);
	if (!t) {
		t = &f->tried[f->n_tried++];
		t->peer = p->id;
		t->rounds = 0;
	}
	t->outcome = COOP_OUT_NONE;
	t->rounds++;
	if (f->attempt++)
		e->stats.retries++;
	p->in_flight++;
	f->peer = p->id;
	f->asked = p->id;
	f->ask = pages;
	f->lost = 0;
	f->outcome = COOP_OUT_NONE;
	f->committed = false;
	f->queries = 0;
	f->t_first = 0;
	f->t_last = 0;
	f->state = COOP_FETCH_ASK;
	arm(e, f, f->t_end);
	add_todo(e, f, (u8)(TODO_REQUEST | (fresh ? TODO_POST : 0)));
}

/* Judged, or untouched: the next attempt, or the end. */
static void go_on(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	struct coop_peer *p;
	u64 pages, pause;

	p = choose(e, f, now, &pages, &pause);
	if (p) {
		begin(e, f, p, pages);
	} else if (pause < f->t_end) {
		f->state = COOP_FETCH_PAUSE;
		arm(e, f, pause);
	} else if (!coop_posting_quiet(posting(e, f)) && !(e->cfg.flags & COOP_F_TEST_NO_QUIESCE)) {
		stop(e, f);
	} else {
		finish(e, f);
	}
}

static void accept(struct coop_engine *e, struct coop_fetch *f, u64 pages)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->asked);
	u32 n = coop_weight(pages);
	u64 bytes = (u64)n << e->cfg.page_shift;

	if (!n)
		return;
	f->good |= pages;
	f->from = f->asked;
	e->stats.pages_ok += n;
	e->stats.bytes_ok += bytes;
	window_grow(e, (u32)bytes);
	if (p) {
		p->hits += n;
		p->pages += n;
		p->bytes += bytes;
	}
}

static u64 whole_pages(const struct coop_fetch *f, u64 pages, const u64 *got)
{
	u64 whole = 0;
	u32 seg, last;

	for (; pages; pages &= pages - 1) {
		coop_plan_range(&f->plan, coop_lowest(pages), &seg, &last);
		while (seg <= last && (coop_bit(got, seg) || coop_bit(f->have, seg)))
			seg++;
		if (seg > last)
			whole |= pages & -pages;
	}
	return whole;
}

/* The WRs are quiet (rule 6): what is there? */
static void judge(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	struct coop_slot *slot = &e->slot[f->slot];
	struct coop_peer *p = coop_peers_get(&e->peers, f->asked);
	struct coop_tried *t = tried(f, f->asked);
	u64 got[COOP_SEG_WORDS], listed, whole;
	u32 seg, any = 0;

	slot->n_moves = 0;
	if (!f->committed) {
		go_on(e, f, now);
		return;
	}
	memset(got, 0, sizeof(got));
	slot->n_moves = coop_posting_judge(&slot->posting, &f->commit.source, got, slot->moves,
					   &e->stats.segs_foreign, &e->stats.segs_displaced);
	listed = f->commit.pages & f->ask;
	whole = whole_pages(f, listed, got);
	f->lost = listed & ~whole;
	for (seg = 0; seg < f->plan.n_segs; seg++) {
		if (!coop_bit(got, seg))
			continue;
		any++;
		if (!(coop_plan_pages(&f->plan, seg) & ~f->commit.pages))
			coop_bit_set(f->have, seg);
	}

	f->err = -ENOENT;
	if (f->lost) {
		f->err = -ETIMEDOUT;
		window_shrink(e, f, now);
	}
	if (t)
		t->outcome = f->lost ? COOP_OUT_LOST : COOP_OUT_CLEAN;
	if (p) {
		p->misses += coop_weight(f->ask & ~listed);
		p->fails = 0;
		if (!f->lost)
			coop_peer_report(e, p, coop_peer_clean(p, now), now);
		else if (!any) /* it says that it sent, but nothing comes through */
			coop_peer_blame(e, p, 1, now);
	}
	if (slot->n_moves || (f->commit.n_crc && whole)) {
		f->state = COOP_FETCH_VERIFY;
		f->judged = whole;
		coop_fifo_push(&e->fetch_ev, index_of(e, f));
		return;
	}
	accept(e, f, whole);
	go_on(e, f, now);
}

/* The queue pair was stopped, or had no WR left before it could be. */
static void stopped(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	if (f->todo & TODO_STOP)
		f->todo &= (u8)~TODO_STOP;
	else
		add_todo(e, f, TODO_RESET);
	f->dead_qp = false;
	judge(e, f, now);
}

/* The attempt is over, one way or the other. */
static void conclude(struct coop_engine *e, struct coop_fetch *f, u8 outcome, u32 blame, u64 now)
{
	struct coop_posting *post = posting(e, f);
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	struct coop_tried *t = tried(f, f->peer);

	disarm(e, f);
	f->outcome = outcome;
	f->peer = COOP_NONE;
	if (f->todo & TODO_POST) /* never posted */
		coop_posting_flush(post, post->n_wr);
	f->todo &= TODO_RESET;
	switch (outcome) {
	case COOP_OUT_SILENT:
		f->err = -ETIMEDOUT;
		break;
	case COOP_OUT_BUSY:
		f->err = -EBUSY;
		break;
	case COOP_OUT_BARRED:
		f->err = -EIO;
		break;
	default: /* judge() says */
		break;
	}
	if (t)
		t->outcome = outcome;
	if (p) {
		p->in_flight--;
		if (blame)
			coop_peer_blame(e, p, blame, now);
		coop_peers_unhold(&e->peers, p);
	}

	if (f->dead_qp)
		stop(e, f);
	else if (coop_posting_quiet(post) || (e->cfg.flags & COOP_F_TEST_NO_QUIESCE))
		judge(e, f, now);
	else if (!f->committed && !post->n_done)
		go_on(e, f, now); /* untouched: the WRs can serve the next attempt */
	else
		stop(e, f);
}

void coop_fetch_admit(struct coop_engine *e, u64 now)
{
	while (e->waiting.head != COOP_NONE && e->free_slot != COOP_NONE) {
		struct coop_fetch *f = &e->fetch[e->waiting.head];
		u32 bytes = coop_weight(f->all) << e->cfg.page_shift;
		struct coop_slot *slot = &e->slot[e->free_slot];

		if (e->invited && e->invited + bytes > e->window)
			return;
		coop_fifo_pop(&e->waiting);
		f->slot = e->free_slot;
		e->free_slot = slot->next;
		slot->fetch = index_of(e, f);
		f->invited = bytes; /* until it ends: its attempts follow one another */
		e->invited += bytes;
		if (slot->owes_reset)
			add_todo(e, f, TODO_RESET);
		slot->owes_reset = false;
		go_on(e, f, now);
	}
}

/* ---- answers ------------------------------------------------------------------ */

static void first_answer(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	if (f->t_first)
		return;
	f->t_first = now;
	if (p)
		coop_peer_rtt(p, now - f->t_sent);
}

static bool commit_credible(const struct coop_engine *e, const struct coop_fetch *f,
			    const struct coop_msg_commit *c)
{
	if (c->fid.hi != f->req.fid.hi || c->fid.lo != f->req.fid.lo ||
	    c->version != f->req.version || (c->pages & ~f->all))
		return false;
	if (!c->pages)
		return true;
	if (c->size != f->req.size)
		return false;
	return c->n_crc == f->plan.n_pages || (!c->n_crc && !(e->cfg.flags & COOP_F_PAGE_CRC));
}

static void on_commit(struct coop_engine *e, struct coop_fetch *f, const struct coop_msg *m,
		      u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	e->stats.commits_rx++;
	if (!commit_credible(e, f, &m->u.commit)) {
		e->stats.commits_bad++;
		if (f->state == COOP_FETCH_WAIT)
			conclude(e, f, COOP_OUT_BARRED, COOP_FAILS_TO_OPEN, now);
		return;
	}
	f->commit = m->u.commit;
	f->committed = true;
	if (f->state == COOP_FETCH_STOP) /* it comes late, but before the judgement */
		return;
	if (p && f->t_first && now > f->t_first)
		coop_peer_rate(p, asked_bytes(e, f), now - f->t_first);
	first_answer(e, f, now);
	if (coop_posting_quiet(posting(e, f))) {
		conclude(e, f, COOP_OUT_CLEAN, 0, now);
		return;
	}
	f->t_armed = now;
	arm(e, f, now + (p ? coop_peer_grace(p) : COOP_GRACE_MIN_US));
}

static void on_refused(struct coop_engine *e, struct coop_fetch *f, const struct coop_msg *m,
		       u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	e->stats.fetches_refused++;
	switch (m->reason) {
	case COOP_REASON_NO_RECORD:
		conclude(e, f, COOP_OUT_SILENT, 0, now);
		return;
	case COOP_REASON_MTU:
		if (p && m->value >= COOP_MTU_MIN && m->value < f->plan.mtu && m->value % 4 == 0) {
			p->mtu = m->value; /* smaller each time, so this ends */
			conclude(e, f, COOP_OUT_SILENT, 0, now);
			return;
		}
		break;
	default:
		break;
	}
	conclude(e, f, COOP_OUT_BARRED, COOP_FAILS_TO_OPEN, now);
}

bool coop_fetch_answer(struct coop_engine *e, const struct coop_msg *m, u64 now)
{
	u32 i = coop_idtab_slot(&e->fetch_ids, (u32)m->id);
	struct coop_fetch *f = i == COOP_NONE ? NULL : &e->fetch[i];
	struct coop_peer *p;
	bool waits, late;

	if (!f || f->request_id != m->id || f->slot == COOP_NONE || posting(e, f)->imm != m->imm)
		return false;
	waits = f->state == COOP_FETCH_WAIT && !f->committed;
	late = f->state == COOP_FETCH_STOP && !f->committed && m->command == COOP_CMD_COMMIT &&
	       f->outcome != COOP_OUT_BARRED;
	if (!waits && !late)
		return false;

	p = coop_peers_get(&e->peers, f->peer);
	switch (m->command) {
	case COOP_CMD_COMMIT:
		on_commit(e, f, m, now);
		break;
	case COOP_CMD_BUSY:
		first_answer(e, f, now);
		if (p) {
			p->busy++;
			p->fails = 0;
			p->busy_until =
				now + coop_min_u32(coop_max_u32(m->value, COOP_GRACE_MIN_US),
						   COOP_RTO_MAX_US);
		}
		conclude(e, f, COOP_OUT_BUSY, 0, now);
		break;
	case COOP_CMD_AGAIN:
		f->queries = 0; /* alive; the budget is the bound */
		f->t_armed = now;
		arm(e, f,
		    now + coop_min_u32(coop_max_u32(m->value, COOP_GRACE_MIN_US), COOP_RTO_MAX_US));
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
			conclude(e, f, f->committed ? COOP_OUT_CLEAN : COOP_OUT_SILENT, 0, now);
			break;
		}
		p = coop_peers_get(&e->peers, f->peer);
		f->t_armed = now; /* the COMMIT should be on its heels */
		arm(e, f, now + coop_max_u32(p ? coop_peer_grace(p) : 0, COOP_RTO_MIN_US / 2));
		break;
	case COOP_FETCH_ASK: /* late guests of an earlier attempt took the WRs that were to be
				reused */
		if (f->dead_qp) {
			conclude(e, f, COOP_OUT_SILENT, 0, now);
		} else if (!(f->todo & TODO_POST)) {
			coop_posting_start(posting(e, f), &f->plan, f->want);
			add_todo(e, f, TODO_POST);
		}
		break;
	case COOP_FETCH_PAUSE:
		if (f->dead_qp)
			stop(e, f);
		break;
	case COOP_FETCH_STOP:
		if (!(f->todo & TODO_STOP) || !f->dead_qp)
			stopped(e, f, now);
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
	post = posting(e, f);
	switch (coop_posting_rx(post, rx, e->cfg.flags)) {
	case COOP_RX_KEPT:
		e->stats.segs_rx++;
		f->t_last = now;
		first_answer(e, f, now);
		break;
	case COOP_RX_PAD:
		e->stats.pads_rx++;
		f->t_last = now;
		first_answer(e, f, now);
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

	if (!f || coop_posting_quiet(posting(e, f)))
		return;
	e->stats.flushes += n;
	f->dead_qp = true;
	coop_posting_flush(posting(e, f), n);
	if (coop_posting_quiet(posting(e, f)))
		ran_dry(e, f, now);
	else if (f->state == COOP_FETCH_WAIT)
		conclude(e, f, f->committed ? COOP_OUT_CLEAN : COOP_OUT_SILENT, 0, now);
	else if (f->state == COOP_FETCH_ASK)
		conclude(e, f, COOP_OUT_SILENT, 0, now);
	else if (f->state == COOP_FETCH_PAUSE)
		stop(e, f);
	coop_fetch_admit(e, now);
}

/* ---- time ------------------------------------------------------------------------ */

static u32 patience(const struct coop_engine *e, const struct coop_fetch *f)
{
	const struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	u32 unknown = coop_max_u32(e->cfg.peer_timeout_us / 4, COOP_RTO_MIN_US);

	return p ? coop_peer_rto(p, asked_bytes(e, f), unknown) : unknown;
}

static void wait_over(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	const struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	u64 until;

	if (!f->t_first && !f->committed && (!p || p->health == COOP_PEER_OPEN)) {
		conclude(e, f, COOP_OUT_SILENT, 0, now);
		return;
	}
	if (now < f->t_end && f->t_last > f->t_armed) { /* data still came in: patience anew */
		until = f->t_last + (f->committed && p ? coop_peer_grace(p) : patience(e, f));
		f->t_armed = f->t_last;
		if (until > now) {
			arm(e, f, until);
			return;
		}
	}
	if (f->committed) {
		conclude(e, f, COOP_OUT_CLEAN, 0, now);
	} else if (now < f->t_end && posting(e, f)->n_rx && f->queries < COOP_MAX_QUERIES) {
		f->queries++;
		f->t_armed = now;
		arm(e, f, f->t_end);
		add_todo(e, f, TODO_QUERY);
	} else {
		conclude(e, f, COOP_OUT_SILENT, 1, now);
	}
}

void coop_fetch_timer(struct coop_engine *e, u32 index, u64 now)
{
	struct coop_fetch *f = &e->fetch[index];

	switch (f->state) {
	case COOP_FETCH_QUEUED:
		coop_fifo_remove(&e->waiting, index);
		f->err = -EBUSY;
		finish(e, f);
		break;
	case COOP_FETCH_ASK:
		conclude(e, f, COOP_OUT_SILENT, 0, now);
		break;
	case COOP_FETCH_WAIT:
		wait_over(e, f, now);
		break;
	case COOP_FETCH_PAUSE:
		go_on(e, f, now);
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
			arm(e, f, now); /* expire() sees to it */
	}
}

/* ---- what the host pulls ------------------------------------------------------------ */

static void request_message(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	struct coop_slot *slot = &e->slot[f->slot];
	struct coop_msg *m = coop_msg_begin(e, COOP_CMD_REQUEST, f->request_id, slot->posting.imm);
	struct coop_msg_request *r = &m->u.request;

	memset(r, 0, sizeof(*r));
	r->fid = f->req.fid;
	r->version = f->req.version;
	r->size = f->req.size;
	r->reply = e->cfg.self;
	r->data = e->cfg.self;
	r->data.qpn = slot->qpn;
	r->data.qkey = slot->qkey;
	r->budget_us = (u32)(f->t_end > now ? f->t_end - now : 0);
	r->mtu = (u16)f->plan.mtu;
	r->page_shift = (u8)f->plan.page_shift;
	r->attempt = f->attempt;
	r->n_ext = f->req.n_ext;
	memcpy(r->ext, f->req.ext, sizeof(r->ext));
	if (f->plan.packed)
		r->options |= COOP_OPT_PACKED;
	if (e->cfg.flags & COOP_F_PAGE_CRC)
		r->options |= COOP_OPT_CRC;
	if (slot->posting.n_wr != f->plan.n_segs) {
		r->options |= COOP_OPT_SELECTIVE;
		memcpy(r->want, f->want, sizeof(r->want));
		m->n_segs = f->plan.n_segs;
	}
}

static void post_list(struct coop_engine *e, const struct coop_fetch *f, struct coop_tx *tx)
{
	const struct coop_posting *post = posting(e, f);
	u32 i;

	for (i = 0; i < post->n_wr; i++)
		coop_plan_seg(&post->plan, post->wr[i].seg, &e->segs[i]);
	tx->seg = e->segs;
	tx->n_seg = post->n_wr;
}

bool coop_fetch_tx(struct coop_engine *e, u32 index, u64 now, struct coop_tx *tx)
{
	struct coop_fetch *f = &e->fetch[index];
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	struct coop_tried *t;

	tx->slot = f->slot;
	tx->id = f->id;
	tx->cookie = f->req.cookie;
	if (f->todo & TODO_STOP) {
		tx->kind = COOP_TX_STOP_QP;
		f->todo &= (u8)~TODO_STOP;
		if (coop_posting_quiet(posting(e, f)))
			stopped(e, f, now);
		return true;
	}
	if (f->todo & TODO_RESET) {
		tx->kind = COOP_TX_RESET_QP;
		f->todo &= (u8)~TODO_RESET;
		return true;
	}
	if (f->todo & TODO_POST) {
		tx->kind = COOP_TX_POST_RECV;
		f->todo &= (u8)~TODO_POST;
		post_list(e, f, tx);
		return true;
	}
	if (f->todo & TODO_REQUEST) {
		f->todo &= (u8)~TODO_REQUEST;
		t = tried(f, f->peer);
		request_message(e, f, now);
		if (!p || !t || WARN_ON_ONCE(!coop_msg_finish(e, &p->addr, tx))) {
			conclude(e, f, COOP_OUT_BARRED, 0, now);
			return false;
		}
		p->fetches++;
		e->stats.attempts++;
		f->state = COOP_FETCH_WAIT;
		f->t_sent = now;
		f->t_armed = now;
		arm(e, f, now + ((u64)patience(e, f) << coop_min_u32(t->rounds - 1u, 3)));
		return true;
	}
	if (f->todo & TODO_QUERY) {
		f->todo &= (u8)~TODO_QUERY;
		if (!p || f->state != COOP_FETCH_WAIT || f->committed)
			return false;
		coop_msg_begin(e, COOP_CMD_QUERY, f->request_id, posting(e, f)->imm);
		coop_msg_finish(e, &p->addr, tx);
		e->stats.queries++;
		f->t_armed = now;
		arm(e, f, now + patience(e, f));
		return true;
	}
	return false;
}

bool coop_fetch_event(struct coop_engine *e, u32 index, struct coop_ev *ev, u64 now)
{
	struct coop_fetch *f = &e->fetch[index];
	struct coop_slot *slot = f->slot == COOP_NONE ? NULL : &e->slot[f->slot];

	ev->id = f->id;
	ev->cookie = f->req.cookie;
	ev->fid = f->req.fid;
	ev->version = f->req.version;
	ev->peer = f->from;
	if (f->state == COOP_FETCH_VERIFY) {
		ev->kind = COOP_EV_VERIFY;
		ev->peer = f->asked;
		ev->pages = f->judged;
		ev->moves = slot->moves;
		ev->n_moves = slot->n_moves;
		ev->crc = f->commit.n_crc ? f->commit.crc : NULL;
		return true;
	}
	if (f->state == COOP_FETCH_DONE) {
		ev->kind = COOP_EV_FETCH_DONE;
		ev->pages = f->good;
		ev->err = f->err;
		ev->elapsed_us = (u32)coop_min_u64(now - f->t_submit, 0xffffffffu);
		return true;
	}
	return false;
}

/* ---- what the host calls -------------------------------------------------------------- */

int coop_engine_submit(struct coop_engine *e, const struct coop_fetch_req *req, u64 now, u32 *id)
{
	u32 pages = coop_extents_pages(req->ext, req->n_ext), i;
	struct coop_fetch *f;

	if (!pages || pages > coop_engine_max_pages(e) || !req->version ||
	    req->n_hints > COOP_MAX_HINTS)
		return -EINVAL;
	*id = coop_idtab_get(&e->fetch_ids);
	if (*id == COOP_NONE)
		return -EAGAIN;
	i = coop_idtab_slot(&e->fetch_ids, *id);
	f = &e->fetch[i];
	memset(f, 0, sizeof(*f));
	f->id = *id;
	f->req = *req;
	f->all = coop_mask(pages);
	f->slot = COOP_NONE;
	f->peer = COOP_NONE;
	f->asked = COOP_NONE;
	f->from = COOP_NONE;
	f->err = -ENOENT;
	f->t_submit = now;
	f->t_end = now + e->cfg.peer_timeout_us;
	if (!best_untried(e, f, now)) {
		coop_idtab_put(&e->fetch_ids, *id);
		return -ENOENT;
	}
	f->request_id = (coop_random(&e->random) & 0xffffffff00000000ull) | *id;
	f->state = COOP_FETCH_QUEUED;
	e->stats.fetches++;
	arm(e, f, f->t_end);
	coop_fifo_push(&e->waiting, i);
	coop_fetch_admit(e, now);
	return 0;
}

int coop_engine_cancel(struct coop_engine *e, u32 id, u64 now)
{
	u32 i = coop_idtab_slot(&e->fetch_ids, id);
	struct coop_fetch *f;

	if (i == COOP_NONE)
		return -ENOENT;
	f = &e->fetch[i];
	if (f->state == COOP_FETCH_DONE)
		return 0;
	f->cancelled = true;
	switch (f->state) {
	case COOP_FETCH_QUEUED:
		coop_fifo_remove(&e->waiting, i);
		finish(e, f);
		break;
	case COOP_FETCH_ASK:
	case COOP_FETCH_WAIT:
		conclude(e, f, f->committed ? COOP_OUT_CLEAN : COOP_OUT_SILENT, 0, now);
		break;
	case COOP_FETCH_PAUSE:
		go_on(e, f, now);
		break;
	case COOP_FETCH_STOP:
	case COOP_FETCH_VERIFY:
	default: /* ends there */
		break;
	}
	coop_fetch_admit(e, now);
	return 0;
}

void coop_engine_verify_done(struct coop_engine *e, u32 id, u64 good, u64 now)
{
	u32 i = coop_idtab_slot(&e->fetch_ids, id), seg, last;
	struct coop_fetch *f;
	struct coop_tried *t;
	struct coop_peer *p;
	u64 bad;

	if (i == COOP_NONE || WARN_ON_ONCE(e->fetch[i].state != COOP_FETCH_VERIFY))
		return;
	f = &e->fetch[i];
	bad = f->judged & ~good;
	if (bad) {
		e->stats.crc_bad += coop_weight(bad);
		f->err = -EIO;
		t = tried(f, f->asked);
		if (t)
			t->outcome = COOP_OUT_BARRED;
		p = coop_peers_get(&e->peers, f->asked);
		if (p)
			coop_peer_blame(e, p, COOP_FAILS_TO_OPEN, now);
	}
	accept(e, f, f->judged & good);
	for (; bad; bad &= bad - 1) {
		coop_plan_range(&f->plan, coop_lowest(bad), &seg, &last);
		for (; seg <= last; seg++)
			coop_bit_clear(f->have, seg);
	}
	f->judged = 0;
	go_on(e, f, now);
	coop_fetch_admit(e, now);
}

void coop_engine_fetch_release(struct coop_engine *e, u32 id, u64 now)
{
	u32 i = coop_idtab_slot(&e->fetch_ids, id);
	struct coop_fetch *f;

	if (i == COOP_NONE || WARN_ON_ONCE(e->fetch[i].state != COOP_FETCH_DONE))
		return;
	f = &e->fetch[i];
	coop_fifo_remove(&e->fetch_ev, i);
	if (f->slot != COOP_NONE) {
		struct coop_slot *slot = &e->slot[f->slot];

		/* A RESET that nobody pulled yet is owed to whoever takes the slot next. */
		slot->owes_reset = f->todo & TODO_RESET;
		slot->fetch = COOP_NONE;
		slot->next = e->free_slot;
		e->free_slot = f->slot;
	}
	f->todo = 0;
	coop_fifo_remove(&e->fetch_tx, i);
	f->state = COOP_FETCH_FREE;
	coop_idtab_put(&e->fetch_ids, id);
	coop_fetch_admit(e, now);
}

bool coop_engine_fetch_seg(const struct coop_engine *e, u32 id, u32 seg, struct coop_seg *out)
{
	u32 i = coop_idtab_slot(&e->fetch_ids, id);

	if (i == COOP_NONE || !e->fetch[i].attempt || seg >= e->fetch[i].plan.n_segs)
		return false;
	coop_plan_seg(&e->fetch[i].plan, seg, out);
	return true;
}

const char *coop_fetch_state_name(u8 state)
{
	switch (state) {
	case COOP_FETCH_QUEUED:
		return "queued";
	case COOP_FETCH_ASK:
		return "ask";
	case COOP_FETCH_WAIT:
		return "wait";
	case COOP_FETCH_PAUSE:
		return "pause";
	case COOP_FETCH_STOP:
		return "stop";
	case COOP_FETCH_VERIFY:
		return "verify";
	case COOP_FETCH_DONE:
		return "done";
	default:
		return "free";
	}
}
