// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The requester's state machine; see fetch.h for its states and PROTOCOL.md for
 * the cases. How it recovers:
 *
 * - No answer: ask another peer; if there is none, send a QUERY to learn whether
 *   this one is serving. The WRs are untouched, so the next attempt takes a new
 *   generation over them and does not modify the queue pair.
 * - Data but no COMMIT: send a QUERY for the record.
 * - A COMMIT, but segments missing: wait a grace for late ones, stop the queue
 *   pair, count the flushed WRs, judge, and ask again for the missing segments.
 *
 * An attempt ends in conclude(). It continues, through STOP if WRs are still
 * posted, with judge(), accept() and go_on(), which starts the next attempt or
 * finishes the fetch. Only judge() decides what the memory holds.
 */
#include "core.h"

static u32 index_of(const struct coop_engine *e, const struct coop_fetch *f)
{
	return (u32)(f - e->fetch);
}

struct coop_posting *coop_fetch_posting(const struct coop_engine *e, const struct coop_fetch *f)
{
	return &e->slot[f->slot].posting;
}

u32 coop_fetch_asked_bytes(const struct coop_engine *e, const struct coop_fetch *f)
{
	return coop_weight(f->ask) << e->cfg.page_shift;
}

void coop_fetch_owe(struct coop_engine *e, struct coop_fetch *f, u8 what)
{
	f->due |= what;
	coop_fifo_push(&e->fetch_tx, index_of(e, f));
}

void coop_fetch_arm(struct coop_engine *e, struct coop_fetch *f, u64 when)
{
	coop_timer_set(&e->timers, index_of(e, f), coop_min_u64(when, f->t_end));
}

static void disarm(struct coop_engine *e, struct coop_fetch *f)
{
	coop_timer_clear(&e->timers, index_of(e, f));
}

static void window_shrink(struct coop_engine *e, const struct coop_fetch *f, u64 now)
{
	u32 size = coop_max_u32(e->window.size - e->window.size / 4, e->window.step);

	if (coop_window_shrink(&e->window, size, f->t_sent, now))
		e->stats.window_shrinks++;
}

void coop_fetch_finish(struct coop_engine *e, struct coop_fetch *f)
{
	f->state = COOP_FETCH_DONE;
	disarm(e, f);
	if (f->invited && coop_fetch_is_prompt(f))
		e->n_prompt--;
	e->window.invited -= f->invited;
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

void coop_fetch_stop(struct coop_engine *e, struct coop_fetch *f)
{
	f->state = COOP_FETCH_STOP;
	disarm(e, f);
	e->stats.stops++;
	coop_fetch_owe(e, f, COOP_DUE_STOP);
}

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
	struct coop_posting *post = coop_fetch_posting(e, f);
	struct coop_plan plan;
	bool fresh = true;

	coop_fetch_plan_for(e, f, p, &plan);
	want_segments(f, &plan, pages, f->want);
	if (!coop_posting_quiet(post) && !(e->cfg.flags & COOP_F_TEST_NO_QUIESCE)) {
		if (!coop_posting_reusable(post, &plan, f->want)) {
			coop_fetch_stop(e, f); /* and choose again afterwards */
			return;
		}
		fresh = false;
	}
	f->plan = plan;
	if (fresh)
		coop_posting_start(post, &plan, f->want);
	else
		coop_posting_renew(post);

	coop_fetch_try(f, p->id); /* there is room: choose() looked */
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
	f->queried = false;
	f->unheard = false;
	f->passed = false;
	f->told_to_wait = false;
	f->asks_parent = coop_fetch_is_parent(f, p->id);
	f->t_first = 0;
	f->t_last = 0;
	f->state = COOP_FETCH_ASK;
	coop_fetch_arm(e, f, f->t_end);
	coop_fetch_owe(e, f, (u8)(COOP_DUE_REQUEST | (fresh ? COOP_DUE_POST : 0)));
}

/* The last attempt was judged or received nothing: starts the next attempt, or finishes. */
void coop_fetch_go_on(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	struct coop_peer *p;
	u64 pages, pause;

	p = coop_fetch_choose(e, f, now, &pages, &pause);
	if (p) {
		begin(e, f, p, pages);
	} else if (pause < f->t_end) {
		f->state = COOP_FETCH_PAUSE;
		coop_fetch_arm(e, f, pause);
	} else if (!coop_posting_quiet(coop_fetch_posting(e, f)) &&
		   !(e->cfg.flags & COOP_F_TEST_NO_QUIESCE)) {
		coop_fetch_stop(e, f);
	} else {
		coop_fetch_finish(e, f);
	}
}

void coop_fetch_accept(struct coop_engine *e, struct coop_fetch *f, u64 pages)
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
	coop_window_grow(&e->window, (u32)bytes);
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

/* The WRs are quiet (rule 6): decides which segments and pages are there. */
static void judge(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	struct coop_slot *slot = &e->slot[f->slot];
	struct coop_peer *p = coop_peers_get(&e->peers, f->asked);
	struct coop_tried *t = coop_fetch_tried(f, f->asked);
	u64 got[COOP_SEG_WORDS], listed, whole;
	u32 seg, any = 0;

	slot->n_moves = 0;
	if (!f->committed) {
		coop_fetch_go_on(e, f, now);
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
		if (!f->lost)
			coop_peer_report(e, p, coop_peer_clean(p, now), now);
		else if (any || slot->posting.n_stale) /* stale datagrams took WRs: not its fault */
			p->fails = 0;
		else /* its COMMIT says that it sent, but nothing arrived */
			coop_peer_blame(e, p, 1, f->t_sent, now);
	}
	if (slot->n_moves || (f->commit.n_sums && whole)) {
		f->state = COOP_FETCH_VERIFY;
		f->judged = whole;
		coop_fifo_push(&e->fetch_ev, index_of(e, f));
		return;
	}
	coop_fetch_accept(e, f, whole);
	coop_fetch_go_on(e, f, now);
}

/* The queue pair was stopped, or its last WR completed before that. */
void coop_fetch_stopped(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	if (f->due & COOP_DUE_STOP)
		f->due &= (u8)~COOP_DUE_STOP;
	else
		coop_fetch_owe(e, f, COOP_DUE_RESET);
	f->dead_qp = false;
	judge(e, f, now);
}

/* Ends the attempt; blame: weight of the peer's failure. */
void coop_fetch_conclude(struct coop_engine *e, struct coop_fetch *f, u8 outcome, u32 blame,
			 u64 now)
{
	struct coop_posting *post = coop_fetch_posting(e, f);
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);
	struct coop_tried *t = coop_fetch_tried(f, f->peer);

	disarm(e, f);
	f->outcome = outcome;
	f->peer = COOP_NONE;
	if (f->due & COOP_DUE_POST) /* never posted */
		coop_posting_flush(post, post->n_wr);
	f->due &= COOP_DUE_RESET;
	switch (outcome) {
	case COOP_OUT_SILENT:
		f->err = -ETIMEDOUT;
		/* The data were still arriving when the budget ended: we invited more than fits
		 * that time. With a sole source the host paces each peer. */
		if (now >= f->t_end && f->t_last && !f->told_to_wait && e->cfg.policy.late_share &&
		    now - f->t_last <= f->budget_us / e->cfg.policy.late_share)
			window_shrink(e, f, now);
		break;
	case COOP_OUT_BUSY:
		f->err = -EBUSY;
		break;
	case COOP_OUT_BARRED:
		f->err = -EIO;
		break;
	default: /* judge() sets err */
		break;
	}
	if (t) {
		t->outcome = outcome;
		if (f->t_first)
			t->silent = 0;
	}
	if (p) {
		p->in_flight--;
		if (blame)
			coop_peer_blame(e, p, blame, f->t_sent, now);
		coop_peers_unhold(&e->peers, p);
	}

	if (f->dead_qp)
		coop_fetch_stop(e, f);
	else if (coop_posting_quiet(post) || (e->cfg.flags & COOP_F_TEST_NO_QUIESCE))
		judge(e, f, now);
	else if (!f->committed && !post->n_done)
		coop_fetch_go_on(e, f, now); /* the next attempt can use the untouched WRs */
	else
		coop_fetch_stop(e, f);
}

/*
 * Fetches that wait at parents must leave room for relays and for fetches that do not wait.
 * Otherwise two nodes could use all their slots, or their windows, to wait for each other, and
 * neither could load what the other waits for. So one prompt fetch is always admitted.
 */
static bool leaves_room(const struct coop_engine *e, const struct coop_fetch *f, u32 bytes)
{
	if (coop_fetch_is_prompt(f))
		return coop_window_fits(&e->window, bytes) || !e->n_prompt;
	if (!coop_window_fits(&e->window, bytes))
		return false;
	return e->n_free_slots > coop_max_u32(e->cfg.max_fetches / COOP_RELAY_SHARE, 1) &&
	       (!e->window.invited ||
		e->window.invited + bytes <= e->window.size - e->window.size / COOP_RELAY_SHARE);
}

static void take_slot(struct coop_engine *e, struct coop_fetch *f, u32 bytes, u64 now)
{
	struct coop_slot *slot = &e->slot[e->free_slot];

	f->slot = e->free_slot;
	e->free_slot = slot->next;
	e->n_free_slots--;
	slot->fetch = index_of(e, f);
	if (coop_fetch_is_prompt(f))
		e->n_prompt++;
	f->invited = bytes; /* until the fetch ends: it has one attempt at a time */
	e->window.invited += bytes;
	if (slot->owes_reset)
		coop_fetch_owe(e, f, COOP_DUE_RESET);
	slot->owes_reset = false;
	coop_fetch_go_on(e, f, now);
}

void coop_fetch_put_slot(struct coop_engine *e, u32 slot)
{
	e->slot[slot].fetch = COOP_NONE;
	if (e->slot[slot].resetting)
		return; /* reset_done() does it */
	e->slot[slot].next = e->free_slot;
	e->free_slot = slot;
	e->n_free_slots++;
}

static bool admit_first(struct coop_engine *e, struct coop_fifo *line, u64 now)
{
	struct coop_fetch *f;
	u32 bytes;

	if (line->head == COOP_NONE || e->free_slot == COOP_NONE)
		return false;
	f = &e->fetch[line->head];
	bytes = coop_weight(f->all) << e->cfg.page_shift;
	if (!leaves_room(e, f, bytes))
		return false;
	coop_fifo_pop(line);
	take_slot(e, f, bytes, now);
	return true;
}

void coop_fetch_admit(struct coop_engine *e, u64 now)
{
	while (admit_first(e, &e->prompt, now) || admit_first(e, &e->waiting, now))
		;
}

struct coop_fifo *coop_fetch_line(struct coop_engine *e, const struct coop_fetch *f)
{
	return coop_fetch_is_prompt(f) ? &e->prompt : &e->waiting;
}
