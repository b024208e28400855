/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * fetch.h - the requester: pages wanted, from whichever peer has them.
 *
 * A fetch makes attempts, one at a time, each at one peer with one generation:
 * post WRs, send the REQUEST, note what arrives, wait for the COMMIT, judge.
 * Pages that are good stay; the next attempt asks for what is missing. It ends
 * when nothing is missing, nobody is left to ask, or the budget is spent.
 */
#ifndef COOP_FETCH_H
#define COOP_FETCH_H

#include "engine.h"
#include "posting.h"
#include "wire.h"

#define COOP_MAX_ATTEMPTS 12
#define COOP_MAX_TRIED    8 /* distinct peers */
/* An attempt, while the peer answers nobody of ours. The only source is asked oftener, in the time
 * that these would take. */
#define COOP_MAX_QUERIES 2
/* Attempts at one of several sources, but for those that it was busy at. */
#define COOP_MAX_ROUNDS 6
#define COOP_BUSY_SHARE 4 /* of the budget: so much of it is waited for busy peers */

enum coop_fetch_state {
	COOP_FETCH_FREE,
	COOP_FETCH_QUEUED, /* waits for a slot or for the window */
	COOP_FETCH_ASK,    /* the REQUEST waits for the network */
	COOP_FETCH_WAIT,   /* asked; data and COMMIT are awaited */
	COOP_FETCH_PAUSE,  /* every peer left said busy: asks again later; WRs stay posted */
	COOP_FETCH_STOP,   /* the QP goes to ERR; its WRs come back */
	COOP_FETCH_VERIFY, /* quiet; the host moves and checks */
	COOP_FETCH_DONE,   /* the host knows or will; until fetch_release */
};

enum coop_outcome {
	COOP_OUT_NONE,
	COOP_OUT_CLEAN,  /* delivered what it listed */
	COOP_OUT_LOST,   /* listed more than arrived: ask it again for that */
	COOP_OUT_SILENT, /* no answer: ask it again, later */
	COOP_OUT_BUSY,
	COOP_OUT_BARRED, /* lied, refused or has no record: not again in this fetch */
};

struct coop_tried {
	u32 peer; /* id */
	u8 outcome;
	u8 rounds; /* attempts that it did not say busy to */
	u8 silent; /* of those, the last ones, in a row, that ended in silence */
	u8 busy;   /* times it said so */
	u64 until; /* busy: not asked before; twice as long each time */
};

/* A data queue pair. */
struct coop_slot {
	struct coop_posting posting;
	u32 qpn, qkey;
	u32 fetch;               /* index of its holder, or COOP_NONE */
	u32 next;                /* free list */
	bool owes_reset;         /* the last holder left before its TX_RESET_QP was pulled */
	struct coop_move *moves; /* COOP_MAX_SEGS */
	u32 n_moves;
};

struct coop_fetch {
	u32 id;
	u8 state; /* enum coop_fetch_state */
	u8 due;   /* work for the network, see fetch.c */
	u8 attempt;
	u8 queries; /* of this attempt; of others than the only source, since its last AGAIN */
	u8 n_tried;
	u8 outcome; /* of this attempt, once it is over */
	bool cancelled;
	bool dead_qp;   /* a WR failed: the QP is in ERR */
	bool committed; /* this attempt's COMMIT is here */
	bool queried;   /* what answers now need not answer the REQUEST: no RTT is taken */
	bool unheard;   /* this attempt's silence was counted */
	u32 slot;       /* or COOP_NONE */
	u32 peer;       /* id of the one asked, COOP_NONE between attempts */
	u32 asked;      /* id of the one asked last */
	u32 from;       /* id of the one that delivered last */
	u32 invited;    /* bytes of the window that it holds, from admission to its end */
	int err;        /* why pages are missing */
	u64 request_id;
	u32 budget_us; /* from t_submit to t_end */
	u64 t_submit, t_end, t_sent, t_first, t_last, t_armed;
	u64 t_heard;   /* when data or an AGAIN of this attempt came, or it was sent */
	u64 t_busy;    /* until when a busy peer is waited for; 0: none was busy yet */
	u64 all, good; /* pages */
	u64 ask;       /* pages asked for in this attempt */
	u64 lost;      /* pages that the last COMMIT listed but that did not arrive whole */
	u64 judged;    /* VERIFY: pages in question */
	u64 want[COOP_SEG_WORDS]; /* segments of this attempt */
	u64 have[COOP_SEG_WORDS]; /* segments in place, of pages not yet whole */
	struct coop_plan plan;
	struct coop_msg_commit commit;
	struct coop_tried tried[COOP_MAX_TRIED];
	struct coop_fetch_req req;
};

struct coop_peer;

/* Starts what waits and may. */
void coop_fetch_admit(struct coop_engine *e, u64 now);
/* A COMMIT, BUSY, AGAIN or REFUSED that names a fetch; false: none such. */
bool coop_fetch_answer(struct coop_engine *e, const struct coop_msg *m, u64 now);
void coop_fetch_timer(struct coop_engine *e, u32 index, u64 now);
/* The peer's circuit opened: whoever waits for it looks elsewhere. */
void coop_fetch_peer_down(struct coop_engine *e, u32 peer_id, u64 now);
bool coop_fetch_tx(struct coop_engine *e, u32 index, u64 now, struct coop_tx *tx);
bool coop_fetch_event(struct coop_engine *e, u32 index, struct coop_ev *ev, u64 now);
const char *coop_fetch_state_name(u8 state);

/* ---- between the files of the requester (fetch.c, fetch_choose.c, fetch_input.c, fetch_host.c)
 * ---- */

enum coop_fetch_due { /* in the order in which the network gets it */
		      COOP_DUE_STOP = 1,
		      COOP_DUE_RESET = 2,
		      COOP_DUE_POST = 4,
		      COOP_DUE_REQUEST = 8,
		      COOP_DUE_QUERY = 16,
};

/* What this fetch knows of a peer; NULL: it has not asked it. */
struct coop_tried *coop_fetch_tried(struct coop_fetch *f, u32 peer);
/* The plan for asking this peer. Segments in place fix the plan. False: it cannot be asked. */
bool coop_fetch_plan_for(const struct coop_engine *e, const struct coop_fetch *f,
			 const struct coop_peer *p, struct coop_plan *plan);
struct coop_peer *coop_fetch_best_untried(struct coop_engine *e, struct coop_fetch *f, u64 now);
/* Is there another one than the one asked now that could be asked at once? */
bool coop_fetch_elsewhere(struct coop_engine *e, struct coop_fetch *f, u64 now);
/* The next peer and the pages to ask it for. NULL: none; *pause then says when one may be ready. */
struct coop_peer *coop_fetch_choose(struct coop_engine *e, struct coop_fetch *f, u64 now,
				    u64 *pages, u64 *pause);

/* Judged, or untouched: the next attempt, or the end. */
void coop_fetch_go_on(struct coop_engine *e, struct coop_fetch *f, u64 now);
/* These pages are good. */
void coop_fetch_accept(struct coop_engine *e, struct coop_fetch *f, u64 pages);
/* The attempt is over, one way or the other; blame: weight of the peer's failure. */
void coop_fetch_conclude(struct coop_engine *e, struct coop_fetch *f, u8 outcome, u32 blame,
			 u64 now);
void coop_fetch_stop(struct coop_engine *e, struct coop_fetch *f);
/* The queue pair was stopped, or had no WR left before it could be. */
void coop_fetch_stopped(struct coop_engine *e, struct coop_fetch *f, u64 now);
void coop_fetch_finish(struct coop_engine *e, struct coop_fetch *f);

/* How long to wait for the peer's answer before another is asked, or this one anew. */
u32 coop_fetch_patience(const struct coop_engine *e, const struct coop_fetch *f);
/* How long to wait before anything is done; less than patience if this is but to ask what became
 * of the request. */
u32 coop_fetch_wait(const struct coop_engine *e, struct coop_fetch *f, u64 now);
/* Both are doubled for each attempt at this peer that was met by silence, up to eight times. */
u32 coop_fetch_backoff(struct coop_fetch *f);
u32 coop_fetch_asked_bytes(const struct coop_engine *e, const struct coop_fetch *f);
struct coop_posting *coop_fetch_posting(const struct coop_engine *e, const struct coop_fetch *f);
void coop_fetch_owe(struct coop_engine *e, struct coop_fetch *f, u8 what);
void coop_fetch_arm(struct coop_engine *e, struct coop_fetch *f, u64 when);

#endif /* COOP_FETCH_H */
