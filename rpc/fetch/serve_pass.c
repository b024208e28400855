// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Requests that are passed on to another node; see serve.h.
 *
 * A node that lacks the pages and knows who holds them sends the REQUEST on as a FORWARD, and tells
 * the requester so with PASSED. The holder answers the requester itself. A REQUEST is passed on at
 * most once, so no circle can form.
 *
 * A FORWARD makes a node send data to a third one. So it is accepted only from a peer, and only for
 * a requester that is a peer too: an attacker can name no other victim.
 */
#include "core.h"

#include "rpc/base/addr.h"

bool coop_serve_forward_acceptable(struct coop_engine *e, const struct coop_msg *m,
				   const struct coop_addr *src)
{
	const struct coop_msg_request *r = &m->u.request;
	u32 from = coop_peers_find(&e->peers, src), to = coop_peers_find(&e->peers, &r->reply);

	if ((e->cfg.flags & COOP_F_FORWARDS) && from != COOP_NONE && to != COOP_NONE &&
	    e->peers.v[from].origin && e->peers.v[to].origin &&
	    coop_addr_same_port(&r->reply, &r->data) && r->reply.qpn != r->data.qpn &&
	    r->attempt <= COOP_MAX_ATTEMPTS)
		return true;
	e->stats.forwards_refused++;
	return false;
}

int coop_engine_lookup_pass(struct coop_engine *e, u32 id, u32 peer, u64 cookie, u64 now)
{
	const struct coop_peer *p = coop_peers_get(&e->peers, peer), *asker;
	struct coop_serve *s = coop_serve_get(e, id);

	if (!s || WARN_ON_ONCE(s->state != COOP_SERVE_LOOKUP))
		return -ENOENT;
	if (!p || !s->may_pass || s->abandoned || now >= s->t_end)
		return -ENOENT;
	/* The other node does not know a stranger either, and would not answer. */
	asker = s->known ? coop_peers_get(&e->peers, s->peer) : NULL;
	if (!asker || !asker->origin || asker == p)
		return -ENOENT;
	if (!p->passes || !coop_peer_usable(p) || p->mtu < s->req.mtu)
		return -ENOENT;
	s->cookie = cookie;
	s->onward = p->id;
	s->state = COOP_SERVE_PASS;
	coop_turns_commit(&e->serve_tx, (u32)(s - e->serve));
	return 0;
}

void coop_serve_passed(struct coop_engine *e, const struct coop_record *r)
{
	struct coop_note *n = coop_note(e, COOP_CMD_PASSED, &r->reply, r->id, r->imm);

	if (n)
		n->record = (u32)(r - e->record);
}

/*
 * First PASSED, then FORWARD: where the holder's answer comes first, the requester takes this node
 * for its sender.
 */
bool coop_serve_pass_tx(struct coop_engine *e, struct coop_serve *s, u64 now, struct coop_tx *tx)
{
	struct coop_record *r = &e->record[s->record];
	struct coop_peer *p = coop_peers_get(&e->peers, s->onward);
	const bool told = r->state == COOP_RECORD_PASSED;
	const bool superseded = &e->serve[r->serve] != s; /* the record is another serve's */
	struct coop_msg *m;

	if (s->abandoned || superseded || now >= s->t_end || (told && !p)) {
		coop_serve_end(e, s);
		return false;
	}
	if (!p) { /* it left in between: the requester learns that the pages are not here */
		s->state = COOP_SERVE_LOOKUP;
		coop_serve_looked_up(e, s, 0, s->req.size, s->cookie, now);
		return false;
	}
	if (!told) {
		r->state = COOP_RECORD_PASSED;
		r->when = now;
		r->commit.source = p->addr;
		coop_turns_commit(&e->serve_tx, (u32)(s - e->serve));
		coop_msg_begin(e, COOP_CMD_PASSED, r->id, r->imm)->u.passed_to = p->addr;
		return coop_msg_finish(e, &r->reply, tx);
	}
	m = coop_msg_begin(e, COOP_CMD_FORWARD, r->id, r->imm);
	m->hops = COOP_WIRE_HOPS;
	m->u.request = s->req;
	m->u.request.budget_us = (u32)(s->t_end - now);
	m->n_segs = s->plan.n_segs;
	coop_serve_end(e, s);
	e->stats.serves_passed++;
	return !WARN_ON_ONCE(!coop_msg_finish(e, &p->addr, tx));
}
