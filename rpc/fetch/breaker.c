// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * breaker.c - drives the circuit breakers of peers: from failures, silence,
 * messages and timers, and by PINGs.
 *
 * peer.c has the states and their rules; it has no timers and sends nothing.
 * Here a change of state sets the peer's timer, tells the host, and sends
 * fetches elsewhere that wait for a peer whose circuit opened.
 */
#include "core.h"
#include "rpc/base/addr.h"

static u32 peer_slot(const struct coop_engine *e, const struct coop_peer *p)
{
	return (u32)(p - e->peers.v);
}

static void ping(struct coop_engine *e, struct coop_peer *p, u64 id, u64 now)
{
	struct coop_note *n = coop_note(e, COOP_CMD_PING, &p->addr, id, 0);

	if (n)
		n->value = e->cfg.mtu;
	coop_peer_asked(p, now);
}

static void probe(struct coop_engine *e, struct coop_peer *p, u64 now)
{
	u64 id = coop_request_id(e, p->id);

	ping(e, p, id, now);
	coop_peer_report(e, p, coop_peer_probe(p, coop_engine_silence(e), now, id), now);
}

static void no_pong(struct coop_engine *e, struct coop_peer *p, u64 now)
{
	if (now >= p->probe_at) {
		coop_peer_report(e, p, coop_peer_no_pong(p, now, coop_random(&e->random)), now);
		return;
	}
	ping(e, p, p->ping_id, now);
	p->ping_sent = 0;
	coop_timer_set(&e->timers, e->n_fetch + peer_slot(e, p),
		       coop_peer_ping_again(p, e->cfg.peer_timeout_us, now));
}

void coop_peer_silence(struct coop_engine *e, struct coop_peer *p, u64 now)
{
	coop_peer_report(e, p, coop_peer_silent(p, now), now);
	if (p->health != COOP_PEER_SUSPECT)
		return;
	ping(e, p, coop_request_id(e, p->id), now);
	coop_timer_set(&e->timers, e->n_fetch + peer_slot(e, p),
		       p->silent_since + coop_engine_silence(e));
}

void coop_peer_report(struct coop_engine *e, struct coop_peer *p, bool changed, u64 now)
{
	u32 slot = peer_slot(e, p);

	if (!changed)
		return;
	coop_fifo_push(&e->peer_ev, slot);
	switch (p->health) {
	case COOP_PEER_OPEN:
		e->stats.peer_down++;
		coop_timer_set(&e->timers, e->n_fetch + slot, p->probe_at);
		coop_fetch_peer_down(e, p->id, now);
		break;
	case COOP_PEER_HALF_OPEN:
		coop_timer_set(&e->timers, e->n_fetch + slot,
			       coop_peer_ping_again(p, e->cfg.peer_timeout_us, now));
		break;
	case COOP_PEER_HEALTHY:
		e->stats.peer_up++;
		coop_fallthrough;
	case COOP_PEER_SUSPECT:
	default:
		coop_timer_clear(&e->timers, e->n_fetch + slot);
		break;
	}
}

void coop_peer_spoke(struct coop_engine *e, struct coop_peer *p, u64 now)
{
	if (coop_peer_heard(p, now))
		coop_timer_set(&e->timers, e->n_fetch + peer_slot(e, p), p->probe_at);
}

void coop_peer_blame(struct coop_engine *e, struct coop_peer *p, u32 weight, u64 sent, u64 now)
{
	if (weight < COOP_FAILS_TO_OPEN && (sent < p->failed_at || !e->cfg.policy.failure_weight)) {
		p->failures++; /* part of a failure already counted, or no other peer to ask */
		return;
	}
	coop_peer_report(e, p, coop_peer_failed(p, weight, now, coop_random(&e->random)), now);
	if (p->health == COOP_PEER_SUSPECT)
		probe(e, p, now);
}

void coop_peer_timer(struct coop_engine *e, u32 slot, u64 now)
{
	struct coop_peer *p = &e->peers.v[slot];

	if (coop_idtab_id(&e->peers.ids, slot) == COOP_NONE)
		return;
	if (p->health == COOP_PEER_OPEN)
		probe(e, p, now);
	else if (p->health == COOP_PEER_HALF_OPEN)
		no_pong(e, p, now);
	else if (p->health == COOP_PEER_SUSPECT)
		coop_peer_report(
			e, p,
			coop_peer_hushed(p, coop_engine_silence(e), now, coop_random(&e->random)),
			now);
}

s64 coop_engine_peer_add(struct coop_engine *e, const struct coop_addr *addr, u32 origin, u64 now)
{
	u32 id;

	if (!coop_addr_valid(addr) || coop_addr_same(addr, &e->cfg.self) || !origin ||
	    (origin & ~(u32)(COOP_PEER_BY_HAND | COOP_PEER_BY_DAEMON)))
		return -EINVAL;
	id = coop_peers_add(&e->peers, addr, origin, e->cfg.mtu, now);
	return id == COOP_NONE ? -ENOSPC : (s64)id;
}

int coop_engine_peer_del(struct coop_engine *e, const struct coop_addr *addr, u32 origin)
{
	int gone = coop_peers_del(&e->peers, addr, origin);

	return gone < 0 ? gone : 0;
}

static void describe(const struct coop_peer *p, struct coop_peer_info *out)
{
	memset(out, 0, sizeof(*out));
	out->id = p->id;
	out->addr = p->addr;
	out->origin = p->origin;
	out->health = p->health;
	out->srtt_us = p->srtt_us;
	out->rttvar_us = p->rttvar_us;
	out->fails_in_row = p->fails;
	out->in_flight = p->in_flight;
	out->fetches = p->fetches;
	out->hits = p->hits;
	out->misses = p->misses;
	out->failures = p->failures;
	out->pages = p->pages;
	out->bytes = p->bytes;
	out->served_pages = p->served_pages;
	out->served_bytes = p->served_bytes;
	out->busy = p->busy;
	out->probe_at = p->health == COOP_PEER_OPEN ? p->probe_at : 0;
}

bool coop_engine_peer_at(const struct coop_engine *e, const struct coop_addr *addr,
			 struct coop_peer_info *out)
{
	const u32 slot = coop_peers_find(&e->peers, addr);

	if (slot == COOP_NONE)
		return false;
	describe(&e->peers.v[slot], out);
	return true;
}

bool coop_engine_peer_next(const struct coop_engine *e, u32 *cursor, struct coop_peer_info *out)
{
	for (; *cursor < e->cfg.max_peers; (*cursor)++) {
		const struct coop_peer *p = &e->peers.v[*cursor];

		if (coop_idtab_id(&e->peers.ids, *cursor) == COOP_NONE)
			continue;
		describe(p, out);
		(*cursor)++;
		return true;
	}
	return false;
}
