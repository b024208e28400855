/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * plan.h - which bytes of which page travel in which datagram.
 *
 * Both sides compute the plan from the same few numbers of the REQUEST, so
 * datagrams need no header: the immediate data names the segment, and the plan
 * has its place.
 *
 *   split   each page is cut on its own: the last datagram of a page may be
 *           short. One fragment a datagram.
 *   packed  the pages are one run of bytes, cut into full datagrams: one may
 *           hold the end of a page and the start of the next. Only the last is
 *           short, and it never holds two fragments.
 *
 * Where a page is a whole number of datagrams the two plans are the same.
 *
 * A receive work request has at most three entries: the GRH area, then two
 * fragments, or one fragment and spill. Spill is scrap memory that makes the
 * WR as long as the port's MTU, because a datagram longer than its WR kills the
 * queue pair.
 */
#ifndef COOP_PLAN_H
#define COOP_PLAN_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_SEG_WORDS (COOP_MAX_SEGS / 64)

struct coop_plan {
	u32 page_shift;
	u32 mtu;      /* payload of a full datagram */
	u32 wr_bytes; /* payload that every receive WR must have room for */
	u32 n_pages;
	u32 n_segs;
	u32 per_page; /* split: datagrams a page */
	u32 seg_bits; /* low bits of the immediate data that hold the segment */
	bool packed;
};

/*
 * -EINVAL if a number is out of range or the plan has more than COOP_MAX_SEGS segments.
 * wr_bytes >= mtu; packed with wr_bytes > mtu is -EINVAL (it would take a fourth entry).
 */
int coop_plan_init(struct coop_plan *p, u32 page_shift, u32 mtu, u32 wr_bytes, u32 n_pages,
		   bool packed);
/* Payload bytes of a segment, seg < n_segs. */
u32 coop_plan_len(const struct coop_plan *p, u32 seg);
/* Fills out for TX_POST_RECV: fragments and spill; imm is 0. */
void coop_plan_seg(const struct coop_plan *p, u32 seg, struct coop_seg *out);
/* A bit per page that the segment holds bytes of. */
u64 coop_plan_pages(const struct coop_plan *p, u32 seg);
/* First and last segment that hold bytes of a page. */
void coop_plan_range(const struct coop_plan *p, u32 page, u32 *first, u32 *last);

#ifdef __cplusplus
}
#endif

#endif /* COOP_PLAN_H */
