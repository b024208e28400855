/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * serve.h - the responder: sends the pages that a peer asked for, once, and commits them.
 *
 * A serve looks pages up, sends segments and pads, has the host recheck that
 * nothing changed, and only then lists the pages in a COMMIT. Few segments of
 * bytes that cannot change are committed at once, without the recheck. The
 * responder records the COMMIT, because it may be lost: a QUERY or a duplicate
 * REQUEST is answered from the record and never served again.
 */
#ifndef COOP_SERVE_H
#define COOP_SERVE_H

#include "engine.h"
#include "plan.h"
#include "wire.h"

#define COOP_RECORD_WAYS   4        /* records a set; the request id chooses the set */
#define COOP_BUSY_RETRY_US 2000     /* time in BUSY */
#define COOP_AGAIN_US      2000     /* time in AGAIN */
#define COOP_SERVE_MOST_US 10000000 /* most budget that we grant a requester */
#define COOP_COMING_US     5000     /* time in the AGAIN of a serve that waits for pages */
/* A serve waits for pages until an eighth of its requester's budget is left. */
#define COOP_WAIT_KEEP 8

enum coop_serve_state {
	COOP_SERVE_FREE,
	COOP_SERVE_LOOKUP,  /* the host finds and pins pages */
	COOP_SERVE_SEND,    /* segments wait for the network */
	COOP_SERVE_DRAIN,   /* all segments posted; sends complete */
	COOP_SERVE_RECHECK, /* the host compares */
	COOP_SERVE_COMMIT,  /* the COMMIT waits for the network */
	COOP_SERVE_PASS,    /* the FORWARD waits for the network */
	COOP_SERVE_END,     /* the host unpins */
};

enum coop_record_state {
	COOP_RECORD_NONE,
	COOP_RECORD_SERVING,   /* not committed yet */
	COOP_RECORD_COMMITTED, /* the COMMIT can be sent again */
	COOP_RECORD_DROPPED,   /* abandoned; never served again */
	COOP_RECORD_PASSED,    /* passed on to the node in commit.source */
};

struct coop_record {
	u64 id;
	u64 when;
	u32 imm;
	u32 serve; /* SERVING: index */
	u8 state;
	u8 attempt;
	struct coop_addr reply;
	struct coop_msg_commit commit;
};

struct coop_serve {
	u32 id;
	u8 state;
	u8 event;       /* for the host: 0 none, else 1 + enum coop_ev_kind */
	bool abandoned; /* superseded, or its budget is over: ends without a COMMIT */
	u8 sum;         /* enum coop_sum: the sums that the requester wants */
	bool vouched;   /* the COMMIT does not wait for the sends */
	bool known;     /* peer is valid */
	bool may_pass;  /* it came from its requester, which lets us pass it on */
	bool parked;    /* SEND, but its next segment waits for a page; in no queue */
	u32 qpn;        /* of this slot's data QP */
	u32 peer;       /* id */
	u32 onward;     /* PASS: id of the peer that gets it */
	u32 record;
	u32 imm;
	u32 cursor;    /* next segment to send */
	u32 in_flight; /* sends posted and not done */
	u64 t_start, t_end;
	u64 cookie;
	u64 pages; /* asked for */
	u64 have;
	u64 coming; /* pages that it waits for */
	struct coop_plan plan;
	struct coop_msg_request req;
};

/* Sets the rate of the token bucket and fills it; 0: no limit. */
void coop_serve_set_rate(struct coop_engine *e, u32 bytes_s, u64 now);
void coop_serve_request(struct coop_engine *e, const struct coop_msg *m,
			const struct coop_addr *src, u64 now);
void coop_serve_query(struct coop_engine *e, const struct coop_msg *m, const struct coop_addr *to,
		      u64 now);
/* The wait of the serve with this index has ended: it does without the pages that did not come. */
void coop_serve_wait_over(struct coop_engine *e, u32 index);
bool coop_serve_tx(struct coop_engine *e, u32 index, u64 now, struct coop_tx *tx);
bool coop_serve_event(struct coop_engine *e, u32 index, struct coop_ev *ev, u64 now);
const char *coop_serve_state_name(u8 state);

/* ---- between the files of the responder (serve.c, serve_wait.c, serve_pass.c) ---- */

/* May this node answer a FORWARD? It must not be a reflector. */
bool coop_serve_forward_acceptable(struct coop_engine *e, const struct coop_msg *m,
				   const struct coop_addr *src);
/* The FORWARD of a serve in state PASS. */
bool coop_serve_pass_tx(struct coop_engine *e, struct coop_serve *s, u64 now, struct coop_tx *tx);
/* Tells the requester where its REQUEST went. */
void coop_serve_passed(struct coop_engine *e, const struct coop_record *r);

/* The serve of an id; NULL: it has ended. */
struct coop_serve *coop_serve_get(struct coop_engine *e, u32 id);
/* Sends BUSY in answer to the REQUEST with this id and imm. */
void coop_serve_busy(struct coop_engine *e, const struct coop_addr *reply, u64 id, u32 imm,
		     u32 retry_us);
/* The answer of the host's lookup, in state LOOKUP. False: the serve has ended. */
bool coop_serve_looked_up(struct coop_engine *e, struct coop_serve *s, u64 have, u64 size,
			  u64 cookie, u64 now);
/* Takes the pages from the budget of serve_bytes_s. */
void coop_serve_charge(struct coop_engine *e, u64 pages);
/* The host unpins; the serve's id is then dead. */
void coop_serve_end(struct coop_engine *e, struct coop_serve *s);
/* It will send and commit nothing more. */
void coop_serve_abandon(struct coop_engine *e, struct coop_serve *s);
/* SEND: the serve sends on, in its turn. */
void coop_serve_unpark(struct coop_engine *e, struct coop_serve *s);
/* Does its next segment hold bytes of a page that is still coming? */
bool coop_serve_stalled(const struct coop_serve *s);
/* Waiting serves leave some for requests that can be served at once. */
bool coop_serve_may_wait(const struct coop_engine *e);
/* It waits for no page any more. */
void coop_serve_wait_end(struct coop_engine *e, struct coop_serve *s);

#endif /* COOP_SERVE_H */
