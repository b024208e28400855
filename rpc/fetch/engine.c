// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * engine.c - the host's entry points: memory, dispatch, time, statistics.
 *
 * The protocol is in fetch*.c (requester) and serve.c (responder). This file
 * has what they share: one block of memory cut into arrays, the notes (small
 * answers that belong to no fetch or serve), and the order in which next_tx and
 * next_event hand out work. breaker.c drives the peers' circuit breakers.
 */
#include "engine.h"

#include "core.h"
#include "rpc/base/addr.h"

#define BACKLOG_MIN_US 20000
#define MAX_SLOTS      (1u << 16)
#define MAX_PEERS      (1u << 18)
#define NOTES_MIN      64

/* ---- memory ------------------------------------------------------------------------ */

/* Cuts arrays from a block; with base NULL it only measures. */
struct carver {
	u8 *base;
	size_t used;
};

static void *carve(struct carver *c, size_t n, size_t size)
{
	size_t at = c->used;

	c->used += (n * size + 7) & ~(size_t)7;
	return c->base ? c->base + at : NULL;
}

struct parts {
	struct coop_engine *engine;
	struct coop_fetch *fetch;
	struct coop_slot *slot;
	struct coop_wr *wr;
	u16 *at;
	struct coop_move *moves;
	struct coop_serve *serve;
	struct coop_record *record;
	struct coop_peer *peer;
	struct coop_id *fetch_ids, *serve_ids, *peer_ids;
	struct coop_timer *timers;
	u32 *bucket, *hand;
	u32 *waiting, *fetch_tx, *fetch_ev, *serve_tx, *serve_commit, *serve_node, *serve_ev,
		*peer_ev;
	struct coop_fifo *serve_line;
	struct coop_note *note;
	struct coop_seg *segs;
	struct coop_msg *msg, *msg_tx;
	u8 *ctrl;
	u32 n_fetch, n_sets, n_notes;
};

static u32 power_of_two(u32 at_least)
{
	return at_least < 2 ? 1 : 2u << coop_ilog2(at_least - 1);
}

/* Most segments of one posting. A fetch with more is never asked for; see coop_fetch_plan_for(). */
static u32 depth_of(const struct coop_engine_cfg *cfg)
{
	return cfg->fetch_depth ? coop_min_u32(cfg->fetch_depth, COOP_MAX_SEGS) : COOP_MAX_SEGS;
}

static size_t lay_out(const struct coop_engine_cfg *cfg, void *mem, struct parts *p)
{
	struct carver c = {.base = mem};
	u32 n = cfg->max_fetches + cfg->max_queued, slots = cfg->max_fetches;
	size_t n_wr = (size_t)slots * depth_of(cfg);

	p->n_fetch = n;
	p->n_sets = power_of_two(cfg->max_serves);
	p->n_notes = power_of_two(NOTES_MIN + cfg->max_serves);
	p->engine = carve(&c, 1, sizeof(*p->engine));
	p->fetch = carve(&c, n, sizeof(*p->fetch));
	p->slot = carve(&c, slots, sizeof(*p->slot));
	p->wr = carve(&c, n_wr, sizeof(*p->wr));
	p->at = carve(&c, n_wr, sizeof(*p->at));
	p->moves = carve(&c, n_wr, sizeof(*p->moves));
	p->serve = carve(&c, cfg->max_serves, sizeof(*p->serve));
	p->record = carve(&c, (size_t)p->n_sets * COOP_RECORD_WAYS, sizeof(*p->record));
	p->peer = carve(&c, cfg->max_peers, sizeof(*p->peer));
	p->fetch_ids = carve(&c, n, sizeof(*p->fetch_ids));
	p->serve_ids = carve(&c, cfg->max_serves, sizeof(*p->serve_ids));
	p->peer_ids = carve(&c, cfg->max_peers, sizeof(*p->peer_ids));
	p->timers = carve(&c, (size_t)n + cfg->max_peers + cfg->max_serves, sizeof(*p->timers));
	p->bucket = carve(&c, coop_peers_buckets(cfg->max_peers), sizeof(u32));
	p->hand = carve(&c, cfg->max_peers, sizeof(u32));
	p->waiting = carve(&c, n, sizeof(u32));
	p->fetch_tx = carve(&c, n, sizeof(u32));
	p->fetch_ev = carve(&c, n, sizeof(u32));
	p->serve_tx = carve(&c, cfg->max_serves, sizeof(u32));
	p->serve_commit = carve(&c, cfg->max_serves, sizeof(u32));
	p->serve_node = carve(&c, cfg->max_peers + 1, sizeof(u32));
	p->serve_line = carve(&c, cfg->max_peers + 1, sizeof(*p->serve_line));
	p->serve_ev = carve(&c, cfg->max_serves, sizeof(u32));
	p->peer_ev = carve(&c, cfg->max_peers, sizeof(u32));
	p->note = carve(&c, p->n_notes, sizeof(*p->note));
	p->segs = carve(&c, coop_max_u32(depth_of(cfg), COOP_BATCH), sizeof(*p->segs));
	p->msg = carve(&c, 1, sizeof(*p->msg));
	p->msg_tx = carve(&c, 1, sizeof(*p->msg_tx));
	p->ctrl = carve(&c, 1, COOP_CTRL_MAX);
	return c.used;
}

static bool in_range(u32 v, u32 low, u32 high)
{
	return v >= low && v <= high;
}

static bool cfg_valid(const struct coop_engine_cfg *cfg)
{
	return in_range(cfg->page_shift, COOP_PAGE_MIN_SHIFT, COOP_PAGE_MAX_SHIFT) &&
	       in_range(cfg->mtu, COOP_MTU_MIN, COOP_MTU_MAX) && cfg->mtu % 4 == 0 &&
	       in_range(cfg->max_fetches, 1, MAX_SLOTS) &&
	       in_range(cfg->max_serves, 1, MAX_SLOTS) && cfg->max_queued <= MAX_SLOTS &&
	       in_range(cfg->max_peers, 1, MAX_PEERS) &&
	       in_range(cfg->peer_timeout_us, 100, COOP_BUDGET_MOST_US) &&
	       cfg->silence_us <= 1u << 30 && (!cfg->policy.rounds || cfg->policy.grace_share) &&
	       in_range(cfg->window_bytes, 1, 1u << 30) && cfg->shards <= COOP_SHARDS &&
	       cfg->shard < coop_max_u32(cfg->shards, 1);
}

size_t coop_engine_size(const struct coop_engine_cfg *cfg)
{
	struct parts p;

	return cfg_valid(cfg) ? lay_out(cfg, NULL, &p) : 0;
}

struct coop_engine *coop_engine_init(void *mem, size_t size, const struct coop_engine_cfg *cfg,
				     u64 now)
{
	struct coop_engine *e;
	struct parts p;
	u32 i, chunk, depth;

	if (!cfg_valid(cfg) || size < lay_out(cfg, mem, &p))
		return NULL;
	depth = depth_of(cfg);
	e = p.engine;
	memset(e, 0, sizeof(*e));
	e->cfg = *cfg;
	if (!cfg->policy.rounds)
		e->cfg.policy = coop_policy_many_sources();
	coop_tag_derive(&e->tag_key, cfg->key);
	e->random = coop_mix(cfg->seed);
	chunk = cfg->chunk_pages ? cfg->chunk_pages : (1u << 20) >> cfg->page_shift;
	e->chunk_shift = coop_ilog2(chunk);

	coop_peers_init(&e->peers, p.peer, p.peer_ids, p.bucket, p.hand, cfg->max_peers,
			coop_random(&e->random));
	coop_timers_init(&e->timers, p.timers, p.n_fetch + cfg->max_peers + cfg->max_serves);

	e->n_fetch = p.n_fetch;
	e->fetch = p.fetch;
	memset(e->fetch, 0, p.n_fetch * sizeof(*e->fetch));
	coop_idtab_init(&e->fetch_ids, p.fetch_ids, p.n_fetch);
	e->slot = p.slot;
	e->free_slot = COOP_NONE;
	for (i = 0; i < cfg->max_fetches; i++) {
		struct coop_slot *s = &e->slot[i];

		memset(s, 0, sizeof(*s));
		coop_posting_init(&s->posting, p.wr + (size_t)i * depth, p.at + (size_t)i * depth,
				  (u32)coop_random(&e->random));
		s->moves = p.moves + (size_t)i * depth;
		s->fetch = COOP_NONE;
	}
	coop_fifo_init(&e->waiting, p.waiting, p.n_fetch);
	e->prompt = e->waiting; /* a fetch is in one of the two */
	coop_fifo_init(&e->fetch_tx, p.fetch_tx, p.n_fetch);
	coop_fifo_init(&e->fetch_ev, p.fetch_ev, p.n_fetch);
	coop_window_init(&e->window, cfg->window_bytes, cfg->window_bytes, COOP_WINDOW_STEP);

	e->serve = p.serve;
	memset(e->serve, 0, cfg->max_serves * sizeof(*e->serve));
	coop_idtab_init(&e->serve_ids, p.serve_ids, cfg->max_serves);
	e->record = p.record;
	e->n_sets = p.n_sets;
	memset(e->record, 0, (size_t)p.n_sets * COOP_RECORD_WAYS * sizeof(*e->record));
	coop_turns_init(&e->serve_tx, p.serve_commit, p.serve_tx, cfg->max_serves, p.serve_node,
			p.serve_line, cfg->max_peers + 1);
	coop_fifo_init(&e->serve_ev, p.serve_ev, cfg->max_serves);
	coop_serve_set_rate(e, cfg->serve_bytes_s, now);

	coop_fifo_init(&e->peer_ev, p.peer_ev, cfg->max_peers);
	e->note = p.note;
	e->note_mask = p.n_notes - 1;
	e->segs = p.segs;
	e->msg = p.msg;
	e->msg_tx = p.msg_tx;
	e->ctrl = p.ctrl;
	return e;
}

void coop_engine_set_fetch_qp(struct coop_engine *e, u32 slot, u32 qpn, u32 qkey)
{
	struct coop_slot *s = &e->slot[slot];

	if (WARN_ON_ONCE(slot >= e->cfg.max_fetches))
		return;
	/* A slot can be used once its queue pair is known. */
	if (!s->qpn && qpn)
		coop_fetch_put_slot(e, slot);
	s->qpn = qpn;
	s->qkey = qkey;
}

void coop_engine_set_serve_qp(struct coop_engine *e, u32 slot, u32 qpn)
{
	struct coop_serve *s = &e->serve[slot];

	if (WARN_ON_ONCE(slot >= e->cfg.max_serves))
		return;
	/* Its COMMIT names the queue pair that sends. One that has sent a part names the old one:
	 * the requester drops the rest and asks again. */
	if (s->state == COOP_SERVE_SEND && !s->cursor && !s->in_flight)
		e->record[s->record].commit.source.qpn = qpn;
	s->qpn = qpn;
}

void coop_engine_set_self(struct coop_engine *e, const struct coop_addr *self)
{
	e->cfg.self = *self;
}

void coop_engine_tune(struct coop_engine *e, u32 peer_timeout_us, u32 serve_bytes_s, u64 now)
{
	e->cfg.peer_timeout_us = peer_timeout_us;
	coop_serve_set_rate(e, serve_bytes_s, now);
}

u32 coop_engine_max_pages(const struct coop_engine *e)
{
	u32 page = 1u << e->cfg.page_shift;
	u32 per_page = (page + e->cfg.mtu - 1) / e->cfg.mtu;

	return coop_min_u32(coop_wire_max_segs(e->cfg.mtu) / per_page,
			    coop_wire_max_pages(e->cfg.mtu, e->cfg.flags & COOP_F_PAGE_TAG));
}

u64 coop_engine_tag(const struct coop_engine *e, const struct coop_ev *ev, u32 page,
		    const void *bytes)
{
	return coop_tag(&e->tag_key, ev->request, ev->imm, page, bytes, 1u << e->cfg.page_shift);
}

/* ---- messages ------------------------------------------------------------------------ */

struct coop_msg *coop_msg_begin(struct coop_engine *e, u8 command, u64 id, u32 imm)
{
	struct coop_msg *m = e->msg_tx;

	m->version = COOP_WIRE_VERSION;
	m->command = command;
	m->hops = COOP_WIRE_PASS;
	m->flags = 0;
	m->id = id;
	m->imm = imm;
	m->reason = COOP_REASON_NONE;
	m->value = 0;
	m->n_segs = 0;
	return m;
}

bool coop_msg_finish(struct coop_engine *e, const struct coop_addr *to, struct coop_tx *tx)
{
	tx->kind = COOP_TX_CTRL;
	tx->addr = *to;
	tx->buf = e->ctrl;
	tx->len = coop_wire_encode(e->msg_tx, e->cfg.key, e->ctrl, coop_wire_room(e->cfg.mtu));
	return tx->len > 0;
}

struct coop_note *coop_note(struct coop_engine *e, u8 command, const struct coop_addr *to, u64 id,
			    u32 imm)
{
	struct coop_note *n = &e->note[e->note_tail & e->note_mask];

	if (e->note_tail - e->note_head > e->note_mask) {
		e->stats.ctrl_dropped_tx++;
		return NULL;
	}
	e->note_tail++;
	memset(n, 0, sizeof(*n));
	n->to = *to;
	n->id = id;
	n->imm = imm;
	n->command = command;
	return n;
}

void coop_refuse(struct coop_engine *e, const struct coop_addr *to, u64 id, u32 imm, u16 reason,
		 u32 value, u64 now)
{
	struct coop_note *n;

	if (e->refuse_at > now + (u64)COOP_REFUSE_US * COOP_REFUSE_BURST || !coop_addr_valid(to)) {
		e->stats.ctrl_dropped_tx++;
		return;
	}
	n = coop_note(e, COOP_CMD_REFUSED, to, id, imm);
	if (!n)
		return;
	e->refuse_at = (e->refuse_at > now ? e->refuse_at : now) + COOP_REFUSE_US;
	n->reason = reason;
	n->value = value;
	e->stats.ctrl_refused_tx++;
}

static bool note_tx(struct coop_engine *e, struct coop_tx *tx)
{
	while (e->note_head != e->note_tail) {
		const struct coop_note *n = &e->note[e->note_head++ & e->note_mask];
		struct coop_msg *m = coop_msg_begin(e, n->command, n->id, n->imm);

		m->reason = n->reason;
		m->value = n->value;
		if (n->command == COOP_CMD_COMMIT) {
			const struct coop_record *r = &e->record[n->record];

			if (r->state != COOP_RECORD_COMMITTED || r->id != n->id || r->imm != n->imm)
				continue; /* another request has taken the record */
			m->u.commit = r->commit;
			e->stats.commits_tx++;
		}
		if (n->command == COOP_CMD_PASSED) {
			const struct coop_record *r = &e->record[n->record];

			if (r->state != COOP_RECORD_PASSED || r->id != n->id || r->imm != n->imm)
				continue;
			m->u.passed_to = r->commit.source;
		}
		if (coop_msg_finish(e, &n->to, tx))
			return true;
	}
	return false;
}

/* Where to answer a message that names no reply address: its source, with the peer's Q_Key if we
 * know it. */
static struct coop_addr answer_to(const struct coop_engine *e, const struct coop_addr *src)
{
	u32 slot = coop_peers_find(&e->peers, src);
	struct coop_addr to = *src;

	if (slot != COOP_NONE)
		return e->peers.v[slot].addr;
	if (!to.qkey)
		to.qkey = e->cfg.self.qkey;
	return to;
}

static void refuse_unknown(struct coop_engine *e, const struct coop_msg *m, enum coop_decode why,
			   const struct coop_addr *to, u64 now)
{
	u16 reason = COOP_REASON_MALFORMED;
	u32 value = 0;

	switch (why) {
	case COOP_DECODE_VERSION:
		e->stats.ctrl_version++;
		reason = COOP_REASON_VERSION;
		value = COOP_WIRE_VERSION;
		break;
	case COOP_DECODE_COMMAND:
		e->stats.ctrl_command++;
		reason = COOP_REASON_COMMAND;
		value = m->command;
		break;
	case COOP_DECODE_FLAGS:
		e->stats.ctrl_malformed++;
		reason = COOP_REASON_FLAGS;
		break;
	default:
		e->stats.ctrl_malformed++;
		break;
	}
	if (!(m->command & COOP_CMD_ANSWER))
		coop_refuse(e, to, m->id, m->imm, reason, value, now);
}

static void on_ping(struct coop_engine *e, const struct coop_msg *m, const struct coop_addr *to)
{
	struct coop_note *n = coop_note(e, COOP_CMD_PONG, to, m->id, m->imm);

	if (n)
		n->value = e->cfg.mtu;
}

static void on_pong(struct coop_engine *e, const struct coop_msg *m, u64 now)
{
	struct coop_peer *p = coop_peers_get(&e->peers, (u32)m->id);

	if (!p || !p->ping_id || p->ping_id != m->id)
		return;
	if (m->command == COOP_CMD_PONG && m->value >= COOP_MTU_MIN && m->value <= COOP_MTU_MAX &&
	    m->value % 4 == 0)
		p->mtu = coop_min_u32(m->value, e->cfg.mtu);
	coop_peer_report(e, p, coop_peer_pong(p, now), now);
}

/*
 * The peer that sent the message. A node whose engines share an address sends from queue pairs of
 * their own; its REQUEST names the address, and so does the fetch that an answer is for.
 */
static struct coop_peer *speaker(struct coop_engine *e, const struct coop_msg *m,
				 const struct coop_addr *src)
{
	u32 slot = coop_peers_find(&e->peers, src);
	struct coop_peer *p = NULL;

	if (slot != COOP_NONE)
		return &e->peers.v[slot];
	if (m->command == COOP_CMD_REQUEST)
		slot = coop_peers_find(&e->peers, &m->u.request.reply);
	if (slot != COOP_NONE)
		p = &e->peers.v[slot];
	else if (m->command & COOP_CMD_ANSWER)
		p = coop_fetch_answerer(e, m);
	return p && coop_addr_same_port(src, &p->addr) ? p : NULL;
}

void coop_engine_rx_ctrl(struct coop_engine *e, const void *buf, u32 len,
			 const struct coop_addr *src, u64 now)
{
	struct coop_msg *m = e->msg;
	struct coop_addr to;
	struct coop_peer *p;
	enum coop_decode result;

	e->stats.ctrl_rx++;
	result = coop_wire_decode(m, e->cfg.key, buf, len);
	if (result == COOP_DECODE_SHORT) {
		e->stats.ctrl_short++;
		return;
	}
	if (result == COOP_DECODE_MAC) {
		e->stats.ctrl_mac++;
		return;
	}
	to = answer_to(e, src);
	if (result != COOP_DECODE_OK) {
		refuse_unknown(e, m, result, &to, now);
		return;
	}
	p = speaker(e, m, src);
	if (p) {
		coop_peer_spoke(e, p, now);
		if (m->command != COOP_CMD_FORWARD)
			p->passes = m->hops >= COOP_WIRE_PASS;
	}

	switch (m->command) {
	case COOP_CMD_REQUEST:
	case COOP_CMD_FORWARD:
		coop_serve_request(e, m, src, now);
		break;
	case COOP_CMD_QUERY:
		coop_serve_query(e, m, &to, now);
		break;
	case COOP_CMD_PING:
		on_ping(e, m, &to);
		break;
	case COOP_CMD_PONG:
		on_pong(e, m, now);
		break;
	case COOP_CMD_OFFER:
		coop_offer_arrived(e, m, p);
		break;
	case COOP_CMD_PASSED:
	case COOP_CMD_COMMIT:
	case COOP_CMD_BUSY:
	case COOP_CMD_AGAIN:
	case COOP_CMD_REFUSED:
	default:
		if (!coop_fetch_answer(e, m, now))
			e->stats.commits_stale++;
		coop_fetch_admit(e, now);
		break;
	}
}

/* ---- work for the host -------------------------------------------------------------------- */

bool coop_engine_next_urgent_tx(struct coop_engine *e, u64 now, struct coop_tx *tx)
{
	u32 i;

	memset(tx, 0, sizeof(*tx));
	tx->id = COOP_NONE;
	if (note_tx(e, tx))
		return true;
	while ((i = e->fetch_tx.head) != COOP_NONE) {
		if (coop_fetch_tx(e, i, now, tx))
			return true;
		if (!e->fetch[i].due || coop_fetch_waits_for_reset(e, i))
			coop_fifo_remove(&e->fetch_tx, i); /* it is the head: O(1) */
	}
	while ((i = coop_turns_next_commit(&e->serve_tx)) != COOP_NONE)
		if (coop_serve_tx(e, i, now, tx))
			return true;
	return coop_offer_tx(e, tx);
}

bool coop_engine_next_tx(struct coop_engine *e, u64 now, struct coop_tx *tx)
{
	u32 i;

	if (coop_engine_next_urgent_tx(e, now, tx))
		return true;
	while ((i = coop_turns_next(&e->serve_tx)) != COOP_NONE)
		if (coop_serve_tx(e, i, now, tx))
			return true;
	return false;
}

bool coop_engine_next_event(struct coop_engine *e, u64 now, struct coop_ev *ev)
{
	u32 i;

	memset(ev, 0, sizeof(*ev));
	ev->peer = COOP_NONE;
	while ((i = coop_fifo_pop(&e->fetch_ev)) != COOP_NONE)
		if (coop_fetch_event(e, i, ev, now))
			return true;
	while ((i = coop_fifo_pop(&e->serve_ev)) != COOP_NONE)
		if (coop_serve_event(e, i, ev, now))
			return true;
	if (coop_offer_event(e, ev))
		return true;
	while ((i = coop_fifo_pop(&e->peer_ev)) != COOP_NONE) {
		const struct coop_peer *p = &e->peers.v[i];

		if (coop_idtab_id(&e->peers.ids, i) == COOP_NONE)
			continue;
		ev->kind = COOP_EV_PEER;
		ev->id = p->id;
		ev->peer = p->id;
		ev->health = p->health;
		return true;
	}
	return false;
}

/* ---- time and statistics ------------------------------------------------------------------- */

u64 coop_engine_deadline(const struct coop_engine *e)
{
	return coop_timers_first(&e->timers);
}

bool coop_engine_overdue(const struct coop_engine *e, bool dry, u64 now)
{
	u64 deadline = coop_engine_deadline(e);

	if (now < deadline)
		return false;
	return dry || now - deadline >= coop_max_u32(BACKLOG_MIN_US, e->cfg.peer_timeout_us / 10);
}

void coop_engine_expire(struct coop_engine *e, u64 now)
{
	u32 i;

	while ((i = coop_timers_due(&e->timers, now)) != COOP_NONE) {
		if (i < e->n_fetch)
			coop_fetch_timer(e, i, now);
		else if (i < e->n_fetch + e->cfg.max_peers)
			coop_peer_timer(e, i - e->n_fetch, now);
		else
			coop_serve_wait_over(e, i - e->n_fetch - e->cfg.max_peers);
	}
	coop_fetch_admit(e, now);
}

void coop_engine_stats(const struct coop_engine *e, struct coop_engine_stats *out)
{
	*out = e->stats;
	out->window_bytes = e->window.size;
	out->invited_bytes = e->window.invited;
	out->serves_waiting = e->n_waiting;
}

void coop_engine_stats_reset(struct coop_engine *e)
{
	memset(&e->stats, 0, sizeof(e->stats));
}

static void fetch_info(const struct coop_fetch *f, u64 now, struct coop_request_info *out)
{
	out->id = f->id;
	out->state = coop_fetch_state_name(f->state);
	out->fid = f->req.fid;
	out->version = f->req.version;
	out->first_index = f->req.ext[0].index;
	out->n_pages = coop_weight(f->all);
	out->peer = f->peer;
	out->attempt = f->attempt;
	out->age_us = now - f->t_submit;
}

static void serve_info(const struct coop_serve *s, u64 now, struct coop_request_info *out)
{
	out->id = s->id;
	out->serve = true;
	out->state = coop_serve_state_name(s->state);
	out->fid = s->req.fid;
	out->version = s->req.version;
	out->first_index = s->req.ext[0].index;
	out->n_pages = coop_weight(s->pages);
	out->peer = s->peer;
	out->attempt = s->req.attempt;
	out->age_us = now - s->t_start;
}

bool coop_engine_request_next(const struct coop_engine *e, u32 *cursor, u64 now,
			      struct coop_request_info *out)
{
	u32 i;

	memset(out, 0, sizeof(*out));
	while (*cursor < e->n_fetch + e->cfg.max_serves) {
		i = (*cursor)++;
		if (i < e->n_fetch) {
			if (e->fetch[i].state == COOP_FETCH_FREE)
				continue;
			fetch_info(&e->fetch[i], now, out);
			return true;
		}
		i -= e->n_fetch;
		if (e->serve[i].state == COOP_SERVE_FREE)
			continue;
		serve_info(&e->serve[i], now, out);
		return true;
	}
	return false;
}
