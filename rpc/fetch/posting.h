/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * posting.h - the receive work requests of one attempt, and what they hold.
 *
 * A data queue pair is a queue of WRs that datagrams fill in the order of their
 * arrival, duplicate, late and forged ones included. While they arrive this
 * file only records them. It judges when the WRs are quiet: WR i is segment j
 * if it holds segment j of this generation from the source that the COMMIT
 * names, wherever j belongs; all other segments are missing.
 *
 * Generations: each queue pair has a 32-bit counter with a random start. An
 * attempt takes its next aligned run that is long enough for the segments. So
 * two attempts on a queue pair never share immediate data, whatever their
 * numbers of segments, until the counter wraps.
 */
#ifndef COOP_POSTING_H
#define COOP_POSTING_H

#include "engine.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most senders recorded for one attempt; datagrams of others are dropped. */
#define COOP_SOURCES  4
#define COOP_SEG_NONE 0xffffu

struct coop_wr {
	u16 seg;     /* the segment that it was posted for */
	u16 got;     /* the segment that it holds, or COOP_SEG_NONE */
	u8 source;   /* index of the sender of 'got' */
	bool posted; /* not completed yet */
	bool pad;    /* it holds a pad */
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
	u32 n_rx;    /* completed with success */
	u32 n_stale; /* taken by datagrams of earlier attempts: not this peer's fault */
	struct coop_plan plan;
	u64 want[COOP_SEG_WORDS];
	u32 n_source;
	struct coop_source source[COOP_SOURCES];
	struct coop_wr *wr; /* the caller's memory; room for the segments of every plan */
	u16 *at;            /* as long: WR that holds the segment */
};

enum coop_rx_verdict {
	COOP_RX_KEPT,    /* data, recorded */
	COOP_RX_PAD,     /* a pad, recorded */
	COOP_RX_STALE,   /* another generation */
	COOP_RX_BAD,     /* no such segment, or the wrong length for it */
	COOP_RX_DUP,     /* recorded before */
	COOP_RX_FOREIGN, /* more than COOP_SOURCES senders */
	COOP_RX_IGNORED, /* not a WR of this posting */
};

void coop_posting_init(struct coop_posting *p, struct coop_wr *wr, u16 *at, u32 random);
/* New WRs for the wanted segments, in ascending order. The old ones must be quiet. */
void coop_posting_start(struct coop_posting *p, const struct coop_plan *plan, const u64 *want);
/* A new generation for WRs that are posted and have received nothing. */
void coop_posting_renew(struct coop_posting *p);
static inline bool coop_posting_quiet(const struct coop_posting *p)
{
	return p->n_done == p->n_wr;
}
/* Has no WR completed, and do the posted WRs fit this plan and these segments? */
bool coop_posting_reusable(const struct coop_posting *p, const struct coop_plan *plan,
			   const u64 *want);
/* Records a completion. O(1). flags: enum coop_engine_flag. */
enum coop_rx_verdict coop_posting_rx(struct coop_posting *p, const struct coop_rx *rx, u32 flags);
/* n WRs were flushed. */
void coop_posting_flush(struct coop_posting *p, u32 n);
/*
 * Judges with the source that a COMMIT names: sets the bits of 'got', fills moves (room for
 * n_wr) and returns their number. foreign, displaced: counters to add to.
 */
u32 coop_posting_judge(const struct coop_posting *p, const struct coop_addr *source, u64 *got,
		       struct coop_move *moves, u64 *foreign, u64 *displaced);

#ifdef __cplusplus
}
#endif

#endif /* COOP_POSTING_H */
