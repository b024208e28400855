// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The table of peers, their RTT and rate, and their circuit breakers; see
 * peer.h. The address index is a chained hash table, salted by the host's
 * entropy; everything else here touches one peer and is O(1).
 */
#include "peer.h"

#include "rpc/base/addr.h"
#include "rpc/base/bits.h"

const char *coop_peer_health_name(u32 health)
{
	switch (health) {
	case COOP_PEER_HEALTHY:
		return "healthy";
	case COOP_PEER_SUSPECT:
		return "suspect";
	case COOP_PEER_OPEN:
		return "open";
	case COOP_PEER_HALF_OPEN:
		return "half-open";
	}
	return "unknown";
}

const char *coop_peer_origin_name(u32 origin)
{
	switch (origin) {
	case COOP_PEER_BY_HAND | COOP_PEER_BY_DAEMON:
		return "hand,daemon";
	case COOP_PEER_BY_HAND:
		return "hand";
	case COOP_PEER_BY_DAEMON:
		return "daemon";
	}
	return "none"; /* its last origin was removed, but requests are in flight */
}

u32 coop_peers_buckets(u32 max_peers)
{
	return 2u << coop_ilog2(max_peers);
}

void coop_peers_init(struct coop_peers *t, struct coop_peer *mem, struct coop_id *ids, u32 *bucket,
		     u32 *hand, u32 max_peers, u64 salt)
{
	u32 i;

	t->v = mem;
	t->bucket = bucket;
	t->n_buckets = coop_peers_buckets(max_peers);
	t->hand = hand;
	t->n_hand = 0;
	t->max = max_peers;
	t->salt = salt;
	coop_idtab_init(&t->ids, ids, max_peers);
	for (i = 0; i < t->n_buckets; i++)
		bucket[i] = COOP_NONE;
}

static u32 *bucket_of(const struct coop_peers *t, const struct coop_addr *addr)
{
	u64 h = coop_mix(coop_addr_hash(addr) ^ t->salt);

	return &t->bucket[h & (t->n_buckets - 1)];
}

u32 coop_peers_find(const struct coop_peers *t, const struct coop_addr *addr)
{
	u32 i;

	for (i = *bucket_of(t, addr); i != COOP_NONE; i = t->v[i].next_hash)
		if (coop_addr_same(&t->v[i].addr, addr))
			return i;
	return COOP_NONE;
}

struct coop_peer *coop_peers_get(const struct coop_peers *t, u32 id)
{
	u32 slot = coop_idtab_slot(&t->ids, id);

	return slot == COOP_NONE ? NULL : &t->v[slot];
}

static void hand_list(struct coop_peers *t, u32 slot)
{
	struct coop_peer *p = &t->v[slot];

	if ((p->origin & COOP_PEER_BY_HAND) && p->hand_pos == COOP_NONE) {
		p->hand_pos = t->n_hand;
		t->hand[t->n_hand++] = slot;
	} else if (!(p->origin & COOP_PEER_BY_HAND) && p->hand_pos != COOP_NONE) {
		u32 last = t->hand[--t->n_hand];

		t->hand[p->hand_pos] = last;
		t->v[last].hand_pos = p->hand_pos;
		p->hand_pos = COOP_NONE;
	}
}

u32 coop_peers_add(struct coop_peers *t, const struct coop_addr *addr, u32 origin, u32 mtu, u64 now)
{
	u32 slot = coop_peers_find(t, addr), id, *bucket;
	struct coop_peer *p;

	if (slot == COOP_NONE) {
		id = coop_idtab_get(&t->ids);
		if (id == COOP_NONE)
			return COOP_NONE;
		slot = coop_idtab_slot(&t->ids, id);
		p = &t->v[slot];
		memset(p, 0, sizeof(*p));
		p->id = id;
		p->health = COOP_PEER_HEALTHY;
		p->mtu = mtu;
		p->since = now;
		p->hand_pos = COOP_NONE;
		bucket = bucket_of(t, addr);
		p->next_hash = *bucket;
		*bucket = slot;
	}
	p = &t->v[slot];
	p->addr = *addr; /* Q_Key and SL may have changed */
	p->origin |= origin;
	hand_list(t, slot);
	return p->id;
}

static int reap(struct coop_peers *t, u32 slot)
{
	struct coop_peer *p = &t->v[slot];
	u32 *link;

	if (p->origin || p->in_flight || p->serving)
		return 0;
	for (link = bucket_of(t, &p->addr); *link != slot; link = &t->v[*link].next_hash)
		;
	*link = p->next_hash;
	coop_idtab_put(&t->ids, p->id);
	return 1;
}

int coop_peers_del(struct coop_peers *t, const struct coop_addr *addr, u32 origin)
{
	u32 slot = coop_peers_find(t, addr);

	if (slot == COOP_NONE || !(t->v[slot].origin & origin))
		return -ENOENT;
	t->v[slot].origin &= ~origin;
	hand_list(t, slot);
	return reap(t, slot);
}

int coop_peers_unhold(struct coop_peers *t, struct coop_peer *p)
{
	return reap(t, (u32)(p - t->v));
}

/* RFC 6298: gains of 1/8 and 1/4. */
void coop_peer_rtt(struct coop_peer *p, u64 us)
{
	u32 r = us < COOP_RTO_MAX_US ? (u32)us : COOP_RTO_MAX_US, error;

	if (!r)
		r = 1;
	if (!p->srtt_us) {
		p->srtt_us = r;
		p->rttvar_us = r / 2;
		return;
	}
	error = r > p->srtt_us ? r - p->srtt_us : p->srtt_us - r;
	p->rttvar_us = (3 * p->rttvar_us + error) / 4;
	p->srtt_us = coop_max_u32((7 * p->srtt_us + r) / 8, 1);
}

void coop_peer_rate(struct coop_peer *p, u32 bytes, u64 us)
{
	u32 kib = bytes >> 10, sample;

	if (!kib)
		return;
	sample = (u32)coop_min_u64(us, COOP_RTO_MAX_US) * 256 / kib;
	p->kib_us = p->kib_us ? (7 * p->kib_us + sample) / 8 : sample;
}

u32 coop_peer_rto(const struct coop_peer *p, u32 bytes, u32 unknown)
{
	u64 us = unknown;

	if (p->srtt_us)
		us = p->srtt_us + 4ull * p->rttvar_us + (2ull * p->kib_us * (bytes >> 10) >> 8);
	if (us < COOP_RTO_MIN_US)
		return COOP_RTO_MIN_US;
	return (u32)coop_min_u64(us, COOP_RTO_MAX_US);
}

u32 coop_peer_grace(const struct coop_peer *p)
{
	return coop_max_u32(COOP_GRACE_MIN_US, p->srtt_us / 4 + 2 * p->rttvar_us);
}

static bool become(struct coop_peer *p, u32 health, u64 now)
{
	if (p->health == health)
		return false;
	p->health = health;
	p->since = now;
	return true;
}

bool coop_peer_fresh(struct coop_peer *p, u64 now)
{
	p->fails = 0;
	p->level = 0;
	p->ping_id = 0;
	p->busy_until = 0;
	p->failed_at = now;
	p->silent_since = 0;
	p->hushed = false;
	return become(p, COOP_PEER_HEALTHY, now);
}

bool coop_peer_clean(struct coop_peer *p, u64 now)
{
	p->fails = 0;
	switch (p->health) {
	case COOP_PEER_SUSPECT:
		p->level = 0;
		return become(p, COOP_PEER_HEALTHY, now);
	case COOP_PEER_HALF_OPEN: /* as good as a PONG */
		return become(p, COOP_PEER_SUSPECT, now);
	case COOP_PEER_HEALTHY:
	case COOP_PEER_OPEN: /* an attempt from before it opened; the probe decides */
	default:
		return false;
	}
}

void coop_peer_asked(struct coop_peer *p, u64 now)
{
	if (!p->silent_since)
		p->silent_since = now ? now : 1;
}

bool coop_peer_heard(struct coop_peer *p, u64 now)
{
	p->silent_since = 0;
	if (p->health != COOP_PEER_OPEN || p->probe_at <= now)
		return false;
	/* Probe at once if silence is the only reason that the circuit is open. Otherwise rest
	 * for the minimum: a peer that talks but delivers nothing must not cause many probes. */
	if (now - p->since < COOP_BACKOFF_MIN_US && !(p->hushed && p->level == 1))
		return false;
	p->probe_at = now;
	return true;
}

static bool open_circuit(struct coop_peer *p, u64 now, u64 random)
{
	u64 rest = (u64)COOP_BACKOFF_MIN_US << p->level;

	if (p->level < COOP_BACKOFF_DOUBLE)
		p->level++;
	/* Up to a quarter more, so that nodes do not probe in step. */
	p->probe_at = now + rest + ((rest >> 2) * (random & 0xffff) >> 16);
	p->hushed = false;
	return become(p, COOP_PEER_OPEN, now);
}

bool coop_peer_failed(struct coop_peer *p, u32 weight, u64 now, u64 random)
{
	p->failures++;
	p->failed_at = now;
	p->fails += weight;
	switch (p->health) {
	case COOP_PEER_HEALTHY:
	case COOP_PEER_SUSPECT:
		/* After a PONG closed its circuit, a peer must deliver in its first attempt. */
		if (p->fails >= COOP_FAILS_TO_OPEN || p->level)
			return open_circuit(p, now, random);
		return become(p, COOP_PEER_SUSPECT, now);
	case COOP_PEER_HALF_OPEN: /* an attempt from before the probe */
		return weight >= COOP_FAILS_TO_OPEN && open_circuit(p, now, random);
	case COOP_PEER_OPEN: /* an attempt from before it opened */
	default:
		return false;
	}
}

bool coop_peer_silent(struct coop_peer *p, u64 now)
{
	p->failures++;
	return p->health == COOP_PEER_HEALTHY && become(p, COOP_PEER_SUSPECT, now);
}

bool coop_peer_hushed(struct coop_peer *p, u32 limit, u64 now, u64 random)
{
	if (p->health != COOP_PEER_SUSPECT || !p->silent_since || now - p->silent_since < limit)
		return false;
	open_circuit(p, now, random);
	p->hushed = true;
	return true;
}

bool coop_peer_probe(struct coop_peer *p, u32 limit, u64 now, u64 ping_id)
{
	p->ping_id = ping_id;
	p->ping_sent = now;
	p->probe_at = now + coop_max_u32(limit, coop_peer_rto(p, 0, limit));
	return become(p, COOP_PEER_HALF_OPEN, now);
}

u64 coop_peer_ping_again(const struct coop_peer *p, u32 limit, u64 now)
{
	return coop_min_u64(p->probe_at, now + coop_max_u32(limit / 4, COOP_RTO_MIN_US));
}

bool coop_peer_pong(struct coop_peer *p, u64 now)
{
	if (p->health != COOP_PEER_HALF_OPEN)
		return false;
	p->ping_id = 0;
	if (p->ping_sent)
		coop_peer_rtt(p, now - p->ping_sent);
	return become(p, COOP_PEER_SUSPECT, now);
}

bool coop_peer_no_pong(struct coop_peer *p, u64 now, u64 random)
{
	if (p->health != COOP_PEER_HALF_OPEN)
		return false;
	p->failures++;
	open_circuit(p, now, random);
	p->hushed = p->silent_since != 0;
	return true;
}
