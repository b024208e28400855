/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * core.h - rpc/chan from the inside: what its files share.
 *
 *   chan.c     memory, results, time, statistics
 *   peer.c     peers and their addresses; the end of a session
 *   session.c  the start of a session: is its sender alive, has it restarted
 *   window.c   sequence numbers in use: segments sent, segments received
 *   message.c  messages: queued, paused, cut again, given up
 *   send.c     cuts messages into segments and sends them
 *   ack.c      takes RTT, losses and congestion window from ACKs
 *   recv.c     receives segments and assembles messages
 *   wire.c     encodes and decodes datagrams
 *
 * Sequence numbers are 64 bits inside, where they never wrap, and 32 on the
 * wire. All objects lie in arrays; a peer holds a table of segment blocks
 * (sending) and a bitmap (receiving out of order) only while it needs them.
 */
#ifndef COOP_CHAN_CORE_H
#define COOP_CHAN_CORE_H

#include "chan.h"
#include "list.h"
#include "rpc/base/bits.h"
#include "rpc/base/fifo.h"
#include "rpc/base/idtab.h"
#include "wheel.h"
#include "wire.h"

#define COOP_CHAN_BLOCK      64  /* segments in a block, the unit of the pool */
#define COOP_CHAN_TABLE      128 /* most blocks of a window (65), next power of two */
#define COOP_CHAN_NO_BLOCK   0xffffu
#define COOP_CHAN_NOTES      64
#define COOP_CHAN_CWND_FIRST 10 /* RFC 6928 */
#define COOP_CHAN_CWND_LEAST 2
#define COOP_CHAN_ACK_EVERY  16 /* segments after which an ACK is due at once */
#define COOP_CHAN_TELL_AGAIN 2  /* after so many timeouts in a row datagrams carry OPEN again */
#define COOP_CHAN_POLL       2  /* after so many timeouts in a row our ACKs ask for an ACK */
#define COOP_CHAN_SEG_TRIES  2  /* a segment sent this times max_tries: the path is dead */
#define COOP_CHAN_URGENT_RUN 16 /* urgent messages that overtake others in a row */
#define COOP_CHAN_RNR_DOUBLE 6  /* doublings of rnr_us */
#define COOP_CHAN_REPLIES    4  /* replies in a row: the next ACK waits for one too */
#define COOP_CHAN_REPLY      32 /* times ack_us: what comes later is no reply */
#define COOP_CHAN_STUCK      4  /* or 2/3 of max_tries, if that is more: see too_narrow() */

enum coop_seg_state {
	COOP_SEG_FREE,    /* its sequence number is not in use */
	COOP_SEG_TO_SEND, /* has a sequence number, was never sent */
	COOP_SEG_FLIGHT,  /* sent, the RTO runs; in the peer's flight list of its channel */
	COOP_SEG_RESEND,  /* lost, or void; in the peer's resend list */
	COOP_SEG_HELD,    /* refused: waits for the end of its message's pause */
	COOP_SEG_DONE,    /* acknowledged */
};

struct coop_seg_tx {
	u32 msg;     /* index; COOP_NONE: void */
	u32 first;   /* void: first sequence number of the message that it belonged to */
	u32 sent_at; /* low 32 bits of the time */
	u32 order;   /* counts the segments sent to this peer */
	u8 state, tries, channel;
	bool again; /* sent more than once: an ACK may be for an earlier transmission */
};

struct coop_seg_block {
	u64 base; /* sequence number of its first segment */
	u32 peer;
	u32 next; /* free list */
};

struct coop_tx_table {
	u16 block[COOP_CHAN_TABLE]; /* by block number of the sequence */
};

struct coop_rx_map {
	u64 bits[COOP_CHAN_MAP_WORDS]; /* by sequence number: arrived out of order */
};

enum coop_msg_state {
	COOP_MSG_FREE,
	COOP_MSG_QUEUED,   /* waits for room in the window; in the peer's queue */
	COOP_MSG_SENDING,  /* has sequence numbers */
	COOP_MSG_PAUSED,   /* receiver not ready: the message's timer runs, segments are HELD */
	COOP_MSG_KNOCKING, /* one segment asks whether the receiver is ready now */
	COOP_MSG_ENDING,   /* over, but the network still reads its memory */
	COOP_MSG_OVER,     /* its event is queued */
};

struct coop_send {
	u64 cookie, tag, at;
	u64 first; /* sequence number of its first segment */
	u32 id, peer_id, peer;
	u32 length, n_segs;
	u32 next;  /* segments sent at least once */
	u32 acked; /* segments acknowledged */
	u32 wire;  /* datagrams given to the host that wait for tx_done */
	int err;
	u16 unit;
	u8 state, flags, rnr;
	u8 channel;  /* the peer's queue that it uses */
	bool queued; /* in that queue */
};

enum coop_recv_state {
	COOP_RECV_FREE,
	COOP_RECV_PARTLY,
	COOP_RECV_WHOLE,
	COOP_RECV_ABORTED,
	COOP_RECV_GIVEN_UP, /* its event is queued; further segments are refused */
	COOP_RECV_REFUSING, /* segments are refused until the sender voids the message */
};

struct coop_recv {
	u64 cookie, tag;
	u64 came_at; /* when its last segment arrived; orders the peer's 'receiving' list */
	u32 peer, peer_id;
	u32 first, length, got;
	u32 next_hash;
	int err;
	u16 unit;
	u8 state;
};

enum coop_ack_due {
	COOP_ACK_NONE,
	COOP_ACK_TIMER,
	COOP_ACK_NOW,
};

enum coop_peer_news {
	COOP_NEWS_NEW = 1,
	COOP_NEWS_DEAD = 2,
	COOP_NEWS_RESTARTED = 4,
};

struct coop_chan_peer {
	struct coop_chan_peer_addr addr;
	u64 cookie;
	u64 session, remote;  /* session ids: ours; the peer's, 0: unknown */
	u64 una, next;        /* sending: first unacknowledged, first unused */
	u64 first;            /* first sequence number of this session */
	u64 rx_next, rx_high; /* receiving: first missing; highest that arrived */
	u64 heard_at;         /* when the last datagram of its session came, 0: none yet */
	u64 cut_at;           /* losses of segments sent before do not cut cwnd again, */
	u64 timeout_at;       /* and their timeouts do not count again */
	u64 rx_at;            /* when the last segment came */
	u64 asked;            /* while 'stuck': the empty segment that asks; 0: not yet sent */
	u64 tx_bytes, rx_bytes;
	u32 id, remote_id;
	u32 next_hash;
	u32 table, map;             /* indices into the pools; COOP_NONE: holds none */
	struct coop_list queue[2];  /* messages that still have segments to send, by channel */
	struct coop_list urgent[2]; /* the same, COOP_CHAN_URGENT */
	struct coop_list all;       /* every message that is not over */
	struct coop_list receiving; /* half-received messages, oldest segment first */
	u32 n_receiving;            /* length of that list */
	struct coop_list flight[2]; /* segments in flight by channel, oldest first */
	struct coop_list resend;
	u32 rx_stamp;   /* stamp of the last segment that arrived */
	u32 order;      /* datagrams with segments sent so far */
	u32 rack[2];    /* order of the youngest segment acknowledged, by channel ... */
	u32 rack_us[2]; /* ... and how long its ACK took */
	u32 in_flight;
	u32 cwnd, ssthresh;           /* segments, 8 fractional bits */
	u32 undo_cwnd, undo_ssthresh; /* their values before the last timeout ... */
	u32 undo_at;                  /* ... and when that was */
	u32 queued;                   /* messages in queue[] and urgent[] */
	u32 stuck_at;                 /* low 32 bits of the time of the first timeout in 'stuck' */
	u32 srtt, rttvar;
	u32 tx_messages, rx_messages, tx_segments, retransmits, sessions;
	u16 window;    /* the smaller of ours and the peer's */
	u16 mtu[2];    /* the peer's, as it told last; at first ours */
	u16 reordered; /* bits set in map */
	u16 carried;   /* payload of the longest segment that arrived; at first 'tiny' */
	u8 stuck;      /* timeouts of longer segments, while the peer's datagrams arrive */
	u8 unacked;    /* segments received since our last ACK */
	u8 replies;    /* replies in time, in a row, up to COOP_CHAN_REPLIES */
	bool to_reply; /* a segment came after our last one */
	u8 tries, backoff;
	u8 state, ack_due;
	u8 run[2]; /* urgent messages that overtook queue[] in a row */
	u8 news, why, restart_why;
	bool used;
	bool racked[2]; /* rack is valid */
	bool answered;  /* the segment 'asked', or a later one, was acknowledged */
	bool poll;      /* our next ACK asks for an ACK */
	bool undo;      /* the last timeout may have been spurious */
	bool synced;    /* we know the peer's sequence */
	bool confirmed; /* the peer knows ours */
	int err;        /* of EV_PEER_DEAD */
};

/* A datagram that belongs to no segment. */
struct coop_chan_note {
	struct coop_addr to;
	u64 src_session, dst_session, session;
	u32 dst_id, seq, first;
	u32 peer_id; /* RNR: dropped if this peer or its session is over */
	u16 reason;
	u8 type;
};

struct coop_chan {
	struct coop_chan_cfg cfg;
	struct coop_chan_stats stats;
	u64 random;
	u8 secret[16];
	u64 salt;
	u64 quiet_until; /* until then unknown senders are challenged */
	u32 credits[2];  /* left */
	u32 command_reserve;
	u32 unit, tiny;

	struct coop_chan_peer *peer;
	struct coop_idtab peer_ids;
	u32 *bucket;
	u32 *bucket_epoch; /* counts sessions of the bucket's addresses: keeps session ids unique */
	u32 n_buckets;

	struct coop_wheel *wheel; /* peers' RTO, peers' ACK, messages' pause */
	struct coop_fifo resend, ready[2], ack, starved, news; /* peers */

	struct coop_send *send;
	struct coop_link *send_all, *send_queue;
	struct coop_idtab send_ids;
	struct coop_fifo sent; /* messages whose event is queued */

	struct coop_seg_tx *seg;
	struct coop_link *seg_link;
	struct coop_seg_block *block;
	u32 n_blocks, free_blocks, block_head;
	struct coop_tx_table *table;
	u32 *table_next, table_head;
	u32 tables_made; /* tables used so far */
	bool introduced; /* next_tx queued a new segment: look for resends again */
	bool freed;      /* a pool has room again: the first peer in 'starved' may try */
	u32 fed;         /* that peer, during its try */
	struct coop_rx_map *map;
	u32 *map_next, map_head;

	struct coop_recv *recv;
	struct coop_link *recv_link; /* the peer's list, or the free list */
	struct coop_list recv_free;
	struct coop_fifo received; /* receives whose event is queued */
	u32 *recv_bucket;
	u32 n_recv_buckets;

	struct coop_chan_note *note; /* ring */
	u32 note_head, note_tail;

	/* The PLACE verdict that waits for the host's answer. */
	bool asked;
	u32 ask_peer;
	u64 ask_seq;
	struct coop_chan_packet *packet; /* of the last rx */
	struct coop_chan_packet *out;    /* scratch of next_tx */
	u8 *hdr;                         /* of the last TX */
};

static inline bool coop_before(u32 a, u32 b)
{
	return (s32)(a - b) < 0;
}

/* The sequence number near 'about' with this low half, which is what the wire carries. */
static inline u64 coop_seq_near(u64 about, u32 wire)
{
	return about + (u64)(s64)(s32)(wire - (u32)about);
}

static inline u32 coop_chan_slot(const struct coop_chan *c, const struct coop_chan_peer *p)
{
	return (u32)(p - c->peer);
}

/* ---- chan.c ---- */
struct coop_chan_note *coop_chan_note(struct coop_chan *c, u8 type, const struct coop_addr *to);
/* The message is over: its event follows once the network no longer reads its memory. */
void coop_chan_finish(struct coop_chan *c, u32 msg, int err);

/* ---- peer.c ---- */
void coop_chan_peers_init(struct coop_chan *c, struct coop_id *ids, u64 now);
struct coop_chan_peer *coop_chan_by_id(const struct coop_chan *c, u32 id);
u32 coop_chan_bucket(const struct coop_chan *c, const struct coop_addr *a);
u32 coop_chan_by_address(const struct coop_chan *c, const struct coop_addr *command);
/* A new peer, or COOP_NONE. */
u32 coop_chan_admit(struct coop_chan *c, const struct coop_chan_peer_addr *a, u64 now);
/* Ends the session: everything under way ends with err. */
void coop_chan_end_session(struct coop_chan *c, struct coop_chan_peer *p, int err, u64 now);
void coop_chan_restarted(struct coop_chan *c, struct coop_chan_peer *p, u32 why, u64 now);
void coop_chan_dead(struct coop_chan *c, struct coop_chan_peer *p, u32 why, u64 now);
void coop_chan_news(struct coop_chan *c, struct coop_chan_peer *p, u8 news);

/* ---- session.c ---- */
/* Derives our session id for this address and the peer's session id (0: not known). */
u64 coop_chan_session_id(const struct coop_chan *c, const struct coop_addr *command, u64 theirs);
void coop_chan_begin(struct coop_chan *c, struct coop_chan_peer *p);
/* The peer whose session the datagram belongs to; NULL: no session, and the datagram is handled. */
struct coop_chan_peer *coop_chan_session(struct coop_chan *c, const struct coop_chan_dgram *rx,
					 const struct coop_chan_packet *m, u64 now);

/* ---- window.c ---- */
void coop_chan_windows_init(struct coop_chan *c);
/* Index of a segment in the window [una, next). */
u32 coop_chan_seg(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq);
u64 coop_chan_seg_seq(const struct coop_chan *c, u32 seg);
/* Takes n sequence numbers. -EAGAIN: the window or the peer's share of the pool has no room, an ACK
 * of the peer makes some; -ENOSPC: a pool has none. */
int coop_chan_reserve(struct coop_chan *c, struct coop_chan_peer *p, u32 n);
/* Moves una to seq and frees the blocks before it. */
void coop_chan_advance(struct coop_chan *c, struct coop_chan_peer *p, u64 seq);
void coop_chan_window_drop(struct coop_chan *c, struct coop_chan_peer *p);
/* Receiving: has seq (of the window) arrived; is there room to mark it; mark it. */
bool coop_chan_has(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq);
bool coop_chan_may_mark(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq);
void coop_chan_mark(struct coop_chan *c, struct coop_chan_peer *p, u64 seq);
void coop_chan_map_drop(struct coop_chan *c, struct coop_chan_peer *p);
/* 64 bits of the bitmap from seq on. */
u64 coop_chan_map_word(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq);

/* ---- message.c ---- */
/* Puts a message into its peer's queue: ahead of all others if it holds sequence numbers. */
void coop_chan_enqueue(struct coop_chan *c, struct coop_chan_peer *p, u32 msg);
/* Takes a message out of its peer's queue, if it is queued. */
void coop_chan_dequeue(struct coop_chan *c, struct coop_chan_peer *p, u32 msg);
/* Ends a message before it was delivered; its unacknowledged numbers become void. */
void coop_chan_abandon(struct coop_chan *c, u32 msg, int err, u64 now);
/* The peer told its MTUs: messages that were cut too long for it are cut again. */
void coop_chan_recut(struct coop_chan *c, struct coop_chan_peer *p);
/* The receiver is not ready: pauses the message. */
void coop_chan_pause(struct coop_chan *c, u32 msg, u64 now);
/* The pause is over: one segment asks again. */
void coop_chan_knock(struct coop_chan *c, u32 msg);
/* The receiver accepted a segment of the message: sends the rest. */
void coop_chan_resume(struct coop_chan *c, u32 msg);

/* ---- send.c ---- */
/* Moves a segment to another state, and between the lists of the two states. */
void coop_chan_seg_to(struct coop_chan *c, struct coop_chan_peer *p, u32 seg, u8 state);
/* Queues an empty segment ahead of all resends but the next in order. Returns its number, or 0 if
 * there is no room. */
u64 coop_chan_ask(struct coop_chan *c, struct coop_chan_peer *p);
/* The peer may have work again: puts it into the queues that next_tx serves. */
void coop_chan_wake(struct coop_chan *c, struct coop_chan_peer *p);

/* ---- ack.c ---- */
void coop_chan_acked(struct coop_chan *c, struct coop_chan_peer *p,
		     const struct coop_chan_packet *m, u64 now);
void coop_chan_rnr(struct coop_chan *c, struct coop_chan_peer *p, const struct coop_chan_packet *m,
		   u64 now);
u32 coop_chan_rto(const struct coop_chan *c, const struct coop_chan_peer *p);
/* Sets the peer's timer, unless it already expires early enough. */
void coop_chan_arm(struct coop_chan *c, struct coop_chan_peer *p, u64 now);
/* The peer's timer expired. */
void coop_chan_timeout(struct coop_chan *c, struct coop_chan_peer *p, u64 now);
/* Resends everything in flight: it was sent to a session that does not exist. */
void coop_chan_all_lost(struct coop_chan *c, struct coop_chan_peer *p, u64 now);

/* ---- recv.c ---- */
void coop_chan_recv_init(struct coop_chan *c);
void coop_chan_recv_abort(struct coop_chan *c, u32 recv, int err);
void coop_chan_recv_told(struct coop_chan *c, u32 recv);
/* Nothing carried the ACK in time. */
void coop_chan_ack_late(struct coop_chan *c, struct coop_chan_peer *p, u64 now);
/* A segment of ours leaves: the reply to theirs, if it comes in time to carry the ACK. */
void coop_chan_replied(struct coop_chan *c, struct coop_chan_peer *p, u64 now);
/* An ACK leaves at once. */
void coop_chan_owe_ack(struct coop_chan *c, struct coop_chan_peer *p);

#endif /* COOP_CHAN_CORE_H */
