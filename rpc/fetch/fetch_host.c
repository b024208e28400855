// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The requester's side of the host interface: submit, cancel and release, work
 * for the network, and events. engine.h has the contract.
 */
#include "core.h"

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
	if (e->cfg.flags & COOP_F_PAGE_TAG)
		r->options |= COOP_OPT_TAG;
	else if (e->cfg.flags & COOP_F_PAGE_CRC)
		r->options |= COOP_OPT_CRC;
	if (f->asks_parent) {
		r->options |= COOP_OPT_WAIT | (f->req.load ? COOP_OPT_LOAD : 0);
		r->level = f->req.level;
	}
	if (slot->posting.n_wr != f->plan.n_segs) {
		r->options |= COOP_OPT_SELECTIVE;
		memcpy(r->want, f->want, sizeof(r->want));
		m->n_segs = f->plan.n_segs;
	}
}

static void post_list(struct coop_engine *e, const struct coop_fetch *f, struct coop_tx *tx)
{
	const struct coop_posting *post = coop_fetch_posting(e, f);
	u32 i;

	for (i = 0; i < post->n_wr; i++)
		coop_plan_seg(&post->plan, post->wr[i].seg, &e->segs[i]);
	tx->seg = e->segs;
	tx->n_seg = post->n_wr;
}

bool coop_fetch_waits_for_reset(const struct coop_engine *e, u32 index)
{
	const struct coop_fetch *f = &e->fetch[index];

	return f->slot != COOP_NONE && e->slot[f->slot].resetting;
}

bool coop_fetch_tx(struct coop_engine *e, u32 index, u64 now, struct coop_tx *tx)
{
	struct coop_fetch *f = &e->fetch[index];
	struct coop_peer *p = coop_peers_get(&e->peers, f->peer);

	tx->slot = f->slot;
	tx->id = f->id;
	tx->cookie = f->req.cookie;
	if (f->due & COOP_DUE_STOP) {
		tx->kind = COOP_TX_STOP_QP;
		f->due &= (u8)~COOP_DUE_STOP;
		if (coop_posting_quiet(coop_fetch_posting(e, f)))
			coop_fetch_stopped(e, f, now);
		return true;
	}
	if (f->due & COOP_DUE_RESET) {
		tx->kind = COOP_TX_RESET_QP;
		f->due &= (u8)~COOP_DUE_RESET;
		return true;
	}
	if (coop_fetch_waits_for_reset(e, index))
		return false;
	if (f->due & COOP_DUE_POST) {
		tx->kind = COOP_TX_POST_RECV;
		f->due &= (u8)~COOP_DUE_POST;
		post_list(e, f, tx);
		return true;
	}
	if (f->due & COOP_DUE_REQUEST) {
		f->due &= (u8)~COOP_DUE_REQUEST;
		request_message(e, f, now);
		if (!p || WARN_ON_ONCE(!coop_msg_finish(e, &p->addr, tx))) {
			coop_fetch_conclude(e, f, COOP_OUT_BARRED, 0, now);
			return false;
		}
		p->fetches++;
		coop_peer_asked(p, now);
		e->stats.attempts++;
		f->state = COOP_FETCH_WAIT;
		f->t_sent = now;
		f->t_heard = now;
		f->t_armed = now;
		coop_fetch_arm(e, f,
			       now + ((u64)coop_fetch_wait(e, f, now) << coop_fetch_backoff(f)));
		return true;
	}
	if (f->due & COOP_DUE_QUERY) {
		f->due &= (u8)~COOP_DUE_QUERY;
		if (!p || f->state != COOP_FETCH_WAIT || f->committed)
			return false;
		coop_msg_begin(e, COOP_CMD_QUERY, f->request_id, coop_fetch_posting(e, f)->imm);
		coop_msg_finish(e, &p->addr, tx);
		coop_peer_asked(p, now);
		e->stats.queries++;
		f->queried = true;
		f->t_armed = now;
		coop_fetch_arm(e, f, now + coop_fetch_wait(e, f, now));
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
		if (f->commit.n_sums && !(e->cfg.flags & COOP_F_TEST_NO_SUMS)) {
			ev->sum = f->commit.tags ? COOP_SUM_TAG : COOP_SUM_CRC;
			ev->sums = f->commit.sum;
		}
		ev->request = f->request_id;
		ev->imm = slot->posting.imm;
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

bool coop_fetch_req_add(struct coop_fetch_req *req, u64 first, u32 count)
{
	struct coop_extent *last = req->n_ext ? &req->ext[req->n_ext - 1] : NULL;

	if (last && last->index + last->count == first) {
		last->count += count;
		return true;
	}
	if (req->n_ext == COOP_MAX_EXTENTS)
		return false;
	req->ext[req->n_ext].index = first;
	req->ext[req->n_ext++].count = count;
	return true;
}

int coop_engine_submit(struct coop_engine *e, const struct coop_fetch_req *req, u64 now, u32 *id)
{
	u32 pages = coop_extents_pages(req->ext, req->n_ext), i;
	struct coop_fetch *f;

	if (!pages || pages > coop_engine_max_pages(e) || !req->version ||
	    req->n_hints > COOP_MAX_HINTS || req->budget_us > COOP_BUDGET_MOST_US ||
	    req->n_parents > req->n_hints || (req->n_parents && !req->level))
		return -EINVAL;
	*id = coop_idtab_get(&e->fetch_ids);
	if (*id == COOP_NONE)
		return -EAGAIN;
	i = coop_idtab_slot(&e->fetch_ids, *id);
	f = &e->fetch[i];
	memset(f, 0, sizeof(*f));
	f->id = *id;
	f->req = *req;
	if (e->cfg.max_fetches == 1) {
		f->req.n_parents = 0; /* with a single slot nothing could be loaded meanwhile */
		f->req.level = 0;
	}
	f->all = coop_mask(pages);
	f->slot = COOP_NONE;
	f->peer = COOP_NONE;
	f->asked = COOP_NONE;
	f->from = COOP_NONE;
	f->err = -ENOENT;
	f->t_submit = now;
	f->budget_us = req->budget_us ? req->budget_us : e->cfg.peer_timeout_us;
	f->t_end = now + f->budget_us;
	if (!coop_fetch_best_untried(e, f, now)) {
		coop_idtab_put(&e->fetch_ids, *id);
		return -ENOENT;
	}
	f->request_id = coop_request_id(e, *id);
	f->state = COOP_FETCH_QUEUED;
	e->stats.fetches++;
	coop_fetch_arm(e, f, f->t_end);
	coop_fifo_push(coop_fetch_line(e, f), i);
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
		coop_fifo_remove(coop_fetch_line(e, f), i);
		coop_fetch_finish(e, f);
		break;
	case COOP_FETCH_ASK:
	case COOP_FETCH_WAIT:
		coop_fetch_conclude(e, f, f->committed ? COOP_OUT_CLEAN : COOP_OUT_SILENT, 0, now);
		break;
	case COOP_FETCH_PAUSE:
		coop_fetch_go_on(e, f, now);
		break;
	case COOP_FETCH_STOP:
	case COOP_FETCH_VERIFY:
	default: /* the end of that state sees 'cancelled' */
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
	if (bad && !f->old_key) {
		if (f->commit.tags)
			e->stats.tag_bad += coop_weight(bad);
		else
			e->stats.crc_bad += coop_weight(bad);
		f->err = -EIO;
		t = coop_fetch_tried(f, f->asked);
		if (t)
			t->outcome = COOP_OUT_BARRED;
		p = coop_peers_get(&e->peers, f->asked);
		if (p)
			coop_peer_blame(e, p, COOP_FAILS_TO_OPEN, f->t_sent, now);
	}
	coop_fetch_accept(e, f, f->judged & good);
	for (; bad; bad &= bad - 1) {
		coop_plan_range(&f->plan, coop_lowest(bad), &seg, &last);
		for (; seg <= last; seg++)
			coop_bit_clear(f->have, seg);
	}
	f->judged = 0;
	coop_fetch_go_on(e, f, now);
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

		/* If the host has not pulled the RESET yet, the slot's next fetch issues it. */
		slot->owes_reset = f->due & COOP_DUE_RESET;
		coop_fetch_put_slot(e, f->slot);
	}
	f->due = 0;
	coop_fifo_remove(&e->fetch_tx, i);
	f->state = COOP_FETCH_FREE;
	coop_idtab_put(&e->fetch_ids, id);
	coop_fetch_admit(e, now);
}

void coop_engine_reset_begin(struct coop_engine *e, u32 slot)
{
	if (!WARN_ON_ONCE(slot >= e->cfg.max_fetches))
		e->slot[slot].resetting = true;
}

void coop_engine_reset_done(struct coop_engine *e, u32 slot, u64 now)
{
	struct coop_slot *s = &e->slot[slot];

	if (WARN_ON_ONCE(slot >= e->cfg.max_fetches || !s->resetting))
		return;
	s->resetting = false;
	if (s->fetch == COOP_NONE) {
		coop_fetch_put_slot(e, slot);
		coop_fetch_admit(e, now);
	} else if (e->fetch[s->fetch].due) {
		coop_fifo_push(&e->fetch_tx, s->fetch);
	}
}

bool coop_engine_fetch_seg(const struct coop_engine *e, u32 id, u32 seg, struct coop_seg *out)
{
	u32 i = coop_idtab_slot(&e->fetch_ids, id);

	if (i == COOP_NONE || !e->fetch[i].attempt || seg >= e->fetch[i].plan.n_segs)
		return false;
	coop_plan_seg(&e->fetch[i].plan, seg, out);
	return true;
}

static u32 move_pass(const struct coop_engine *e, const struct coop_ev *ev, coop_copy_seg *copy,
		     void *host, bool gather)
{
	struct coop_seg what, into;
	u32 i, at = 0;

	for (i = 0; i < ev->n_moves; i++) {
		if (!coop_engine_fetch_seg(e, ev->id, ev->moves[i].seg, &what) ||
		    !coop_engine_fetch_seg(e, ev->id, ev->moves[i].into, &into))
			continue;
		copy(host, gather ? &into : &what, what.len, at, gather);
		at += what.len;
	}
	return at;
}

u32 coop_engine_move(const struct coop_engine *e, const struct coop_ev *ev, coop_copy_seg *copy,
		     void *host)
{
	move_pass(e, ev, copy, host, true);
	return move_pass(e, ev, copy, host, false);
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
