// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Serves that wait for pages on their way to this node; see serve.h.
 *
 * The serve sends its segments in order and stops at the first that holds bytes of such a page.
 * The requester is told to wait with AGAIN, at once and whenever it asks. When an eighth of its
 * budget is left, the serve takes what did not come as missing: the COMMIT still reaches the
 * requester in time, which then asks elsewhere.
 *
 * Which page is worth waiting for is the host's to decide. The rule that keeps waits from closing a
 * circle (PROTOCOL.md, Waiting) is the host's too: only the host knows the level of its loads.
 */
#include "core.h"

static u32 timer_of(const struct coop_engine *e, const struct coop_serve *s)
{
	return e->n_fetch + e->cfg.max_peers + (u32)(s - e->serve);
}

bool coop_serve_may_wait(const struct coop_engine *e)
{
	return e->n_waiting < coop_max_u32(e->cfg.max_serves / 2, 1);
}

bool coop_serve_stalled(const struct coop_serve *s)
{
	return s->coming && s->cursor < s->plan.n_segs && coop_bit(s->req.want, s->cursor) &&
	       (coop_plan_pages(&s->plan, s->cursor) & s->coming);
}

void coop_serve_wait_end(struct coop_engine *e, struct coop_serve *s)
{
	if (!s->coming)
		return;
	s->coming = 0;
	e->n_waiting--;
	coop_timer_clear(&e->timers, timer_of(e, s));
}

/* The set of pages that it waits for has shrunk. */
static void go_on(struct coop_engine *e, struct coop_serve *s)
{
	if (s->state == COOP_SERVE_SEND && s->parked && !coop_serve_stalled(s))
		coop_serve_unpark(e, s);
}

void coop_serve_wait_over(struct coop_engine *e, u32 index)
{
	struct coop_serve *s = &e->serve[index];

	e->stats.serve_wait_timeouts++;
	e->stats.serve_misses += coop_weight(s->coming);
	coop_serve_wait_end(e, s);
	go_on(e, s);
}

void coop_engine_lookup_wait(struct coop_engine *e, u32 id, u64 have, u64 coming, u64 size,
			     u64 cookie, u64 now)
{
	struct coop_serve *s = coop_serve_get(e, id);
	const struct coop_record *r;
	struct coop_note *n;
	u64 until;

	if (!s || WARN_ON_ONCE(s->state != COOP_SERVE_LOOKUP))
		return;
	coming &= s->pages & ~have;
	if (WARN_ON_ONCE(coming && !s->req.level))
		coming = 0;
	r = &e->record[s->record];
	if (coming && !s->abandoned && !coop_serve_may_wait(e)) {
		e->stats.serves_busy++;
		coop_serve_busy(e, &r->reply, r->id, r->imm, COOP_BUSY_RETRY_US);
		coop_serve_abandon(e, s);
	}
	if (!coop_serve_looked_up(e, s, have, size, cookie, now) || !coming)
		return;
	until = s->t_end - (s->t_end - s->t_start) / COOP_WAIT_KEEP;
	if (until <= now)
		return;
	e->stats.serve_misses -= coop_weight(coming); /* they are counted if they do not come */
	e->stats.serve_waits++;
	e->n_waiting++;
	s->coming = coming;
	coop_timer_set(&e->timers, timer_of(e, s), until);
	n = coop_note(e, COOP_CMD_AGAIN, &r->reply, r->id, r->imm);
	if (n)
		n->value = COOP_COMING_US;
}

void coop_engine_lookup_size(struct coop_engine *e, u32 id, u64 size)
{
	struct coop_serve *s = coop_serve_get(e, id);

	if (s && s->coming)
		e->record[s->record].commit.size = size;
}

void coop_engine_lookup_more(struct coop_engine *e, u32 id, u64 arrived, u64 lost, u64 now)
{
	struct coop_serve *s = coop_serve_get(e, id);
	u64 left;

	(void)now;
	if (!s || !s->coming)
		return;
	arrived &= s->coming;
	lost &= s->coming & ~arrived;
	left = s->coming & ~(arrived | lost);
	s->have |= arrived;
	coop_serve_charge(e, arrived);
	e->stats.serve_wait_pages += coop_weight(arrived);
	e->stats.serve_misses += coop_weight(lost);
	if (left)
		s->coming = left;
	else
		coop_serve_wait_end(e, s);
	go_on(e, s);
}
