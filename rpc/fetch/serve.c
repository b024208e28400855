// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The responder's state machine; see serve.h. It never waits for a requester
 * and keeps only a record of fixed size for it:
 *
 * - it ignores a duplicate REQUEST during the serve and answers it from the
 *   record afterwards;
 * - a newer attempt of the same request supersedes the older one, whose
 *   remaining segments are not sent (the requester would drop them);
 * - it commits few segments of bytes that cannot change before their sends
 *   complete, because the COMMIT is true already;
 * - it stops serving a requester whose budget is over;
 * - a request may wait for pages that are on their way to this node (serve_wait.c);
 * - it answers BUSY to a request that it cannot serve now, REFUSED to one that
 *   it can never serve.
 *
 * The host's pins last from its answer until COOP_EV_SERVE_END, which always comes.
 */
#include "core.h"

#include "rpc/base/addr.h"

static u32 index_of(const struct coop_engine *e, const struct coop_serve *s)
{
	return (u32)(s - e->serve);
}

/* The node whose turns the serve takes: a peer's slot, or one number for all strangers. */
static u32 node_of(const struct coop_engine *e, const struct coop_serve *s)
{
	u32 slot = s->known ? coop_idtab_slot(&e->peers.ids, s->peer) : COOP_NONE;

	return slot == COOP_NONE ? e->cfg.max_peers : slot;
}

/* ---- records ------------------------------------------------------------------ */

static struct coop_record *record_set(struct coop_engine *e, u64 id)
{
	return &e->record[(coop_mix(id) & (e->n_sets - 1)) * COOP_RECORD_WAYS];
}

/* The record of any attempt of this request. */
static struct coop_record *record_find(struct coop_engine *e, u64 id, const struct coop_addr *reply)
{
	struct coop_record *r = record_set(e, id);
	u32 i;

	for (i = 0; i < COOP_RECORD_WAYS; i++, r++)
		if (r->state != COOP_RECORD_NONE && r->id == id && coop_addr_same(&r->reply, reply))
			return r;
	return NULL;
}

/* A free record, or the oldest that is not being served; NULL: the whole set is being served. */
static struct coop_record *record_take(struct coop_engine *e, u64 id)
{
	struct coop_record *r = record_set(e, id), *best = NULL;
	u32 i;

	for (i = 0; i < COOP_RECORD_WAYS; i++, r++) {
		if (r->state == COOP_RECORD_NONE)
			return r;
		if (r->state != COOP_RECORD_SERVING && (!best || r->when < best->when))
			best = r;
	}
	return best;
}

/* ---- the end of a serve --------------------------------------------------------- */

void coop_serve_end(struct coop_engine *e, struct coop_serve *s)
{
	coop_serve_wait_end(e, s);
	s->state = COOP_SERVE_END;
	s->event = 1 + COOP_EV_SERVE_END;
	coop_fifo_push(&e->serve_ev, index_of(e, s));
}

static void release(struct coop_engine *e, struct coop_serve *s)
{
	struct coop_record *r = &e->record[s->record];
	struct coop_peer *p = s->known ? coop_peers_get(&e->peers, s->peer) : NULL;

	if (r->state == COOP_RECORD_SERVING && r->serve == index_of(e, s))
		r->state = COOP_RECORD_DROPPED;
	if (p) {
		p->serving--;
		coop_peers_unhold(&e->peers, p);
	} else {
		e->strangers--;
	}
	s->state = COOP_SERVE_FREE;
	coop_idtab_put(&e->serve_ids, s->id);
}

/* All posted sends have completed. */
static void drained(struct coop_engine *e, struct coop_serve *s)
{
	if (s->abandoned || s->vouched) {
		coop_serve_end(e, s);
	} else if (s->have) {
		s->state = COOP_SERVE_RECHECK;
		s->event = 1 + COOP_EV_RECHECK;
		coop_fifo_push(&e->serve_ev, index_of(e, s));
	} else {
		s->state = COOP_SERVE_COMMIT;
		coop_turns_commit(&e->serve_tx, index_of(e, s));
	}
}

/* The requester waits for this serve no more. */
void coop_serve_abandon(struct coop_engine *e, struct coop_serve *s)
{
	s->abandoned = true;
	switch (s->state) {
	case COOP_SERVE_SEND:
		coop_serve_wait_end(e, s);
		if (!s->parked)
			coop_turns_leave(&e->serve_tx, node_of(e, s), index_of(e, s));
		s->parked = false;
		s->cursor = s->plan.n_segs;
		s->state = COOP_SERVE_DRAIN;
		if (!s->in_flight)
			drained(e, s);
		break;
	case COOP_SERVE_LOOKUP: /* the host's answer ends it */
	case COOP_SERVE_DRAIN:
	case COOP_SERVE_RECHECK:
	case COOP_SERVE_COMMIT:
	case COOP_SERVE_PASS:
	case COOP_SERVE_END:
	case COOP_SERVE_FREE:
	default:
		break;
	}
}

/* ---- a REQUEST -------------------------------------------------------------------- */

void coop_serve_busy(struct coop_engine *e, const struct coop_addr *reply, u64 id, u32 imm,
		     u32 retry_us)
{
	struct coop_note *n = coop_note(e, COOP_CMD_BUSY, reply, id, imm);

	if (n)
		n->value = retry_us;
}

static void busy(struct coop_engine *e, const struct coop_msg *m, u32 retry_us)
{
	coop_serve_busy(e, &m->u.request.reply, m->id, m->imm, retry_us);
}

/* Bytes a microsecond, 16 fractional bits, by 32-bit divisions: rate * 2^16 / 10^6. */
static u64 per_microsecond(u32 bytes_s)
{
	return (u64)(bytes_s / 15625) * 1024 + bytes_s % 15625 * 1024 / 15625;
}

void coop_serve_set_rate(struct coop_engine *e, u32 bytes_s, u64 now)
{
	u64 least = (u64)COOP_MAX_PAGES << (e->cfg.page_shift + 16);

	e->cfg.serve_bytes_s = bytes_s;
	e->token_rate = per_microsecond(bytes_s);
	/* The bucket holds a tenth of a second, or at least one request. */
	e->token_depth = e->token_rate * 100000;
	if (e->token_depth < least)
		e->token_depth = least;
	e->tokens = (s64)e->token_depth;
	e->token_at = now;
}

void coop_serve_charge(struct coop_engine *e, u64 pages)
{
	if (e->cfg.serve_bytes_s)
		e->tokens -= (s64)((u64)coop_weight(pages) << (e->cfg.page_shift + 16));
}

/* Tokens are bytes with 16 fractional bits. A serve that was admitted may put the bucket into
 * debt. */
static bool affordable(struct coop_engine *e, u64 now)
{
	u64 elapsed = now - e->token_at;

	if (!e->cfg.serve_bytes_s)
		return true;
	e->token_at = now;
	/* A minute pays any debt; the bound keeps the product within 64 bits. */
	e->tokens += (s64)(coop_min_u64(elapsed, 60000000) * e->token_rate);
	if (e->tokens > (s64)e->token_depth)
		e->tokens = (s64)e->token_depth;
	return e->tokens > 0;
}

static bool acceptable(struct coop_engine *e, const struct coop_msg *m, const struct coop_addr *src,
		       u64 now)
{
	const struct coop_msg_request *r = &m->u.request;

	/* Data go back only to the port that the REQUEST came from: we must not be a reflector. */
	if (m->command == COOP_CMD_FORWARD) {
		if (!coop_serve_forward_acceptable(e, m, src))
			return false;
	} else if (!coop_addr_same_port(src, &r->reply) || !coop_addr_same_port(src, &r->data)) {
		e->stats.ctrl_malformed++;
		coop_refuse(e, src, m->id, m->imm, COOP_REASON_ADDRESS, 0, now);
		return false;
	}
	if (r->page_shift != e->cfg.page_shift) {
		coop_refuse(e, &r->reply, m->id, m->imm, COOP_REASON_PAGE_SIZE, e->cfg.page_shift,
			    now);
		return false;
	}
	if (r->mtu > e->cfg.mtu) {
		coop_refuse(e, &r->reply, m->id, m->imm, COOP_REASON_MTU, e->cfg.mtu, now);
		return false;
	}
	if (r->data.qpn == e->cfg.self.qpn && coop_addr_same(&r->data, &e->cfg.self)) {
		e->stats.ctrl_malformed++;
		return false;
	}
	return true;
}

/* True if the REQUEST is a duplicate or was superseded; it is then handled. A newer attempt ends
 * the serve of the older one. */
static bool known_request(struct coop_engine *e, const struct coop_msg *m, u64 now)
{
	struct coop_record *r = record_find(e, m->id, &m->u.request.reply);
	struct coop_note *n;

	if (!r)
		return false;
	if (r->imm == m->imm) {
		e->stats.serves_dup++;
		if (r->state == COOP_RECORD_PASSED)
			coop_serve_passed(e, r);
		if (r->state == COOP_RECORD_COMMITTED) {
			n = coop_note(e, COOP_CMD_COMMIT, &r->reply, r->id, r->imm);
			if (n)
				n->record = (u32)(r - e->record);
		}
		return true;
	}
	if (m->u.request.attempt <= r->attempt) {
		e->stats.serves_dup++;
		return true; /* overtaken by a later attempt */
	}
	if (r->state == COOP_RECORD_SERVING) {
		coop_serve_abandon(e, &e->serve[r->serve]);
		r->state = COOP_RECORD_DROPPED;
	}
	return false;
}

void coop_serve_request(struct coop_engine *e, const struct coop_msg *m,
			const struct coop_addr *src, u64 now)
{
	const struct coop_msg_request *q = &m->u.request;
	u32 share = e->cfg.max_serves - e->cfg.max_serves / 4, slot, id, seg, peer;
	struct coop_record *r;
	struct coop_serve *s;
	struct coop_peer *p;

	if (!acceptable(e, m, src, now) || known_request(e, m, now))
		return;

	/* One node must not hold every serve; all strangers count as one node. */
	peer = coop_peers_find(&e->peers, &q->reply);
	p = peer == COOP_NONE ? NULL : &e->peers.v[peer];
	if ((p ? p->serving : e->strangers) >= share) {
		e->stats.serves_busy++;
		busy(e, m, COOP_BUSY_RETRY_US);
		return;
	}
	if (!affordable(e, now)) {
		e->stats.serves_limited++;
		busy(e, m, COOP_BUSY_RETRY_US);
		return;
	}
	r = record_find(e, m->id, &q->reply);
	if (!r)
		r = record_take(e, m->id);
	id = r ? coop_idtab_get(&e->serve_ids) : COOP_NONE;
	if (id == COOP_NONE) {
		e->stats.serves_busy++;
		busy(e, m, COOP_BUSY_RETRY_US);
		return;
	}

	slot = coop_idtab_slot(&e->serve_ids, id);
	s = &e->serve[slot];
	s->id = id;
	s->state = COOP_SERVE_LOOKUP;
	s->abandoned = false;
	s->vouched = false;
	s->parked = false;
	s->may_pass = m->command == COOP_CMD_REQUEST && m->hops >= COOP_WIRE_PASS;
	s->coming = 0;
	s->sum = q->options & COOP_OPT_TAG   ? COOP_SUM_TAG
		 : q->options & COOP_OPT_CRC ? COOP_SUM_CRC
					     : COOP_SUM_NONE;
	s->known = p != NULL;
	s->peer = p ? p->id : COOP_NONE;
	s->record = (u32)(r - e->record);
	s->imm = m->imm;
	s->cursor = 0;
	s->in_flight = 0;
	s->t_start = now;
	s->t_end = now + coop_min_u32(q->budget_us, COOP_SERVE_MOST_US);
	s->cookie = 0;
	s->have = 0;
	s->req = *q;
	coop_plan_init(&s->plan, q->page_shift, q->mtu, q->mtu,
		       coop_extents_pages(q->ext, q->n_ext),
		       q->options & COOP_OPT_PACKED); /* cannot fail: decode checked the numbers */
	s->pages = 0;
	for (seg = 0; seg < s->plan.n_segs; seg++)
		if (coop_bit(q->want, seg))
			s->pages |= coop_plan_pages(&s->plan, seg);
	if (p)
		p->serving++;
	else
		e->strangers++;

	r->id = m->id;
	r->imm = m->imm;
	r->attempt = q->attempt;
	r->reply = q->reply;
	r->serve = slot;
	r->state = COOP_RECORD_SERVING;
	r->when = now;
	e->stats.serves++;
	if (m->command == COOP_CMD_FORWARD)
		e->stats.serves_forwarded++;
	s->event = 1 + COOP_EV_LOOKUP;
	coop_fifo_push(&e->serve_ev, slot);
}

/* Peers send such a QUERY after a REQUEST was lost. Many may come at once, and each sender waits
 * for the answer, so the rate limit of REFUSED does not apply to peers. */
static void no_record(struct coop_engine *e, const struct coop_msg *m, const struct coop_addr *to,
		      u64 now)
{
	struct coop_note *n;

	if (coop_peers_find(&e->peers, to) == COOP_NONE) {
		coop_refuse(e, to, m->id, m->imm, COOP_REASON_NO_RECORD, 0, now);
		return;
	}
	n = coop_note(e, COOP_CMD_REFUSED, to, m->id, m->imm);
	if (n)
		n->reason = COOP_REASON_NO_RECORD;
}

void coop_serve_query(struct coop_engine *e, const struct coop_msg *m, const struct coop_addr *to,
		      u64 now)
{
	struct coop_record *r = record_find(e, m->id, to);
	struct coop_note *n;

	if (!r || r->imm != m->imm || r->state == COOP_RECORD_DROPPED) {
		no_record(e, m, to, now);
		return;
	}
	if (r->state == COOP_RECORD_PASSED) {
		coop_serve_passed(e, r);
		return;
	}
	if (r->state == COOP_RECORD_SERVING) {
		n = coop_note(e, COOP_CMD_AGAIN, &r->reply, r->id, r->imm);
		if (n)
			n->value = e->serve[r->serve].coming ? COOP_COMING_US : COOP_AGAIN_US;
		return;
	}
	n = coop_note(e, COOP_CMD_COMMIT, &r->reply, r->id, r->imm);
	if (n)
		n->record = (u32)(r - e->record);
}

/* ---- the host's answers ------------------------------------------------------------ */

struct coop_serve *coop_serve_get(struct coop_engine *e, u32 id)
{
	u32 slot = coop_idtab_slot(&e->serve_ids, id);

	return slot == COOP_NONE ? NULL : &e->serve[slot];
}

void coop_serve_unpark(struct coop_engine *e, struct coop_serve *s)
{
	s->parked = false;
	coop_turns_join(&e->serve_tx, node_of(e, s), index_of(e, s));
}

static struct coop_serve *in_state(struct coop_engine *e, u32 id, u8 state)
{
	struct coop_serve *s = coop_serve_get(e, id);

	return !s || WARN_ON_ONCE(s->state != state) ? NULL : s;
}

/* Lists these pages in the COMMIT, with the sums that the requester wants. */
static void vouch(struct coop_engine *e, struct coop_serve *s, u64 pages, const u64 *sums)
{
	struct coop_peer *p = s->known ? coop_peers_get(&e->peers, s->peer) : NULL;
	struct coop_msg_commit *c = &e->record[s->record].commit;
	const bool tags = s->sum == COOP_SUM_TAG;
	u32 n = coop_weight(pages);

	c->pages = pages;
	if (s->sum && sums && s->plan.n_pages <= coop_wire_max_pages(s->req.mtu, tags)) {
		c->n_sums = s->plan.n_pages;
		c->tags = tags;
		memcpy(c->sum, sums, c->n_sums * sizeof(*sums));
	}
	e->stats.serve_pages += n;
	e->stats.serve_bytes += (u64)n << e->cfg.page_shift;
	if (p) {
		p->served_pages += n;
		p->served_bytes += (u64)n << e->cfg.page_shift;
	}
}

/* Are the segments so few that their COMMIT hardly overtakes them? */
static bool few(const struct coop_serve *s)
{
	return s->plan.n_segs <= COOP_KEPT_SEGS;
}

bool coop_serve_looked_up(struct coop_engine *e, struct coop_serve *s, u64 have, u64 size,
			  u64 cookie, u64 now)
{
	struct coop_msg_commit *c;

	s->cookie = cookie;
	if (s->abandoned || now >= s->t_end) {
		s->abandoned = true;
		coop_serve_end(e, s);
		return false;
	}
	s->have = have & s->pages;
	e->stats.serve_misses += coop_weight(s->pages & ~have);
	coop_serve_charge(e, s->have);

	c = &e->record[s->record].commit;
	c->fid = s->req.fid;
	c->version = s->req.version;
	c->size = size;
	c->pages = 0;
	c->source = e->cfg.self;
	c->source.qpn = s->qpn;
	c->n_sums = 0;
	c->tags = 0;
	s->state = COOP_SERVE_SEND;
	coop_turns_join(&e->serve_tx, node_of(e, s), index_of(e, s));
	return true;
}

void coop_engine_lookup_done(struct coop_engine *e, u32 id, u64 have, u64 size, u64 cookie, u64 now)
{
	struct coop_serve *s = in_state(e, id, COOP_SERVE_LOOKUP);

	if (s)
		coop_serve_looked_up(e, s, have, size, cookie, now);
}

void coop_engine_lookup_kept(struct coop_engine *e, u32 id, u64 have, u64 size, u64 cookie,
			     const u64 *sums, u64 now)
{
	struct coop_serve *s = in_state(e, id, COOP_SERVE_LOOKUP);

	if (!s)
		return;
	if (!coop_serve_looked_up(e, s, have, size, cookie, now) || !few(s) || (s->sum && !sums))
		return; /* the recheck brings the sums */
	s->vouched = true;
	vouch(e, s, s->have, sums);
}

void coop_engine_lookup_busy(struct coop_engine *e, u32 id, u64 cookie)
{
	struct coop_serve *s = in_state(e, id, COOP_SERVE_LOOKUP);
	const struct coop_record *r;

	if (!s)
		return;
	r = &e->record[s->record];
	if (!s->abandoned) {
		e->stats.serves_busy++;
		coop_serve_busy(e, &r->reply, r->id, r->imm, COOP_BUSY_RETRY_US);
	}
	s->abandoned = true;
	s->cookie = cookie;
	coop_serve_end(e, s);
}

void coop_engine_tx_done(struct coop_engine *e, u32 id, u32 n_seg, int err, u64 now)
{
	u32 slot = coop_idtab_slot(&e->serve_ids, id);
	struct coop_serve *s;

	if (slot == COOP_NONE)
		return;
	s = &e->serve[slot];
	/* A failed send is a lost datagram: the requester recovers from it. */
	if (err)
		e->stats.serve_tx_errors++;
	if (WARN_ON_ONCE(n_seg > s->in_flight))
		n_seg = s->in_flight;
	s->in_flight -= n_seg;
	if (s->state == COOP_SERVE_DRAIN && !s->in_flight)
		drained(e, s);
	else if (s->state == COOP_SERVE_SEND && !s->parked)
		coop_turns_resume(&e->serve_tx, node_of(e, s), slot); /* serve_depth has room */
}

void coop_engine_recheck_done(struct coop_engine *e, u32 id, u64 still, const u64 *sums, u64 now)
{
	struct coop_serve *s = in_state(e, id, COOP_SERVE_RECHECK);

	if (!s)
		return;
	if (s->abandoned) {
		coop_serve_end(e, s);
		return;
	}
	e->stats.serve_changed += coop_weight(s->have & ~still);
	vouch(e, s, s->have & still, sums);
	s->state = COOP_SERVE_COMMIT;
	coop_turns_commit(&e->serve_tx, index_of(e, s));
}

/* ---- work for the host ---------------------------------------------------------------- */

/* The segment as this node can send it: zeros for a page that it lacks, a pad if it lacks all its
 * pages. */
static void fill_segment(const struct coop_serve *s, u32 seg, struct coop_seg *out)
{
	u32 i;

	coop_plan_seg(&s->plan, seg, out);
	out->imm = s->imm | seg;
	out->spill = 0;
	if (!(coop_plan_pages(&s->plan, seg) & s->have)) {
		out->n_frag = 0;
		out->len = 0;
		return;
	}
	for (i = 0; i < out->n_frag; i++)
		out->frag[i].absent = !((s->have >> out->frag[i].page) & 1);
}

static bool next_batch(struct coop_engine *e, struct coop_serve *s, struct coop_tx *tx)
{
	u32 most = COOP_BATCH, n = 0;

	if (e->cfg.serve_depth)
		most = coop_min_u32(most, e->cfg.serve_depth - s->in_flight);
	if (!most)
		return false; /* tx_done makes room */
	for (; !coop_serve_stalled(s) && s->cursor < s->plan.n_segs && n < most; s->cursor++)
		if (coop_bit(s->req.want, s->cursor))
			fill_segment(s, s->cursor, &e->segs[n++]);
	while (s->cursor < s->plan.n_segs && !coop_bit(s->req.want, s->cursor))
		s->cursor++;
	if (coop_serve_stalled(s)) {
		s->parked = true;
	} else if (s->cursor < s->plan.n_segs) {
		coop_turns_resume(&e->serve_tx, node_of(e, s), index_of(e, s));
	} else if (s->vouched) {
		s->state = COOP_SERVE_COMMIT;
		coop_turns_commit(&e->serve_tx, index_of(e, s));
	} else {
		s->state = COOP_SERVE_DRAIN;
	}
	if (!n) {
		if (s->state == COOP_SERVE_DRAIN && !s->in_flight)
			drained(e, s);
		return false;
	}
	s->in_flight += n;
	tx->kind = COOP_TX_DATA;
	tx->addr = s->req.data;
	tx->seg = e->segs;
	tx->n_seg = n;
	return true;
}

/* The caller has taken the serve out of its queue; it may queue again here. */
bool coop_serve_tx(struct coop_engine *e, u32 index, u64 now, struct coop_tx *tx)
{
	struct coop_serve *s = &e->serve[index];
	struct coop_record *r = &e->record[s->record];

	tx->slot = index;
	tx->id = s->id;
	tx->cookie = s->cookie;
	if (s->state == COOP_SERVE_PASS)
		return coop_serve_pass_tx(e, s, now, tx);
	if (s->state == COOP_SERVE_SEND && now >= s->t_end) {
		coop_serve_abandon(e, s); /* its data would take the WRs of the next attempt */
		return false;
	}
	if (s->state == COOP_SERVE_SEND)
		return next_batch(e, s, tx);
	if (s->state != COOP_SERVE_COMMIT)
		return false;
	s->state = COOP_SERVE_DRAIN;
	if (!s->in_flight)
		coop_serve_end(e, s); /* otherwise drained() ends it */
	if (s->abandoned || r->state != COOP_RECORD_SERVING || r->serve != index)
		return false; /* superseded: the record belongs to another serve */
	r->state = COOP_RECORD_COMMITTED;
	r->when = now;
	coop_msg_begin(e, COOP_CMD_COMMIT, r->id, r->imm)->u.commit = r->commit;
	if (WARN_ON_ONCE(!coop_msg_finish(e, &r->reply, tx)))
		return false;
	e->stats.commits_tx++;
	return true;
}

bool coop_serve_event(struct coop_engine *e, u32 index, struct coop_ev *ev, u64 now)
{
	struct coop_serve *s = &e->serve[index];
	u8 event = s->event;

	if (!event)
		return false;
	s->event = 0;
	ev->kind = (enum coop_ev_kind)(event - 1);
	ev->id = s->id;
	ev->cookie = s->cookie;
	ev->from = s->req.reply;
	ev->fid = s->req.fid;
	ev->version = s->req.version;
	ev->n_ext = s->req.n_ext;
	memcpy(ev->ext, s->req.ext, sizeof(ev->ext));
	ev->pages = s->state == COOP_SERVE_LOOKUP ? s->pages : s->abandoned ? 0 : s->have;
	if (s->state == COOP_SERVE_LOOKUP) {
		ev->level = s->req.level;
		/* Not for a request that will be told BUSY. */
		ev->load = (s->req.options & COOP_OPT_LOAD) && coop_serve_may_wait(e);
		ev->may_pass = s->may_pass;
		ev->budget_us = (u32)(s->t_end > now ? s->t_end - now : 0);
	}
	if (s->state == COOP_SERVE_RECHECK || (s->state == COOP_SERVE_LOOKUP && few(s)))
		ev->sum = (enum coop_sum)s->sum;
	ev->request = e->record[s->record].id;
	ev->imm = s->imm;
	ev->peer = s->peer;
	if (s->state == COOP_SERVE_END)
		release(e, s);
	return true;
}

const char *coop_serve_state_name(u8 state)
{
	switch (state) {
	case COOP_SERVE_LOOKUP:
		return "lookup";
	case COOP_SERVE_SEND:
		return "send";
	case COOP_SERVE_DRAIN:
		return "drain";
	case COOP_SERVE_RECHECK:
		return "recheck";
	case COOP_SERVE_COMMIT:
		return "commit";
	case COOP_SERVE_PASS:
		return "pass";
	case COOP_SERVE_END:
		return "end";
	default:
		return "free";
	}
}
