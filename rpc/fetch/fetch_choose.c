// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Which peer a fetch asks next, and for which pages; see fetch.h.
 *
 * The fetch asks the same peer again for pages lost on the way, and the next
 * peer in the order of place.h for pages that this one lacks. Peers that were
 * silent or busy come last. It does not ask a peer again that lied or refused. Parents come
 * before all others, in the order that the host gave them.
 */
#include "core.h"
#include "place.h"

struct coop_tried *coop_fetch_tried(struct coop_fetch *f, u32 peer)
{
	u32 i;

	for (i = 0; i < f->n_tried; i++)
		if (f->tried[i].peer == peer)
			return &f->tried[i];
	return NULL;
}

struct coop_tried *coop_fetch_try(struct coop_fetch *f, u32 peer)
{
	struct coop_tried *t = coop_fetch_tried(f, peer);

	if (t && t->outcome == COOP_OUT_BARRED)
		return NULL;
	if (!t && f->n_tried == COOP_MAX_TRIED)
		return NULL;
	if (!t) {
		t = &f->tried[f->n_tried++];
		t->peer = peer;
		t->rounds = 0;
	}
	t->outcome = COOP_OUT_NONE;
	t->rounds++;
	return t;
}

static bool pristine(const struct coop_fetch *f)
{
	u32 i;

	for (i = 0; i < COOP_SEG_WORDS; i++)
		if (f->have[i])
			return false;
	return !f->good;
}

/* The plan for a REQUEST to this peer. Segments in place fix the plan. */
bool coop_fetch_plan_for(const struct coop_engine *e, const struct coop_fetch *f,
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
	/* A peer with smaller datagrams than ours needs more receive WRs. */
	if (e->cfg.fetch_depth && plan->n_segs > e->cfg.fetch_depth)
		return false;
	return plan->n_segs <= coop_wire_max_segs(mtu) &&
	       pages <= coop_wire_max_pages(mtu, e->cfg.flags & COOP_F_PAGE_TAG);
}

/* Candidate i of n_hints + n_hand; NULL if it was asked before or must not be asked. */
static struct coop_peer *candidate(struct coop_engine *e, struct coop_fetch *f, u32 i)
{
	struct coop_plan plan;
	struct coop_peer *p;

	if (i < f->req.n_hints)
		p = coop_peers_get(&e->peers, f->req.hints[i]);
	else
		p = &e->peers.v[e->peers.hand[i - f->req.n_hints]];
	if (!p || !coop_peer_usable(p) || coop_fetch_tried(f, p->id) ||
	    !coop_fetch_plan_for(e, f, p, &plan))
		return NULL;
	return p;
}

bool coop_fetch_is_parent(const struct coop_fetch *f, u32 peer)
{
	u32 i;

	for (i = 0; i < f->req.n_parents; i++)
		if (f->req.hints[i] == peer)
			return true;
	return false;
}

/* The first parent; one that is suspect only if there is no other. */
static struct coop_peer *parent(struct coop_engine *e, struct coop_fetch *f)
{
	struct coop_peer *suspect = NULL, *p;
	u32 i;

	for (i = 0; i < f->req.n_parents; i++) {
		p = candidate(e, f, i);
		if (p && p->health == COOP_PEER_HEALTHY)
			return p;
		if (p && !suspect)
			suspect = p;
	}
	return suspect;
}

struct coop_peer *coop_fetch_best_untried(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	u64 chunk = f->req.ext[0].index >> e->chunk_shift;
	u32 i, n = f->req.n_hints + e->peers.n_hand, best_srtt = 0;
	struct coop_draw best_draw = {0, 0};
	struct coop_peer *best = NULL, *p;

	if (f->n_tried == COOP_MAX_TRIED)
		return NULL;
	best = parent(e, f);
	if (best)
		return best;
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
 * Missing pages that can be asked for. In the packed layout a missing segment
 * may hold bytes of a page that is already good. The memory of a good page must
 * not be posted again, so storage delivers the pages of such a segment.
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

/* A peer whose pages keep getting lost is given up earlier where other peers may have them. */
static bool rounds_left(const struct coop_engine *e, const struct coop_tried *t)
{
	return t->rounds < e->cfg.policy.rounds;
}

/* May a peer be asked again that was silent or busy? */
static bool again(struct coop_engine *e, const struct coop_fetch *f, const struct coop_tried *t)
{
	const struct coop_peer *p = coop_peers_get(&e->peers, t->peer);
	struct coop_plan plan;

	/* A parent that lives answers QUERYs at once. Storage is nearer than its return. */
	if (t->silent && coop_fetch_is_parent(f, t->peer))
		return false;
	return (t->outcome == COOP_OUT_BUSY || t->outcome == COOP_OUT_SILENT) &&
	       rounds_left(e, t) && p && p->origin && p->health != COOP_PEER_OPEN &&
	       coop_fetch_plan_for(e, f, p, &plan);
}

bool coop_fetch_elsewhere(struct coop_engine *e, struct coop_fetch *f, u64 now)
{
	u32 i;

	if (f->attempt >= COOP_MAX_ATTEMPTS || f->cancelled)
		return false;
	if (coop_fetch_best_untried(e, f, now))
		return true;
	for (i = 0; i < f->n_tried; i++)
		if (f->tried[i].peer != f->peer && f->tried[i].until <= now &&
		    again(e, f, &f->tried[i]))
			return true;
	return false;
}

/* The next peer and the pages to ask it for. NULL: none; *pause is then when one may be ready. */
struct coop_peer *coop_fetch_choose(struct coop_engine *e, struct coop_fetch *f, u64 now,
				    u64 *pages, u64 *pause)
{
	struct coop_tried *t = coop_fetch_tried(f, f->asked), *least = NULL;
	struct coop_plan plan;
	struct coop_peer *p;
	u32 i;

	*pause = ~0ull;
	*pages = askable(f);
	if (!*pages || f->cancelled || now >= f->t_end || f->attempt >= COOP_MAX_ATTEMPTS)
		return NULL;

	/* The peer still has the pages that were lost on the way. */
	if (t && t->outcome == COOP_OUT_LOST && rounds_left(e, t) && (f->lost & *pages)) {
		p = coop_peers_get(&e->peers, t->peer);
		if (p && p->origin && p->health != COOP_PEER_OPEN &&
		    coop_fetch_plan_for(e, f, p, &plan)) {
			*pages &= f->lost;
			return p;
		}
	}
	p = coop_fetch_best_untried(e, f, now);
	if (p)
		return p;

	for (i = 0; i < f->n_tried; i++) {
		t = &f->tried[i];
		if (!again(e, f, t))
			continue;
		if (t->until > now) {
			*pause = coop_min_u64(*pause, t->until);
			continue;
		}
		if (!least || t->rounds < least->rounds)
			least = t;
	}
	return least ? coop_peers_get(&e->peers, least->peer) : NULL;
}
