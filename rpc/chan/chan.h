/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * chan.h - reliable messages over unreliable datagrams: what a host calls.
 *
 * One engine is one node with two UD queue pairs: the command channel (ACKs and
 * tiny messages) and the data channel (everything else, and every
 * retransmission). Messages to any number of peers are cut into segments of one
 * datagram, kept in a window until they are acknowledged, and delivered whole,
 * once, in no particular order, into memory that the receiving host names. It
 * performs no I/O and never touches a payload. A host
 *
 *   - feeds it: open, close, send, cancel, rx, place, refuse, tx_done, expire;
 *   - pulls from it, after every feed and until each is empty:
 *     next_event (results) and next_tx (datagrams to send).
 *
 * Nothing re-enters: no function calls the host, results appear only in
 * next_event. One owner calls at a time. Times are microseconds of a monotonic
 * clock that the host passes in as 'now' and that never is 0.
 *
 * A send, as its host sees it:
 *
 *   send              -> TX (channel, header, payload range) ... tx_done for each
 *   rx (ACKs)         -> EV_SENT          err 0: the whole message lies in its receiver's memory
 *
 * The memory of a message is the network's from send until EV_SENT, which waits
 * for the tx_done of every datagram of it; the host may reuse it then, whatever
 * err says, and not before.
 *
 * A receive:
 *
 *   rx                -> CHAN_PLACE       a message of so many bytes begins: place or refuse it
 *   place             -> CHAN_COPY        copy this part of the datagram to its place
 *   rx ...            -> CHAN_COPY ...
 *                     -> EV_DELIVERED     every byte is there
 *
 * A peer that restarts, or forgets us, has a new session: everything under way
 * to it ends with -ECONNRESET, half-received messages with EV_ABORTED, and
 * EV_PEER_RESTARTED comes once. A peer that stops answering: -ETIMEDOUT and
 * EV_PEER_DEAD once. After either, the next send starts a new session by
 * itself. A failed send may nevertheless have been delivered; a delivered one is never
 * delivered twice. CHAN.md has the datagrams, the states and every loss.
 */
#ifndef COOP_CHAN_H
#define COOP_CHAN_H

#include "rpc/base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_CHAN_COMMAND     0
#define COOP_CHAN_DATA        1
#define COOP_CHAN_CHANNELS    2
#define COOP_CHAN_COMMAND_MTU 768  /* most bytes of a datagram on the command channel */
#define COOP_CHAN_WINDOW      4096 /* segments that may be unacknowledged towards one peer */
#define COOP_CHAN_MSG_SEGS    2048 /* segments of one message: half a window */
#define COOP_CHAN_HEADER_MOST 120  /* header bytes of a datagram that carries payload */

enum coop_chan_flag {
	COOP_CHAN_F_SEAL = 1,      /* the MAC covers payloads too, and must on arrival; see seal */
	COOP_CHAN_F_FIRST_SEQ = 2, /* sequence numbers start at first_seq, not at random */
	COOP_CHAN_F_NO_ACCEPT = 4, /* peers that were not opened here are not let in */
	COOP_CHAN_F_TEST_NO_DEDUP = 256,   /* tests only: take every segment as new */
	COOP_CHAN_F_TEST_NO_SESSION = 512, /* tests only: believe any session id */
	COOP_CHAN_F_TEST_NO_SACK = 1024,   /* tests only: ignore selective ACKs */
	COOP_CHAN_F_TEST_NO_MAC = 2048,    /* tests only: believe damaged datagrams */
	COOP_CHAN_F_TEST_NO_CWND = 4096,   /* tests only: no congestion window */
	COOP_CHAN_F_TEST_NO_RTO = 8192,    /* tests only: never retransmit by time */
};

struct coop_chan_cfg {
	u64 seed;                        /* entropy, never the same twice but in tests */
	u8 key[16];                      /* fabric key of the MAC; all zero: a checksum only */
	struct coop_addr self;           /* command QP, as peers reach it */
	u32 data_qpn, data_qkey;         /* data QP, same GID or LID */
	u32 mtu[COOP_CHAN_CHANNELS];     /* payload bytes a datagram, 256..4096, multiple of 8;
					    command: at most COOP_CHAN_COMMAND_MTU */
	u32 credits[COOP_CHAN_CHANNELS]; /* datagrams a channel's send queue takes: at least 4 */
	u32 max_peers;                   /* 1 .. 1 << 18; a few hundred bytes each */
	u32 max_active;  /* peers with unacknowledged segments at a time, 1 .. max_peers */
	u32 max_reorder; /* peers that we keep segments of out of order from at a time, 0: none */
	u32 max_sends;   /* messages sent or queued, all peers: 1 .. 1 << 19 */
	/* Messages half received or not yet pulled by next_event, all peers. One peer may have half
	 * received at most as many as are free: half of them when it is alone. */
	u32 max_receives;
	u32 max_segments; /* unacknowledged segments, all peers; at least one message and 64 */
	u32 max_length;   /* bytes of a message; at most COOP_CHAN_MSG_SEGS segments */
	u32 window;       /* segments a peer, 64 .. COOP_CHAN_WINDOW, power of two; a message takes
			     at most half. 0: COOP_CHAN_WINDOW */
	u32 first_seq;    /* with F_FIRST_SEQ */
	/* Times in microseconds; 0: the default in brackets. */
	u32 ack_us;       /* an ACK in order is held back so long at most [50] */
	u32 rto_first_us; /* retransmission timeout before an RTT is known [100000] */
	u32 rto_min_us;   /* [4000] */
	u32 rto_max_us;   /* [1000000] */
	u32 rnr_us;    /* first pause after a receiver was not ready; doubles to 64 times [1000] */
	u32 quiet_us;  /* no datagram lives longer in the fabric: for so long after creation, and
			  after a session ended, strangers prove first that they are alive, which
			  costs them a round trip; ~0: always [1000000] */
	u32 max_tries; /* timeouts in a row with nothing heard, then the peer is dead, 2..250 [16]
			*/
	u32 rnr_tries; /* refusals of one message for want of a buffer, then it fails [16] */
	u32 flags;     /* enum coop_chan_flag */
};

struct coop_chan;

/* Bytes of memory for an engine of this shape; 0 if cfg is out of range. */
size_t coop_chan_size(const struct coop_chan_cfg *cfg);
/* Builds one in mem (8-aligned). NULL if cfg is out of range or size too small. */
struct coop_chan *coop_chan_create(void *mem, size_t size, const struct coop_chan_cfg *cfg,
				   u64 now);
/* Own addresses changed; peers with a session learn it when they open the next one. */
void coop_chan_set_self(struct coop_chan *c, const struct coop_addr *self, u32 data_qpn,
			u32 data_qkey);
/* Longest message that goes by the command channel; longest that is one segment. */
u32 coop_chan_tiny(const struct coop_chan *c);
u32 coop_chan_unit(const struct coop_chan *c);
/* Bytes that one idle peer takes of coop_chan_size(). */
u32 coop_chan_peer_bytes(void);

/* ---- peers ------------------------------------------------------------------ */

struct coop_chan_peer_addr {
	struct coop_addr command;
	u32 data_qpn, data_qkey; /* qpn 0: unknown; learned from the first answer, and messages
				    that are not tiny wait for it */
};

/*
 * Opens a peer; nothing is sent. Its id (> 0), the same one again if its
 * command address is known (cookie and data QP are then replaced); -ENOSPC;
 * -EINVAL: an address that nothing can be sent to, or our own.
 */
s64 coop_chan_open(struct coop_chan *c, const struct coop_chan_peer_addr *addr, u64 cookie,
		   u64 now);
/*
 * Forgets a peer; its id is dead at once. Sends under way end with -ECANCELED,
 * half-received messages with EV_ABORTED; the peer is told (once, by an
 * unreliable datagram). -ENOENT: stale id.
 */
int coop_chan_close(struct coop_chan *c, u32 peer, u64 now);
/* The host's own word for a peer, given back in events. -ENOENT. */
int coop_chan_set_cookie(struct coop_chan *c, u32 peer, u64 cookie);
/* Id of the peer with this command address, or COOP_NONE. */
u32 coop_chan_find(const struct coop_chan *c, const struct coop_addr *command);

enum coop_chan_state {
	COOP_CHAN_IDLE,    /* no session; the next send starts one */
	COOP_CHAN_OPENING, /* we spoke; no answer yet */
	COOP_CHAN_OPEN,    /* both sides know each other's session */
};

struct coop_chan_peer_info {
	u32 id;
	u32 state; /* enum coop_chan_state */
	u64 cookie;
	struct coop_chan_peer_addr addr;
	u32 srtt_us, rttvar_us, rto_us; /* srtt 0: never measured */
	u32 cwnd;                       /* segments that may be in flight */
	u32 in_flight;                  /* that are */
	u32 window;                     /* sequence numbers in use */
	u32 queued;                     /* messages that wait for the window */
	u32 tries;                      /* timeouts in a row */
	u32 carried;                    /* payload of the longest segment known to have arrived */
	u32 sessions;                   /* that came to be */
	u32 tx_messages, rx_messages, tx_segments, retransmits; /* wrap */
	u64 tx_bytes, rx_bytes;                                 /* of messages that arrived whole */
};
/* Iterates: *cursor starts at 0; false at the end. */
bool coop_chan_peer_next(const struct coop_chan *c, u32 *cursor, struct coop_chan_peer_info *out);
/* One of them. -ENOENT. */
int coop_chan_peer_get(const struct coop_chan *c, u32 peer, struct coop_chan_peer_info *out);

/* ---- sending ----------------------------------------------------------------- */

enum coop_chan_send_flag {
	/* Connectivity check: acknowledged, but dropped by the receiving engine. One segment at
	 * most; with length coop_chan_unit() it proves that the path takes full datagrams. */
	COOP_CHAN_PROBE = 1,
	COOP_CHAN_BY_DATA = 2, /* by the data channel, even if it is tiny */
};

struct coop_chan_msg {
	u32 peer;
	u32 flags;  /* enum coop_chan_send_flag */
	u64 cookie; /* names the payload's memory in TX; given back in EV_SENT */
	u64 tag;    /* travels with every segment; shown to the receiver before it places */
	u32 length; /* 0 .. max_length */
};

/*
 * Queues a message. 0 and *id, or -EAGAIN (max_sends are under way: again after
 * an EV_SENT), -EMSGSIZE, -EINVAL (flags), -ENOENT (stale peer).
 */
int coop_chan_send(struct coop_chan *c, const struct coop_chan_msg *s, u64 now, u32 *id);
/* Ends it early: EV_SENT with -ECANCELED still comes, unless it was finished. -ENOENT: stale. */
int coop_chan_cancel(struct coop_chan *c, u32 id, u64 now);

/* One datagram: the header, then bytes [off, off + len) of the message's memory. */
struct coop_chan_tx {
	u32 channel;           /* whose QP sends it */
	u32 id;                /* pass to tx_done; 0: belongs to no message */
	u64 cookie;            /* of the send (id not 0) */
	struct coop_addr addr; /* destination: command or data QP of the peer */
	u8 *hdr;               /* valid until the next call into the engine: the host copies it */
	u32 hdr_len;
	u32 off, len;
	bool seal; /* F_SEAL and len > 0: coop_chan_seal must see the payload before it leaves */
};

/*
 * Next datagram; false: none, or the channels that have work have no credits
 * left. Order: retransmissions, then sends (ACKs ride on them), then ACKs that
 * are due.
 */
bool coop_chan_next_tx(struct coop_chan *c, u64 now, struct coop_chan_tx *tx);
/* Completes tx->hdr's MAC over the payload: n pieces that make tx->len bytes. */
struct coop_chan_piece {
	const void *at;
	u32 len;
};
void coop_chan_seal(const struct coop_chan *c, struct coop_chan_tx *tx,
		    const struct coop_chan_piece *piece, u32 n);
/*
 * A datagram that next_tx gave is no longer read by the network: sent, or
 * failed (err < 0; then it counts as lost). Exactly once for each, id 0 too: it
 * returns the channel's credit.
 */
void coop_chan_tx_done(struct coop_chan *c, u32 channel, u32 id, int err, u64 now);

/* ---- receiving ---------------------------------------------------------------- */

struct coop_chan_dgram {
	u32 channel;          /* whose QP received it */
	u32 len;              /* of the datagram, GRH taken off */
	const void *buf;      /* read during the call only */
	struct coop_addr src; /* as the completion tells it (qkey unknown: 0) */
};

enum coop_chan_verdict {
	COOP_CHAN_DONE,  /* the datagram is used up */
	COOP_CHAN_PLACE, /* first of a message: call place or refuse before anything else */
	COOP_CHAN_COPY,  /* copy bytes [from, from + len) of the datagram to cookie's offset */
};

struct coop_chan_in {
	u32 peer;
	u64 peer_cookie;
	u64 tag;
	u32 length;  /* of the whole message */
	u64 cookie;  /* COPY: as place gave it */
	u32 offset;  /* COPY: within the message */
	u32 from;    /* COPY: first payload byte within the datagram */
	u32 len;     /* COPY: bytes of it; may be 0 */
	bool last;   /* COPY: the message is whole when they are copied; EV_DELIVERED follows */
	u32 receive; /* set by place: for give_up, until EV_DELIVERED or EV_ABORTED */
};

enum coop_chan_refusal {
	COOP_CHAN_NO_BUFFER = 1,   /* its sender asks again up to rnr_tries times, then: -ENOBUFS */
	COOP_CHAN_NO_LISTENER = 2, /* nobody has this tag: its send ends with -ECONNREFUSED */
	COOP_CHAN_TOO_LONG = 3,    /* no buffer here is ever so large: -EMSGSIZE */
	COOP_CHAN_GIVEN_UP = 4,    /* of give_up: it had a place, and has none any more: -ENOBUFS */
};

/* A datagram arrived. */
enum coop_chan_verdict coop_chan_rx(struct coop_chan *c, const struct coop_chan_dgram *rx, u64 now,
				    struct coop_chan_in *in);
/*
 * Answers to COOP_CHAN_PLACE, at once. place: the message goes to the memory
 * that cookie names, in->length bytes of it; *in becomes the COPY to do. The memory is the
 * engine's until EV_DELIVERED or EV_ABORTED. A verdict that was not answered counts as
 * refused for want of a buffer.
 */
void coop_chan_place(struct coop_chan *c, u64 cookie, u64 now, struct coop_chan_in *in);
void coop_chan_refuse(struct coop_chan *c, enum coop_chan_refusal why, u64 now);
/*
 * Takes the place of a half-received message back: no COPY names it any more, EV_ABORTED
 * follows, and its sender's EV_SENT has -ENOBUFS. -ENOENT: it is whole, or over.
 */
int coop_chan_give_up(struct coop_chan *c, u32 receive, u64 now);

/* ---- results ------------------------------------------------------------------ */

enum coop_chan_ev_kind {
	COOP_CHAN_EV_DELIVERED,      /* a message is whole; its memory is the host's */
	COOP_CHAN_EV_ABORTED,        /* a placed message will never be; its memory is the host's */
	COOP_CHAN_EV_SENT,           /* a send is over: err; its memory is the host's */
	COOP_CHAN_EV_PEER_NEW,       /* a stranger opened a session: it is a peer now */
	COOP_CHAN_EV_PEER_DEAD,      /* it does not answer any more: why, err */
	COOP_CHAN_EV_PEER_RESTARTED, /* it began a new session, the old one is over */
};

enum coop_chan_why {
	COOP_CHAN_WHY_NONE,
	COOP_CHAN_WHY_NO_ANSWER,   /* never heard: address, Q_Key or fabric key are wrong, or it is
				      not running */
	COOP_CHAN_WHY_SILENT,      /* it used to answer */
	COOP_CHAN_WHY_DATA_PATH,   /* it answers, but datagrams of the data channel do not arrive:
				      MTU of the path, or data QP */
	COOP_CHAN_WHY_VERSION,     /* it speaks another version of this protocol */
	COOP_CHAN_WHY_RESET,       /* it said that it has no such session */
	COOP_CHAN_WHY_NEW_SESSION, /* it opened another session */
};
/* A sentence of them, for logs. */
const char *coop_chan_why_text(u32 why);

struct coop_chan_ev {
	enum coop_chan_ev_kind kind;
	u32 peer;        /* may be stale: it was closed meanwhile */
	u64 peer_cookie; /* while the peer is open, else 0 */
	u64 cookie;      /* of the send, or of place */
	u64 tag;
	u32 id; /* SENT */
	u32 length;
	int err;        /* SENT, ABORTED, PEER_DEAD: 0, -ETIMEDOUT, -ECONNRESET, -ECANCELED,
			   -ENOBUFS, -ECONNREFUSED, -EMSGSIZE, -EHOSTUNREACH (never heard) */
	u32 why;        /* PEER_DEAD, PEER_RESTARTED: enum coop_chan_why */
	u32 elapsed_us; /* SENT: since send */
};
/* Peers' events come first: PEER_NEW is told before what the peer sent. */
bool coop_chan_next_event(struct coop_chan *c, u64 now, struct coop_chan_ev *ev);

/* ---- time and figures --------------------------------------------------------- */

/*
 * Earliest time at which expire() has something to do; ~0: none. Feed what has arrived before
 * you call it: an ACK that waits in a completion queue looks like a loss.
 */
u64 coop_chan_deadline(const struct coop_chan *c);
void coop_chan_expire(struct coop_chan *c, u64 now);

struct coop_chan_stats {
	u64 sends, sent_ok, sent_failed, sent_bytes;
	u64 delivered, delivered_bytes, aborted;
	u64 tx_packets, tx_segments, tx_chunks, tx_voids, tx_acks, tx_piggybacked, tx_errors;
	u64 retransmits, retransmits_timeout, retransmits_fast;
	u64 rx_packets, rx_segments, rx_acks;
	u64 rx_in_order, rx_reordered, rx_duplicate, rx_out_of_window, rx_no_reorder;
	u64 rx_short, rx_mac, rx_version, rx_malformed, rx_address, rx_unsealed;
	u64 rx_stale_sender, rx_stale_receiver; /* of a session that is over: theirs, ours */
	u64 rx_bad_ack, rx_bad_chunk, rx_not_accepted;
	u64 placed, rnr_tx, rnr_rx, refused_tx, refused_rx, unanswered;
	u64 challenges_tx, challenges_rx, resets_tx, resets_rx, notes_dropped;
	u64 peers_new, peers_dead, peers_restarted;
	u64 cwnd_cuts, timeouts, timeouts_undone;
	u64 no_segments, no_active; /* times that a peer had to wait for that pool */
	u64 peers, segments_used, active_used, reorder_used, receives_used, sends_used; /* gauges */
};
void coop_chan_stats(const struct coop_chan *c, struct coop_chan_stats *out);
void coop_chan_stats_reset(struct coop_chan *c);

#ifdef __cplusplus
}
#endif

#endif /* COOP_CHAN_H */
