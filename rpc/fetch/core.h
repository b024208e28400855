/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * core.h - the engine from the inside: what engine.c, the requester and the responder share.
 *
 * Everything lies in the host's one block of memory, in arrays of fixed length;
 * objects refer to each other by index. Queues hold the objects with work for
 * the network, with an event for the host, or without a slot.
 */
#ifndef COOP_CORE_H
#define COOP_CORE_H

#include "engine.h"
#include "fetch.h"
#include "peer.h"
#include "plan.h"
#include "posting.h"
#include "rpc/base/bits.h"
#include "rpc/base/fifo.h"
#include "rpc/base/idtab.h"
#include "rpc/base/timer.h"
#include "serve.h"
#include "tag.h"
#include "turns.h"
#include "window.h"
#include "wire.h"

#define COOP_BATCH        64          /* segments a TX_DATA */
#define COOP_WINDOW_STEP  (64u << 10) /* of the window, in bytes */
#define COOP_REFUSE_US    1000        /* rate of REFUSED messages: one in this time ... */
#define COOP_REFUSE_BURST 32          /* ... and a burst of this many */
#define COOP_OFFERS       32          /* offers that wait to be sent, or for the host */

/* Offers in the order in which they came. */
struct coop_offers {
	struct {
		struct coop_addr addr;
		u32 peer; /* id */
		struct coop_offer offer;
	} v[COOP_OFFERS];
	u32 head, tail;
};

/* A message that belongs to no fetch or serve. */
struct coop_note {
	struct coop_addr to;
	u64 id;
	u32 imm;
	u32 value;
	u32 record; /* COMMIT, PASSED: index of the record */
	u16 reason;
	u8 command;
};

struct coop_engine {
	struct coop_engine_cfg cfg;
	struct coop_engine_stats stats;
	struct coop_tag_key tag_key;
	u64 random;
	u32 chunk_shift;

	struct coop_peers peers;
	struct coop_timers timers; /* fetches first, then peers, then serves */

	u32 n_fetch; /* max_fetches + max_queued */
	struct coop_fetch *fetch;
	struct coop_idtab fetch_ids;
	struct coop_slot *slot;
	u32 free_slot; /* head of a list through slot[].next */
	u32 n_free_slots;
	struct coop_fifo waiting, prompt; /* fetches without a slot; prompt ones go first */
	u32 n_prompt;                     /* prompt fetches with a slot that have not finished */
	struct coop_fifo fetch_tx, fetch_ev;

	struct coop_window window; /* bytes of admitted fetches that have not finished */

	struct coop_serve *serve;
	struct coop_idtab serve_ids;
	struct coop_record *record;
	u32 n_sets;
	u32 strangers; /* serves for nodes that are not our peers */
	u32 n_waiting; /* serves that wait for pages on their way here */
	s64 tokens;    /* bytes that may be served, 16 fractional bits; negative: a debt */
	u64 token_rate, token_depth, token_at;
	struct coop_turns serve_tx; /* nodes: peer slots, then one for all strangers */
	struct coop_fifo serve_ev;

	struct coop_fifo peer_ev;
	struct coop_note *note; /* ring */
	u32 note_mask, note_head, note_tail;
	struct coop_offers offers_tx, offers_rx;
	u64 refuse_at; /* when the next REFUSED is due at one per COOP_REFUSE_US */

	struct coop_seg *segs;   /* the array of the last TX: fetch_depth, at least COOP_BATCH */
	struct coop_msg *msg;    /* scratch of rx_ctrl */
	struct coop_msg *msg_tx; /* scratch of next_tx */
	u8 *ctrl;                /* COOP_CTRL_MAX: the message of the last TX */
};

/*
 * The id of a request: random above 'low', which is the engine's own. The engines that share a
 * control address also put their number in, because the answer comes to the address.
 */
static inline u64 coop_request_id(struct coop_engine *e, u32 low)
{
	u64 id = (coop_random(&e->random) & ~(u64)0xffffffff) | low;

	if (e->cfg.shards > 1)
		id = id << COOP_SHARD_BITS >> COOP_SHARD_BITS | (u64)e->cfg.shard
									<< (64 - COOP_SHARD_BITS);
	return id;
}

/* How long a peer that owes an answer may be silent before its circuit opens. */
static inline u32 coop_engine_silence(const struct coop_engine *e)
{
	return e->cfg.silence_us ? e->cfg.silence_us : e->cfg.peer_timeout_us;
}

/* Fills e->msg_tx's header fields; the caller fills the body. */
struct coop_msg *coop_msg_begin(struct coop_engine *e, u8 command, u64 id, u32 imm);
/* Encodes e->msg_tx into tx; false if it does not fit. */
bool coop_msg_finish(struct coop_engine *e, const struct coop_addr *to, struct coop_tx *tx);
/* Queues a note; drops it when the ring is full. NULL then. */
struct coop_note *coop_note(struct coop_engine *e, u8 command, const struct coop_addr *to, u64 id,
			    u32 imm);
/* Queues a REFUSED if the rate limit allows it. */
void coop_refuse(struct coop_engine *e, const struct coop_addr *to, u64 id, u32 imm, u16 reason,
		 u32 value, u64 now);

/* ---- offer.c ---- */
void coop_offer_arrived(struct coop_engine *e, const struct coop_msg *m, const struct coop_peer *p);
bool coop_offer_tx(struct coop_engine *e, struct coop_tx *tx);
bool coop_offer_event(struct coop_engine *e, struct coop_ev *ev);

/* If the peer's health changed: sets its timer, queues EV_PEER, and if its circuit opened, sends
 * fetches that wait for it elsewhere. */
void coop_peer_report(struct coop_engine *e, struct coop_peer *p, bool changed, u64 now);
/* An attempt sent at 'sent' failed by the peer's fault. */
void coop_peer_blame(struct coop_engine *e, struct coop_peer *p, u32 weight, u64 sent, u64 now);
/* A genuine message or datagram came from it. */
void coop_peer_spoke(struct coop_engine *e, struct coop_peer *p, u64 now);
/* An attempt ran out of patience without any message from the peer: sends a PING; the peer stays
 * usable. */
void coop_peer_silence(struct coop_engine *e, struct coop_peer *p, u64 now);
/* The timer of the peer in this slot is due. */
void coop_peer_timer(struct coop_engine *e, u32 slot, u64 now);

#endif /* COOP_CORE_H */
