/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * chan.h - reliable messages over unreliable datagrams: what a host calls.
 *
 * One engine is one node with two UD queue pairs: the command channel (ACKs and
 * tiny messages) and the data channel (everything else, and every
 * retransmission). It cuts messages to any number of peers into segments of one
 * datagram, keeps them in a window until they are acknowledged, and delivers
 * messages whole, once and in no particular order, into memory that the
 * receiving host names. It performs no I/O and never touches a payload. A host
 *
 *   - feeds it: open, close, send, cancel, rx, place, refuse, tx_done, expire;
 *   - pulls from it, after every feed and until each is empty:
 *     next_event (results) and next_tx (datagrams to send).
 *
 * Nothing re-enters: no function calls the host, results appear only in
 * next_event. One owner calls at a time. Times are microseconds of a monotonic
 * clock that the host passes in as 'now' and that is never 0.
 *
 * A send, as the host sees it:
 *
 *   send              -> TX (channel, header, payload range) ... tx_done for each
 *   rx (ACKs)         -> EV_SENT          err 0: the whole message is in the receiver's memory
 *
 * The network owns the memory of a message from send until EV_SENT, which waits
 * for the tx_done of every datagram of the message. The host may reuse the
 * memory only then, whether the send failed or not.
 *
 * A receive:
 *
 *   rx                -> CHAN_PLACE       a message of so many bytes begins: place or refuse it
 *   place             -> CHAN_COPY        copy this part of the datagram to its place
 *   rx ...            -> CHAN_COPY ...
 *                     -> EV_DELIVERED     the message is complete
 *
 * When a peer restarts or closes the session, every send under way to it ends
 * with -ECONNRESET, half-received messages end with EV_ABORTED, and
 * EV_PEER_RESTARTED comes once. When a peer stops answering, sends end with
 * -ETIMEDOUT and EV_PEER_DEAD comes once. After either, the next send starts a
 * new session by itself. A peer that opens one may be at another LID (on soft
 * RoCE: UDP port) than before; coop_chan_peer_get tells. A failed send may have
 * been delivered; no message is delivered twice. CHAN.md has the datagrams, the states and every
 * loss.
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
#define COOP_CHAN_WINDOW      4096 /* most unacknowledged segments to one peer */
#define COOP_CHAN_MSG_SEGS    2048 /* segments of one message: half a window */
#define COOP_CHAN_HEADER_MOST 120  /* header bytes of a datagram that carries payload */

enum coop_chan_flag {
	COOP_CHAN_F_SEAL = 1,      /* the MAC covers payloads too, sent and received; see seal */
	COOP_CHAN_F_FIRST_SEQ = 2, /* sequence numbers start at first_seq, not at random */
	COOP_CHAN_F_NO_ACCEPT = 4, /* refuse sessions from peers that the host did not open */
	COOP_CHAN_F_TEST_NO_DEDUP = 256,   /* tests only: take every segment as new */
	COOP_CHAN_F_TEST_NO_SESSION = 512, /* tests only: believe any session id */
	COOP_CHAN_F_TEST_NO_SACK = 1024,   /* tests only: ignore selective ACKs */
	COOP_CHAN_F_TEST_NO_MAC = 2048,    /* tests only: believe damaged datagrams */
	COOP_CHAN_F_TEST_NO_CWND = 4096,   /* tests only: no congestion window */
	COOP_CHAN_F_TEST_NO_RTO = 8192,    /* tests only: never retransmit by time */
};

struct coop_chan_cfg {
	u64 seed;                        /* entropy; never the same twice, except in tests */
	u8 key[16];                      /* fabric key of the MAC; all zero: a checksum only */
	struct coop_addr self;           /* command QP, as peers reach it */
	u32 data_qpn, data_qkey;         /* data QP, same GID or LID */
	u32 mtu[COOP_CHAN_CHANNELS];     /* payload bytes a datagram, 256..4096, multiple of 8;
					    command: at most COOP_CHAN_COMMAND_MTU */
	u32 credits[COOP_CHAN_CHANNELS]; /* datagrams that fit a channel's send queue: at least 4 */
	u32 max_peers;                   /* 1 .. 1 << 18; a few hundred bytes each */
	u32 max_active;  /* peers with unacknowledged segments at a time, 1 .. max_peers */
	u32 max_reorder; /* peers with segments received out of order at a time, 0: none */
	u32 max_sends;   /* messages sent or queued, all peers: 1 .. 1 << 19 */
	/* Messages half received or not yet pulled by next_event, all peers. One peer may hold at
	 * most as many half-received messages as it leaves free: half of them when it is alone. */
	u32 max_receives;
	/* Unacknowledged segments, all peers; at least one message and 128. One peer gets more only
	 * while it holds fewer than are free. */
	u32 max_segments;
	u32 max_length; /* bytes of a message; at most COOP_CHAN_MSG_SEGS segments */
	u32 window;     /* segments a peer, 64 .. COOP_CHAN_WINDOW, power of two; a message takes
			   at most half. 0: COOP_CHAN_WINDOW */
	u32 first_seq;  /* with F_FIRST_SEQ */
	/* Times in microseconds; 0: the default in brackets. */
	u32 ack_us;       /* longest delay of an ACK that is not due at once [50] */
	u32 rto_first_us; /* retransmission timeout before an RTT is known [100000] */
	u32 rto_min_us;   /* [4000] */
	u32 rto_max_us;   /* [1000000] */
	u32 rnr_us;    /* first pause after a receiver was not ready; doubles to 64 times [1000] */
	u32 quiet_us;  /* longest life of a datagram in the fabric. For so long after creation, and
			  after a session ended, unknown senders must answer a CHALLENGE, which
			  costs them a round trip; ~0: always [1000000] */
	u32 max_tries; /* a peer is dead after so many timeouts in a row without any datagram from
			  it, 2..250 [16] */
	u32 rnr_tries; /* a message fails after so many refusals for lack of a buffer [16] */
	u32 flags;     /* enum coop_chan_flag */
};

struct coop_chan;

/* Bytes of memory for an engine of this shape; 0 if cfg is out of range. */
size_t coop_chan_size(const struct coop_chan_cfg *cfg);
/* Builds an engine in mem (8-aligned). NULL if cfg is out of range or size too small. */
struct coop_chan *coop_chan_create(void *mem, size_t size, const struct coop_chan_cfg *cfg,
				   u64 now);
/* The own addresses changed; peers with a session learn them with the next session. */
void coop_chan_set_self(struct coop_chan *c, const struct coop_addr *self, u32 data_qpn,
			u32 data_qkey);
/* Longest message for the command channel; longest message of one segment. */
u32 coop_chan_tiny(const struct coop_chan *c);
u32 coop_chan_unit(const struct coop_chan *c);
/* Bytes of coop_chan_size() for one idle peer. */
u32 coop_chan_peer_bytes(void);

/* ---- peers ------------------------------------------------------------------ */

struct coop_chan_peer_addr {
	struct coop_addr command;
	u32 data_qpn, data_qkey; /* qpn 0: unknown until the first answer; messages that are not
				    tiny wait for that */
};

/*
 * Opens a peer; sends nothing. Returns its id (> 0), the same id if its command
 * address is known (cookie and data QP are then replaced); -ENOSPC; -EINVAL:
 * not a valid destination, or our own address.
 */
s64 coop_chan_open(struct coop_chan *c, const struct coop_chan_peer_addr *addr, u64 cookie,
		   u64 now);
/*
 * Closes a peer; its id is stale at once. Sends under way end with -ECANCELED,
 * half-received messages with EV_ABORTED. The peer gets one RESET, which may be
 * lost. -ENOENT: stale id.
 */
int coop_chan_close(struct coop_chan *c, u32 peer, u64 now);
/* Sets the host's cookie for a peer, which events return. -ENOENT: stale id. */
int coop_chan_set_cookie(struct coop_chan *c, u32 peer, u64 cookie);
/* Id of the peer with this command address, or COOP_NONE. */
u32 coop_chan_find(const struct coop_chan *c, const struct coop_addr *command);

enum coop_chan_state {
	COOP_CHAN_IDLE,    /* no session; the next send starts one */
	COOP_CHAN_OPENING, /* we sent an OPEN; no answer yet */
	COOP_CHAN_OPEN,    /* both sides know each other's session */
};

struct coop_chan_peer_info {
	u32 id;
	u32 state; /* enum coop_chan_state */
	u64 cookie;
	struct coop_chan_peer_addr addr;
	u32 srtt_us, rttvar_us, rto_us; /* srtt 0: never measured */
	u32 cwnd;                       /* congestion window, segments */
	u32 in_flight;                  /* segments in flight */
	u32 window;                     /* sequence numbers in use */
	u32 queued;                     /* messages that wait for the window */
	u32 tries;                      /* timeouts in a row */
	u32 carried;                    /* payload of the longest segment known to have arrived */
	u32 sessions;                   /* sessions established so far */
	u32 tx_messages, rx_messages, tx_segments, retransmits; /* wrap */
	u64 tx_bytes, rx_bytes;                                 /* of complete messages */
};
/* Iterates: *cursor starts at 0; false at the end. */
bool coop_chan_peer_next(const struct coop_chan *c, u32 *cursor, struct coop_chan_peer_info *out);
/* The same for one peer. -ENOENT: stale id. */
int coop_chan_peer_get(const struct coop_chan *c, u32 peer, struct coop_chan_peer_info *out);

/* ---- sending ----------------------------------------------------------------- */

enum coop_chan_send_flag {
	/* Connectivity check: the receiving engine acknowledges it and drops it. One segment at
	 * most; with length coop_chan_unit() it proves that the path carries full datagrams. */
	COOP_CHAN_PROBE = 1,
	COOP_CHAN_BY_DATA = 2, /* use the data channel, even if the message is tiny */
	/* Overtakes messages to the same peer that wait for their first segment on this channel,
	 * except other urgent ones; after COOP_CHAN_URGENT_RUN of them one of the others is next.
	 */
	COOP_CHAN_URGENT = 4,
};

struct coop_chan_msg {
	u32 peer;
	u32 flags;  /* enum coop_chan_send_flag */
	u64 cookie; /* names the payload's memory in TX; EV_SENT returns it */
	u64 tag;    /* travels with every segment; the receiver sees it before it places */
	u32 length; /* 0 .. max_length */
};

/*
 * Queues a message. Returns 0 and *id, or -EAGAIN (max_sends are under way: try
 * again after an EV_SENT), -EMSGSIZE, -EINVAL (flags), -ENOENT (stale peer).
 */
int coop_chan_send(struct coop_chan *c, const struct coop_chan_msg *s, u64 now, u32 *id);
/* Ends a send early: EV_SENT with -ECANCELED follows. -ENOENT: stale id, or the send is over. */
int coop_chan_cancel(struct coop_chan *c, u32 id, u64 now);

/* One datagram: the header, then bytes [off, off + len) of the message's memory. */
struct coop_chan_tx {
	u32 channel;           /* its QP sends the datagram */
	u32 id;                /* pass to tx_done; 0: belongs to no message */
	u64 cookie;            /* of the send (id not 0) */
	struct coop_addr addr; /* destination: command or data QP of the peer */
	u8 *hdr;               /* valid until the next call into the engine: the host copies it */
	u32 hdr_len;
	u32 off, len;
	bool seal; /* F_SEAL and len > 0: call coop_chan_seal before the datagram leaves */
};

/*
 * Next datagram; false: none, or no credits for the channels that have work.
 * Order: retransmissions, then sends (ACKs ride on them), then notes and ACKs
 * that are due.
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
 * The network no longer reads a datagram that next_tx returned: it was sent, or
 * failed (err < 0; it then counts as lost). Call this exactly once for each
 * datagram, also with id 0: it returns the channel's credit.
 */
void coop_chan_tx_done(struct coop_chan *c, u32 channel, u32 id, int err, u64 now);

/* ---- receiving ---------------------------------------------------------------- */

struct coop_chan_dgram {
	u32 channel;          /* its QP received the datagram */
	u32 len;              /* bytes without the GRH */
	const void *buf;      /* read during the call only */
	struct coop_addr src; /* as the completion reports it (qkey unknown: 0) */
};

enum coop_chan_verdict {
	COOP_CHAN_DONE,  /* nothing left to do with the datagram */
	COOP_CHAN_PLACE, /* first segment of a message: call place or refuse before anything else */
	COOP_CHAN_COPY,  /* copy bytes [from, from + len) of the datagram to cookie's offset */
};

struct coop_chan_in {
	u32 peer;
	u64 peer_cookie;
	u64 tag;
	u32 length;  /* of the whole message */
	u64 cookie;  /* COPY: of place */
	u32 offset;  /* COPY: within the message */
	u32 from;    /* PLACE, COPY: first payload byte within the datagram */
	u32 len;     /* PLACE, COPY: payload bytes; may be 0 */
	bool last;   /* COPY: this copy completes the message; EV_DELIVERED follows */
	u32 receive; /* set by place: for give_up, until EV_DELIVERED or EV_ABORTED */
};

enum coop_chan_refusal {
	COOP_CHAN_NO_BUFFER = 1,   /* the sender asks again up to rnr_tries times, then -ENOBUFS */
	COOP_CHAN_NO_LISTENER = 2, /* no receiver for this tag: the send ends with -ECONNREFUSED */
	COOP_CHAN_TOO_LONG = 3,    /* no buffer here is that large: -EMSGSIZE */
	COOP_CHAN_GIVEN_UP = 4,    /* give_up took its place back: -ENOBUFS */
};

/* A datagram arrived. */
enum coop_chan_verdict coop_chan_rx(struct coop_chan *c, const struct coop_chan_dgram *rx, u64 now,
				    struct coop_chan_in *in);
/*
 * Answers to COOP_CHAN_PLACE, due before the next call. place: the message goes to the memory
 * that cookie names, in->length bytes of it; *in becomes the COPY to do. The engine owns the
 * memory until EV_DELIVERED or EV_ABORTED. A PLACE without an answer counts as refused for lack
 * of a buffer.
 */
void coop_chan_place(struct coop_chan *c, u64 cookie, u64 now, struct coop_chan_in *in);
void coop_chan_refuse(struct coop_chan *c, enum coop_chan_refusal why, u64 now);
/* Or: the datagram counts as lost. The sender repeats it later, and its tries count no refusal. */
void coop_chan_ignore(struct coop_chan *c);
/*
 * Takes back the place of a half-received message: no further COPY names it, EV_ABORTED follows,
 * and the sender's EV_SENT has -ENOBUFS. -ENOENT: the message is complete or over.
 */
int coop_chan_give_up(struct coop_chan *c, u32 receive, u64 now);

/* ---- results ------------------------------------------------------------------ */

enum coop_chan_ev_kind {
	COOP_CHAN_EV_DELIVERED,      /* a message is complete; the host owns its memory */
	COOP_CHAN_EV_ABORTED,        /* a placed message failed; the host owns its memory */
	COOP_CHAN_EV_SENT,           /* a send is over: err; the host owns its memory */
	COOP_CHAN_EV_PEER_NEW,       /* an unknown node opened a session: it is a peer now */
	COOP_CHAN_EV_PEER_DEAD,      /* the peer does not answer any more: why, err */
	COOP_CHAN_EV_PEER_RESTARTED, /* the peer began a new session, the old one is over */
};

enum coop_chan_why {
	COOP_CHAN_WHY_NONE,
	COOP_CHAN_WHY_NO_ANSWER,   /* never answered: address, Q_Key or fabric key are wrong, or it
				      is not running */
	COOP_CHAN_WHY_SILENT,      /* it used to answer */
	COOP_CHAN_WHY_DATA_PATH,   /* it answers, but datagrams of the data channel do not arrive:
				      MTU of the path, or data QP */
	COOP_CHAN_WHY_VERSION,     /* it speaks another version of this protocol */
	COOP_CHAN_WHY_RESET,       /* its RESET says that the session does not exist */
	COOP_CHAN_WHY_NEW_SESSION, /* it opened another session */
};
/* The reason as text, for logs. */
const char *coop_chan_why_text(u32 why);

struct coop_chan_ev {
	enum coop_chan_ev_kind kind;
	u32 peer;        /* may be stale, if the host has closed the peer since */
	u64 peer_cookie; /* while the peer is open, else 0 */
	u64 cookie;      /* of the send, or of place */
	u64 tag;
	u32 id; /* SENT */
	u32 length;
	int err;        /* SENT, ABORTED, PEER_DEAD: 0, -ETIMEDOUT, -ECONNRESET, -ECANCELED,
			   -ENOBUFS, -ECONNREFUSED, -EMSGSIZE, -EHOSTUNREACH (never answered) */
	u32 why;        /* PEER_DEAD, PEER_RESTARTED: enum coop_chan_why */
	u32 elapsed_us; /* SENT: since send */
};
/* Events of peers come first: PEER_NEW precedes the first message of the peer. */
bool coop_chan_next_event(struct coop_chan *c, u64 now, struct coop_chan_ev *ev);

/* ---- time and statistics ------------------------------------------------------ */

/*
 * Earliest time at which expire() has work; ~0: none. Feed all received datagrams before you call
 * expire(): an ACK that waits in a completion queue looks like a loss.
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
	u64 rx_short, rx_too_long, rx_mac, rx_version, rx_malformed, rx_address, rx_unsealed;
	u64 rx_stale_sender, rx_stale_receiver; /* wrong session id: the peer's, ours */
	u64 rx_bad_ack, rx_bad_chunk, rx_not_accepted;
	u64 placed, rnr_tx, rnr_rx, refused_tx, refused_rx, unanswered;
	u64 challenges_tx, challenges_rx, resets_tx, resets_rx, notes_dropped;
	u64 peers_new, peers_dead, peers_restarted;
	u64 cwnd_cuts, timeouts, timeouts_undone;
	u64 no_segments, no_active; /* how often a peer had to wait for that pool */
	u64 peers, segments_used, active_used, reorder_used, receives_used, sends_used; /* gauges */
};
void coop_chan_stats(const struct coop_chan *c, struct coop_chan_stats *out);
void coop_chan_stats_reset(struct coop_chan *c);

#ifdef __cplusplus
}
#endif

#endif /* COOP_CHAN_H */
