/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * peer.h - the other nodes: their addresses, how fast they answer, whether to ask them.
 *
 * Health is a circuit breaker:
 *
 *   HEALTHY --silent attempt--> SUSPECT   (still asked, less; a PING goes out)
 *   SUSPECT --no message at all for the peer timeout--> OPEN
 *   HEALTHY, SUSPECT --fetch that spent its budget on it--> HALF_OPEN
 *   HEALTHY, SUSPECT --lied, or third failure in a row, or first one after a
 *                      circuit was open--> OPEN
 *   OPEN --probe time; at once if it speaks after it was silent--> HALF_OPEN
 *   HALF_OPEN --PONG, or a clean attempt--> SUSPECT,  --no PONG--> OPEN (the rest doubles)
 *   SUSPECT --clean attempt--> HEALTHY
 *
 * An expired retransmission timer says little about a peer: its processor may
 * be busy for longer than a round trip. So one silent attempt only lowers the
 * peer's weight. The circuit opens when no genuine message of any kind has come
 * since silent_since. The probe is a PING, never a reader's fetch. So a dead
 * peer costs one deadline to the fetches that were under way when it died, and
 * nothing to later ones: new fetches ask only HEALTHY and SUSPECT peers. The
 * rest doubles with each opening until an attempt ends clean, so we also leave
 * a peer alone that answers PINGs and delivers nothing.
 *
 * When a busy machine pauses, every attempt under way at it fails. They count
 * as one failure: an attempt adds to the failures in a row only if it was sent
 * after the last failure that counted, and no attempt replaces the PONG.
 *
 * A peer lives while an origin names it or an attempt is in flight to it.
 */
#ifndef COOP_PEER_H
#define COOP_PEER_H

#include "engine.h"
#include "rpc/base/idtab.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_FAILS_TO_OPEN  3      /* failures in a row */
#define COOP_BACKOFF_MIN_US 100000 /* first time that an open circuit rests; doubles */
#define COOP_BACKOFF_DOUBLE 8      /* doublings: 25.6 s at most, plus jitter */
#define COOP_RTO_MIN_US     4000   /* below this a scheduling delay looks like loss */
#define COOP_RTO_MAX_US     1000000
#define COOP_GRACE_MIN_US   500 /* reordering that we wait out */

struct coop_peer {
	struct coop_addr addr;
	u32 id;
	u32 origin;
	u32 health;
	u32 fails;   /* in a row */
	u32 level;   /* openings in a row */
	u32 mtu;     /* largest datagram that it can send, as far as we know */
	u32 srtt_us; /* 0: never measured */
	u32 rttvar_us;
	u32 kib_us;    /* microseconds a KiB of data takes, times 256 */
	u32 in_flight; /* our attempts at it */
	u32 serving;   /* our serves for it */
	u64 since;     /* when health last changed */
	u64 probe_at;  /* OPEN: next probe; HALF_OPEN: when we give up on the PONG */
	u64 failed_at; /* last failure that counted */
	u64 busy_until;
	u64 silent_since;       /* our first message since its last one; 0: none */
	u64 answered_at;        /* when its last answer or data arrived */
	u64 ping_id, ping_sent; /* ping_sent 0: sent more than once, so its PONG gives no RTT */
	bool hushed;            /* OPEN because of silence */
	bool passes;            /* it speaks FORWARD, PASSED and OFFER: its hop limits say so */
	u32 next_hash;          /* chain in the address index */
	u32 hand_pos;           /* index in the list of peers by hand, or COOP_NONE */
	u64 fetches, hits, misses, failures, pages, bytes, served_pages, served_bytes, busy;
};

struct coop_peers {
	struct coop_peer *v;
	struct coop_idtab ids;
	u32 *bucket; /* address index: heads of chains */
	u32 n_buckets;
	u32 *hand; /* slots of the peers registered by hand */
	u32 n_hand;
	u32 max;
	u64 salt; /* of the index: an attacker cannot choose colliding addresses */
};

u32 coop_peers_buckets(u32 max_peers);
void coop_peers_init(struct coop_peers *t, struct coop_peer *mem, struct coop_id *ids, u32 *bucket,
		     u32 *hand, u32 max_peers, u64 salt);
/* Slot of the peer with this control address, or COOP_NONE. */
u32 coop_peers_find(const struct coop_peers *t, const struct coop_addr *addr);
/* Peer of an id, or NULL if it is gone. */
struct coop_peer *coop_peers_get(const struct coop_peers *t, u32 id);
/* Adds a peer, or the origin to a known one. Returns its id, or COOP_NONE if the table is full. */
u32 coop_peers_add(struct coop_peers *t, const struct coop_addr *addr, u32 origin, u32 mtu,
		   u64 now);
/* Removes an origin. -ENOENT: no such peer or origin; 1: the peer is gone; 0: it lives on. */
int coop_peers_del(struct coop_peers *t, const struct coop_addr *addr, u32 origin);
/* An attempt or a serve that held the peer ended. 1: the peer is gone. */
int coop_peers_unhold(struct coop_peers *t, struct coop_peer *p);

/* Takes an RTT sample. */
void coop_peer_rtt(struct coop_peer *p, u64 us);
/* Takes a rate sample: us is the time from the first to the last of the bytes. */
void coop_peer_rate(struct coop_peer *p, u32 bytes, u64 us);
/* How long to wait for the answer to a request for so many bytes; unknown: the result without a
 * measured RTT. */
u32 coop_peer_rto(const struct coop_peer *p, u32 bytes, u32 unknown);
/* How long data may trail the COMMIT. */
u32 coop_peer_grace(const struct coop_peer *p);

/* The following return whether health changed. */
/* An attempt delivered all that its COMMIT listed. */
bool coop_peer_clean(struct coop_peer *p, u64 now);
/* An attempt failed; weight is 1, or COOP_FAILS_TO_OPEN for a lie. The caller probes a peer that is
 * SUSPECT afterwards. */
bool coop_peer_failed(struct coop_peer *p, u32 weight, u64 now, u64 random);
/* An attempt saw no answer in time. */
bool coop_peer_silent(struct coop_peer *p, u64 now);
/* SUSPECT: opens the circuit if the peer has been silent for limit microseconds. */
bool coop_peer_hushed(struct coop_peer *p, u32 limit, u64 now, u64 random);
/* A PING goes out; the peer has limit microseconds for its PONG and is not asked before that. */
bool coop_peer_probe(struct coop_peer *p, u32 limit, u64 now, u64 ping_id);
/* HALF_OPEN: when to repeat the PING, which may be lost, or when to give up. */
u64 coop_peer_ping_again(const struct coop_peer *p, u32 limit, u64 now);
/* Its PONG arrived. */
bool coop_peer_pong(struct coop_peer *p, u64 now);
/* HALF_OPEN: no PONG arrived in time. */
bool coop_peer_no_pong(struct coop_peer *p, u64 now, u64 random);
/* We sent the peer a message that it must answer. */
void coop_peer_asked(struct coop_peer *p, u64 now);
/* What it did so far says nothing about its health from now on. */
bool coop_peer_fresh(struct coop_peer *p, u64 now);
/* A genuine message arrived. True: its circuit is open and probe_at was brought forward. */
bool coop_peer_heard(struct coop_peer *p, u64 now);

static inline bool coop_peer_usable(const struct coop_peer *p)
{
	return p->origin && p->health <= COOP_PEER_SUSPECT;
}

#ifdef __cplusplus
}
#endif

#endif /* COOP_PEER_H */
