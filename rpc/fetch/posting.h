/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * posting.h - the receive work requests of one attempt, and what fell into them.
 *
 * A data queue pair is a line of WRs that datagrams fill in the order in which
 * they happen to arrive: lost, doubled, late or forged ones included. This file
 * only takes notes while they do. The judgement comes when the WRs are quiet:
 * WR i holding segment j of this generation from the source that the COMMIT
 * names is segment j, wherever it lies; all else is missing.
 *
 * Generations: each attempt takes the next aligned run of a 32-bit counter that
 * belongs to the queue pair and starts at random, as long as its segments need.
 * So no two attempts on a queue pair share immediate data, whatever their
 * numbers of segments, until the counter has gone round.
 */
#ifndef COOP_POSTING_H
#define COOP_POSTING_H

#include "engine.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_SOURCES  4 /* distinct senders noted for one attempt; further ones are dropped */
#define COOP_SEG_NONE 0xffffu

struct coop_wr {
	u16 seg;     /* posted for */
	u16 got;     /* segment that lies in it, or COOP_SEG_NONE */
	u8 source;   /* of what lies in it */
	bool posted; /* not completed yet */
	bool pad;    /* what lies in it is a pad */
};

struct coop_source {
	u32 qpn;
	bool has_gid;
	u8 gid[16];
};

struct coop_posting {
	u32 imm;      /* immediate data of segment 0 */
	u32 imm_next; /* the queue pair's counter */
	u32 n_wr;
	u32 n_done;  /* completed, with success or flushed */
	u32 n_rx;    /* of those, with success */
	u32 n_stale; /* of those, taken by datagrams of earlier attempts: not this peer's fault */
	struct coop_plan plan;
	u64 want[COOP_SEG_WORDS];
	u32 n_source;
	struct coop_source source[COOP_SOURCES];
	struct coop_wr *wr; /* COOP_MAX_SEGS, the caller's memory */
	u16 *at;            /* COOP_MAX_SEGS: WR that holds the segment */
};

enum coop_rx_verdict {
	COOP_RX_KEPT,    /* data, noted */
	COOP_RX_PAD,     /* a pad, noted */
	COOP_RX_STALE,   /* another generation */
	COOP_RX_BAD,     /* no such segment, or a length that is not its */
	COOP_RX_DUP,     /* noted before */
	COOP_RX_FOREIGN, /* one sender too many */
	COOP_RX_IGNORED, /* no WR of this posting */
};

void coop_posting_init(struct coop_posting *p, struct coop_wr *wr, u16 *at, u32 random);
/* New WRs for the wanted segments, in ascending order. The old ones must be quiet. */
void coop_posting_start(struct coop_posting *p, const struct coop_plan *plan, const u64 *want);
/* New generation for WRs that are posted and untouched. */
void coop_posting_renew(struct coop_posting *p);
static inline bool coop_posting_quiet(const struct coop_posting *p)
{
	return p->n_done == p->n_wr;
}
/* Posted WRs into which nothing fell, and which would do for this plan and these segments. */
bool coop_posting_reusable(const struct coop_posting *p, const struct coop_plan *plan,
			   const u64 *want);
/* Notes a completion. O(1). flags: enum coop_engine_flag. */
enum coop_rx_verdict coop_posting_rx(struct coop_posting *p, const struct coop_rx *rx, u32 flags);
/* n WRs were flushed. */
void coop_posting_flush(struct coop_posting *p, u32 n);
/*
 * What is there, by the source that a COMMIT names: sets got bits, fills moves
 * (room for COOP_MAX_SEGS) and returns their number. foreign, displaced: counters to add to.
 */
u32 coop_posting_judge(const struct coop_posting *p, const struct coop_addr *source, u64 *got,
		       struct coop_move *moves, u64 *foreign, u64 *displaced);

#ifdef __cplusplus
}
#endif

#endif /* COOP_POSTING_H */
