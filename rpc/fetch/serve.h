/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * serve.h - the responder: pages that a peer asked for, sent once and vouched for.
 *
 * A serve looks pages up, sends segments and pads, has the host re-check that
 * nothing changed, and only then lists the pages in a COMMIT; a few segments of
 * bytes that cannot change are vouched for at once instead. The COMMIT is
 * recorded, because it may be lost: a QUERY or a doubled REQUEST is answered
 * from the record and never served again.
 */
#ifndef COOP_SERVE_H
#define COOP_SERVE_H

#include "engine.h"
#include "plan.h"
#include "wire.h"

#define COOP_RECORD_WAYS   4        /* records a set; a set is chosen by request id */
#define COOP_BUSY_RETRY_US 2000     /* hint when all serves are taken */
#define COOP_AGAIN_US      2000     /* hint to a QUERY that comes too early */
#define COOP_SERVE_MOST_US 10000000 /* budget that we believe a requester */

enum coop_serve_state {
	COOP_SERVE_FREE,
	COOP_SERVE_LOOKUP,  /* the host finds and pins pages */
	COOP_SERVE_SEND,    /* segments wait for the network */
	COOP_SERVE_DRAIN,   /* all handed over; sends complete */
	COOP_SERVE_RECHECK, /* the host compares */
	COOP_SERVE_COMMIT,  /* the COMMIT waits for the network */
	COOP_SERVE_END,     /* the host unpins */
};

enum coop_record_state {
	COOP_RECORD_NONE,
	COOP_RECORD_SERVING,   /* not committed yet */
	COOP_RECORD_COMMITTED, /* the commit can be sent again */
	COOP_RECORD_DROPPED,   /* given up; never served again */
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
	bool abandoned; /* superseded, or too late: end without a COMMIT */
	u8 sum;         /* enum coop_sum: what the requester wants of each page */
	bool vouched;   /* the COMMIT waits for no send */
	bool known;     /* peer is valid */
	u32 qpn;        /* of this slot's data QP */
	u32 peer;       /* id */
	u32 record;
	u32 imm;
	u32 cursor;    /* next segment to send */
	u32 in_flight; /* segments handed to the network */
	u64 t_start, t_end;
	u64 cookie;
	u64 pages; /* asked for */
	u64 have;
	struct coop_plan plan;
	struct coop_msg_request req;
};

/* Starts the token bucket of what may be served; 0: no limit. */
void coop_serve_set_rate(struct coop_engine *e, u32 bytes_s, u64 now);
void coop_serve_request(struct coop_engine *e, const struct coop_msg *m,
			const struct coop_addr *src, u64 now);
void coop_serve_query(struct coop_engine *e, const struct coop_msg *m, const struct coop_addr *to,
		      u64 now);
bool coop_serve_tx(struct coop_engine *e, u32 index, u64 now, struct coop_tx *tx);
bool coop_serve_event(struct coop_engine *e, u32 index, struct coop_ev *ev, u64 now);
const char *coop_serve_state_name(u8 state);

#endif /* COOP_SERVE_H */
