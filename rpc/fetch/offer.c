// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Offers: a node that is about to drop pages of which it knows no other holder tells a peer, which
 * fetches them if it has room. An offer is one message without an answer or a repetition: it may be
 * lost, and the pages with it, as without offers. The host limits how many it sends; this file
 * limits how many wait.
 */
#include "core.h"

static bool put(struct coop_offers *q, const struct coop_peer *p, const struct coop_offer *offer)
{
	if (q->tail - q->head == COOP_OFFERS)
		return false;
	q->v[q->tail % COOP_OFFERS].addr = p->addr;
	q->v[q->tail % COOP_OFFERS].peer = p->id;
	q->v[q->tail % COOP_OFFERS].offer = *offer;
	q->tail++;
	return true;
}

int coop_engine_offer(struct coop_engine *e, u32 peer, const struct coop_offer *offer)
{
	const struct coop_peer *p = coop_peers_get(&e->peers, peer);
	struct coop_offer o = *offer;

	if (!p || !p->passes || !coop_peer_usable(p))
		return -ENOENT;
	o.page_shift = e->cfg.page_shift;
	return put(&e->offers_tx, p, &o) ? 0 : -EAGAIN;
}

/* p: who sent it; NULL: a stranger, who may be anyone. */
void coop_offer_arrived(struct coop_engine *e, const struct coop_msg *m, const struct coop_peer *p)
{
	if (p && p->origin && m->u.offer.page_shift == e->cfg.page_shift &&
	    put(&e->offers_rx, p, &m->u.offer))
		e->stats.offers_rx++;
	else
		e->stats.offers_dropped++;
}

bool coop_offer_tx(struct coop_engine *e, struct coop_tx *tx)
{
	struct coop_offers *q = &e->offers_tx;

	while (q->head != q->tail) {
		u32 i = q->head++ % COOP_OFFERS;

		coop_msg_begin(e, COOP_CMD_OFFER, coop_random(&e->random), 0)->u.offer =
			q->v[i].offer;
		if (!coop_msg_finish(e, &q->v[i].addr, tx))
			continue;
		e->stats.offers_tx++;
		return true;
	}
	return false;
}

bool coop_offer_event(struct coop_engine *e, struct coop_ev *ev)
{
	struct coop_offers *q = &e->offers_rx;
	const struct coop_offer *o;
	u32 i;

	if (q->head == q->tail)
		return false;
	i = q->head++ % COOP_OFFERS;
	o = &q->v[i].offer;
	ev->kind = COOP_EV_OFFER;
	ev->from = q->v[i].addr;
	ev->peer = q->v[i].peer;
	ev->fid = o->fid;
	ev->version = o->version;
	ev->size = o->size;
	ev->chances = o->chances;
	ev->n_ext = 1;
	ev->ext[0] = o->ext;
	return true;
}
