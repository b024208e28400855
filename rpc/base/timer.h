/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * timer.h - deadlines, one for each of n numbered objects.
 *
 * A binary heap that records each object's position: setting, moving and
 * clearing a deadline costs O(log n), and the earliest is at the top. A fetch
 * or a peer has one deadline at a time, so nothing is allocated.
 */
#ifndef COOP_TIMER_H
#define COOP_TIMER_H

#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

struct coop_timer {
	u64 when; /* deadline of object i (indexed by object) */
	u32 pos;  /* heap position of object i, COOP_NONE: not set */
	u32 heap; /* object at heap position i (indexed by position) */
};

struct coop_timers {
	struct coop_timer *v; /* n of them, the caller's memory */
	u32 n, count;
};

void coop_timers_init(struct coop_timers *t, struct coop_timer *mem, u32 n);
/* Sets or moves the deadline of object i. */
void coop_timer_set(struct coop_timers *t, u32 i, u64 when);
void coop_timer_clear(struct coop_timers *t, u32 i);
/* Earliest deadline, ~0 when none is set. */
u64 coop_timers_first(const struct coop_timers *t);
/* Removes and returns an object whose deadline has come; COOP_NONE: there is none. */
u32 coop_timers_due(struct coop_timers *t, u64 now);

#ifdef __cplusplus
}
#endif

#endif /* COOP_TIMER_H */
