/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * fetch.h - the requester: gets pages from peers that hold them.
 *
 * A fetch makes attempts, one at a time, each at one peer with one generation:
 * post WRs, send the REQUEST, note what arrives, wait for the COMMIT, judge.
 * Good pages stay; the next attempt asks for the missing ones. The fetch ends
 * when no page is missing, no peer is left to ask, or the budget is spent.
 */
#ifndef COOP_FETCH_H
#define COOP_FETCH_H

#include "engine.h"
#include "posting.h"
#include "wire.h"

#define COOP_MAX_TRIED 8 /* distinct peers */
/* QUERYs an attempt, while none of our fetches hears from the peer. With early queries it gets more
 * of them, in the time that these would take. */
#define COOP_MAX_QUERIES 2
#define COOP_BUSY_SHARE  4 /* a fetch waits for busy peers for budget / 4 at most */
/* Of slots and window this share is for prompt fetches, once others may wait at parents. */
#define COOP_RELAY_SHARE 4

enum coop_fetch_state {
	COOP_FETCH_FREE,
	COOP_FETCH_QUEUED, /* waits for a slot or for the window */
	COOP_FETCH_ASK,    /* the REQUEST waits for the network */
	COOP_FETCH_WAIT,   /* REQUEST sent; waits for data and COMMIT */
	COOP_FETCH_PAUSE,  /* every remaining peer is busy: asks again later; WRs stay posted */
	COOP_FETCH_STOP,   /* the QP goes to ERR; its WRs complete with flush */
	COOP_FETCH_VERIFY, /* no WR is posted; the host moves segments and checks sums */
	COOP_FETCH_DONE,   /* EV_FETCH_DONE is queued or delivered; until fetch_release */
};

enum coop_outcome {
	COOP_OUT_NONE,
	COOP_OUT_CLEAN,  /* all listed pages arrived */
	COOP_OUT_LOST,   /* the COMMIT listed more than arrived: ask this peer again for that */
	COOP_OUT_SILENT, /* no answer: ask this peer again, later */
	COOP_OUT_BUSY,
	COOP_OUT_BARRED, /* lied or refused: do not ask it again in this fetch */
};

struct coop_tried {
	u32 peer; /* id */
	u8 outcome;
	u8 rounds; /* attempts that it did not answer with BUSY */
	u8 silent; /* how many of them, up to the last one and in a row, ended in silence */
	u8 busy;   /* BUSY answers */
	u64 until; /* BUSY: do not ask before; the time doubles with each BUSY */
};

/* A data queue pair. */
struct coop_slot {
	struct coop_posting posting;
	u32 qpn, qkey;
	u32 fetch;               /* index of its holder, or COOP_NONE */
	u32 next;                /* free list */
	bool owes_reset;         /* the last fetch was released before its TX_RESET_QP was pulled */
	bool resetting;          /* reset_begin() to reset_done(); not in the free list */
	struct coop_move *moves; /* a WR each */
	u32 n_moves;
};

struct coop_fetch {
	u32 id;
	u8 state; /* enum coop_fetch_state */
	u8 due;   /* enum coop_fetch_due: work for the network */
	u8 attempt;
	u8 queries; /* QUERYs of this attempt; unless the peer is a sole source, since its last
		     * AGAIN */
	u8 n_tried;
	u8 outcome; /* of this attempt, once it is over */
	bool cancelled;
	bool old_key;      /* it began before rekey(): its tags prove nothing */
	bool dead_qp;      /* a WR failed: the QP is in ERR */
	bool committed;    /* this attempt's COMMIT has arrived */
	bool queried;      /* a QUERY went out: the next answer may be to it and gives no RTT */
	bool unheard;      /* this attempt's silence was counted */
	bool asks_parent;  /* this attempt may be told to wait for pages on their way */
	bool passed;       /* the first peer of this attempt passed the REQUEST on */
	bool told_to_wait; /* it was: the peer is well, and only the budget bounds the wait */
	u32 slot;          /* or COOP_NONE */
	u32 peer;          /* id of the peer of this attempt, COOP_NONE between attempts */
	u32 asked;         /* id of the peer of the last attempt */
	u32 from;          /* id of the peer that delivered last */
	u32 invited;       /* its share of the window in bytes, from admission to its end */
	int err;           /* why pages are missing */
	u64 request_id;
	u32 budget_us; /* from t_submit to t_end */
	u64 t_submit, t_end, t_sent, t_first, t_last, t_armed;
	u64 t_heard;   /* when data or an AGAIN of this attempt last came, or when it was sent */
	u64 t_busy;    /* when to stop waiting for busy peers; 0: none was busy yet */
	u64 all, good; /* pages */
	u64 ask;       /* pages asked for in this attempt */
	u64 lost;      /* pages that the last COMMIT listed and that did not arrive whole */
	u64 judged;    /* VERIFY: pages to check */
	u64 want[COOP_SEG_WORDS]; /* segments of this attempt */
	u64 have[COOP_SEG_WORDS]; /* segments in place, of pages not yet whole */
	struct coop_plan plan;
	struct coop_msg_commit commit;
	struct coop_tried tried[COOP_MAX_TRIED];
	struct coop_fetch_req req;
};

struct coop_peer;

/* Waits for no peer, or loads for one that waits: such a fetch must not queue behind those that
 * wait. */
static inline bool coop_fetch_is_prompt(const struct coop_fetch *f)
{
	return f->req.relay || !f->req.level;
}

/* The queue for this fetch: prompt ones have one of their own. */
struct coop_fifo *coop_fetch_line(struct coop_engine *e, const struct coop_fetch *f);
/* Starts queued fetches while a slot is free and the window has room. */
void coop_fetch_admit(struct coop_engine *e, u64 now);
/* A COMMIT, BUSY, AGAIN or REFUSED arrived; false: no attempt waits for it. */
bool coop_fetch_answer(struct coop_engine *e, const struct coop_msg *m, u64 now);
/* The peer that the fetch asks to which the answer belongs; NULL: there is none. */
struct coop_peer *coop_fetch_answerer(struct coop_engine *e, const struct coop_msg *m);
void coop_fetch_timer(struct coop_engine *e, u32 index, u64 now);
/* The peer's circuit opened: fetches that wait for its first answer ask elsewhere. */
void coop_fetch_peer_down(struct coop_engine *e, u32 peer_id, u64 now);
/* Has it work for the network, but only for when its queue pair was reset? */
bool coop_fetch_waits_for_reset(const struct coop_engine *e, u32 index);
bool coop_fetch_tx(struct coop_engine *e, u32 index, u64 now, struct coop_tx *tx);
bool coop_fetch_event(struct coop_engine *e, u32 index, struct coop_ev *ev, u64 now);
const char *coop_fetch_state_name(u8 state);

/* ---- between the files of the requester (fetch.c, fetch_choose.c, fetch_input.c, fetch_host.c)
 * ---- */

enum coop_fetch_due { /* in the order in which the host pulls them */
		      COOP_DUE_STOP = 1,
		      COOP_DUE_RESET = 2,
		      COOP_DUE_POST = 4,
		      COOP_DUE_REQUEST = 8,
		      COOP_DUE_QUERY = 16,
};

/* This fetch's record of a peer; NULL: the fetch has not asked it. */
struct coop_tried *coop_fetch_tried(struct coop_fetch *f, u32 peer);
/* Counts an attempt at this peer. NULL: it may not be asked, or the fetch has asked too many. */
struct coop_tried *coop_fetch_try(struct coop_fetch *f, u32 peer);
/* Is the peer one of those that the fetch may wait at? */
bool coop_fetch_is_parent(const struct coop_fetch *f, u32 peer);
/* The plan for a REQUEST to this peer. Segments in place fix the plan. False: do not ask it. */
bool coop_fetch_plan_for(const struct coop_engine *e, const struct coop_fetch *f,
			 const struct coop_peer *p, struct coop_plan *plan);
struct coop_peer *coop_fetch_best_untried(struct coop_engine *e, struct coop_fetch *f, u64 now);
/* Could a peer other than the current one be asked at once? */
bool coop_fetch_elsewhere(struct coop_engine *e, struct coop_fetch *f, u64 now);
/* The next peer and the pages to ask it for. NULL: none; *pause is then when one may be ready. */
struct coop_peer *coop_fetch_choose(struct coop_engine *e, struct coop_fetch *f, u64 now,
				    u64 *pages, u64 *pause);

/* The last attempt was judged or received nothing: starts the next attempt, or finishes. */
void coop_fetch_go_on(struct coop_engine *e, struct coop_fetch *f, u64 now);
/* These pages are good. */
void coop_fetch_accept(struct coop_engine *e, struct coop_fetch *f, u64 pages);
/* Ends the attempt; blame: weight of the peer's failure. */
void coop_fetch_conclude(struct coop_engine *e, struct coop_fetch *f, u8 outcome, u32 blame,
			 u64 now);
void coop_fetch_stop(struct coop_engine *e, struct coop_fetch *f);
/* The queue pair was stopped, or its last WR completed before that. */
void coop_fetch_stopped(struct coop_engine *e, struct coop_fetch *f, u64 now);
void coop_fetch_finish(struct coop_engine *e, struct coop_fetch *f);

/* Gives a slot back, or makes it known. */
void coop_fetch_put_slot(struct coop_engine *e, u32 slot);
/* How long to wait for the peer's answer before the next attempt. */
u32 coop_fetch_patience(const struct coop_engine *e, const struct coop_fetch *f);
/* How long to wait before the next step; shorter than patience if that step is a QUERY. */
u32 coop_fetch_wait(const struct coop_engine *e, struct coop_fetch *f, u64 now);
/* Doublings of both: one for each attempt in a row at this peer that met silence, at most three. */
u32 coop_fetch_backoff(struct coop_fetch *f);
u32 coop_fetch_asked_bytes(const struct coop_engine *e, const struct coop_fetch *f);
struct coop_posting *coop_fetch_posting(const struct coop_engine *e, const struct coop_fetch *f);
void coop_fetch_owe(struct coop_engine *e, struct coop_fetch *f, u8 what);
void coop_fetch_arm(struct coop_engine *e, struct coop_fetch *f, u64 when);

#endif /* COOP_FETCH_H */
