/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * peer.h - the other nodes: where they are, how fast they answer, whether to ask.
 *
 * Health is a circuit breaker:
 *
 *   HEALTHY --silent attempt--> SUSPECT   (still asked, less; a PING goes out)
 *   SUSPECT --nothing at all was heard for the peer timeout--> OPEN
 *   HEALTHY, SUSPECT --fetch that spent its budget on it--> HALF_OPEN
 *   HEALTHY, SUSPECT --lied, or third failure in a row, or first one after a
 *                      circuit was open--> OPEN
 *   OPEN --probe time; at once if it speaks after it was silent--> HALF_OPEN
 *   HALF_OPEN --PONG, or a clean attempt--> SUSPECT,  --no PONG--> OPEN (the rest doubles)
 *   SUSPECT --clean attempt--> HEALTHY
 *
 * A retransmission timer that runs out says little about a peer: its processor
 * may be busy for longer than a round trip takes. So one silent attempt only
 * lowers its weight; what opens the circuit is that no genuine message of any
 * kind came since silent_since. The probe is a PING, never a reader's fetch: a
 * dead peer costs the fetches that were under way when it died one deadline,
 * and later ones nothing, because new fetches ask only HEALTHY and SUSPECT
 * peers. The rest doubles with every opening that no clean attempt came
 * between, so a peer that answers PINGs but delivers nothing is left alone as
 * well.
 *
 * One pause of a busy machine makes every attempt fail that is under way. They
 * are one piece of news: only an attempt that was sent after the last failure
 * counted counts as the next in a row, and none answers for the PONG.
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
#define COOP_RTO_MIN_US     4000   /* below that a busy scheduler looks like loss */
#define COOP_RTO_MAX_US     1000000
#define COOP_GRACE_MIN_US   500 /* reordering that we wait out */

struct coop_peer {
	struct coop_addr addr;
	u32 id;
	u32 origin;
	u32 health;
	u32 fails;   /* in a row */
	u32 level;   /* openings in a row */
	u32 mtu;     /* most that it can send, as far as we know */
	u32 srtt_us; /* 0: never measured */
	u32 rttvar_us;
	u32 kib_us;    /* microseconds a KiB of data takes, times 256 */
	u32 in_flight; /* attempts of ours that ask it */
	u32 serving;   /* requests of its that we serve */
	u64 since;     /* when health last became what it is */
	u64 probe_at;  /* OPEN: next probe; HALF_OPEN: when we give up on the PONG */
	u64 failed_at; /* last failure that counted */
	u64 busy_until;
	u64 silent_since;       /* first message of ours since we last heard from it; 0: none */
	u64 answered_at;        /* when it last answered us, or data of its came */
	u64 ping_id, ping_sent; /* sent 0: more than once, so its PONG measures nothing */
	bool hushed;            /* OPEN because nothing was heard */
	u32 next_hash;          /* chain in the address index */
	u32 hand_pos;           /* place in the list of peers by hand, or COOP_NONE */
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
	u64 salt; /* of the index, so that nobody can choose colliding addresses */
};

u32 coop_peers_buckets(u32 max_peers);
void coop_peers_init(struct coop_peers *t, struct coop_peer *mem, struct coop_id *ids, u32 *bucket,
		     u32 *hand, u32 max_peers, u64 salt);
/* Slot of the peer with this control address, or COOP_NONE. */
u32 coop_peers_find(const struct coop_peers *t, const struct coop_addr *addr);
/* Peer of an id, or NULL when it is gone. */
struct coop_peer *coop_peers_get(const struct coop_peers *t, u32 id);
/* Adds, or adds the origin to a known one: its id; COOP_NONE: full. */
u32 coop_peers_add(struct coop_peers *t, const struct coop_addr *addr, u32 origin, u32 mtu,
		   u64 now);
/* Takes an origin away. -ENOENT; 1: the peer is gone; 0: it lives on. */
int coop_peers_del(struct coop_peers *t, const struct coop_addr *addr, u32 origin);
/* An attempt or a serve that held the peer ended. 1: the peer is gone. */
int coop_peers_unhold(struct coop_peers *t, struct coop_peer *p);

/* It answered after us microseconds. */
void coop_peer_rtt(struct coop_peer *p, u64 us);
/* Bytes arrived within us microseconds, first to last. */
void coop_peer_rate(struct coop_peer *p, u32 bytes, u64 us);
/* How long to wait for the answer to a request for so many bytes; unknown: when nothing was
 * measured. */
u32 coop_peer_rto(const struct coop_peer *p, u32 bytes, u32 unknown);
/* How long data may trail the COMMIT. */
u32 coop_peer_grace(const struct coop_peer *p);

/* The following return whether health changed. */
/* An attempt delivered all that its COMMIT listed. */
bool coop_peer_clean(struct coop_peer *p, u64 now);
/* An attempt failed; weight is 1, or COOP_FAILS_TO_OPEN for a lie. SUSPECT afterwards: probe it. */
bool coop_peer_failed(struct coop_peer *p, u32 weight, u64 now, u64 random);
/* An attempt saw no answer in time. */
bool coop_peer_silent(struct coop_peer *p, u64 now);
/* SUSPECT: opens the circuit if nothing was heard for limit microseconds. */
bool coop_peer_hushed(struct coop_peer *p, u32 limit, u64 now, u64 random);
/* A PING goes out to a peer that is not to be asked before its PONG; it has limit microseconds. */
bool coop_peer_probe(struct coop_peer *p, u32 limit, u64 now, u64 ping_id);
/* HALF_OPEN: when to send the PING once more, as it may have been lost; or when to give up. */
u64 coop_peer_ping_again(const struct coop_peer *p, u32 limit, u64 now);
/* Its PONG came. */
bool coop_peer_pong(struct coop_peer *p, u64 now);
/* HALF_OPEN: its PONG did not come. */
bool coop_peer_no_pong(struct coop_peer *p, u64 now, u64 random);
/* Something was sent that it must answer. */
void coop_peer_asked(struct coop_peer *p, u64 now);
/* A genuine message came from it: true if its circuit is open and the probe was brought forward. */
bool coop_peer_heard(struct coop_peer *p, u64 now);

static inline bool coop_peer_usable(const struct coop_peer *p)
{
	return p->origin && p->health <= COOP_PEER_SUSPECT;
}

#ifdef __cplusplus
}
#endif

#endif /* COOP_PEER_H */
