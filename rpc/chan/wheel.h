/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * wheel.h - deadlines of many objects, set and cleared in O(1).
 *
 * A hierarchical timing wheel (Varghese and Lauck): levels of 64 slots, each 64
 * times as coarse as the one below. The level of a deadline is that of the
 * highest group of 6 bits in which it differs from the present. So all slots of
 * a level come before all slots of the next, and one bitmap a level finds the
 * earliest. When the time of an upper slot begins, its deadlines move to lower
 * levels. Nearly every datagram moves a peer's RTO and ACK timers, for thousands
 * of peers; the heap of timer.h is for few objects.
 */
#ifndef COOP_CHAN_WHEEL_H
#define COOP_CHAN_WHEEL_H

#include "rpc/base/host.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_WHEEL_TICK   3 /* log2 of a tick in microseconds: 8 */
#define COOP_WHEEL_BITS   6
#define COOP_WHEEL_SLOTS  64
#define COOP_WHEEL_LEVELS 6 /* 2^36 ticks: six days; later deadlines are put in again by then */

struct coop_wheel_node {
	u64 when;       /* tick */
	u32 prev, next; /* in the slot's list */
	u32 slot;       /* level * 64 + slot; COOP_WHEEL_DUE; COOP_NONE: not set */
};

#define COOP_WHEEL_DUE (COOP_WHEEL_LEVELS * COOP_WHEEL_SLOTS)

struct coop_wheel {
	struct coop_wheel_node *v; /* n of them, the caller's memory */
	u32 n;
	u64 tick; /* the present */
	u64 occupied[COOP_WHEEL_LEVELS];
	u32 head[COOP_WHEEL_DUE + 1];
};

void coop_wheel_init(struct coop_wheel *w, struct coop_wheel_node *mem, u32 n, u64 now);
/* Sets or moves the deadline of object i: due at the first tick that is not before 'when'. */
void coop_wheel_set(struct coop_wheel *w, u32 i, u64 when);
void coop_wheel_clear(struct coop_wheel *w, u32 i);
bool coop_wheel_is_set(const struct coop_wheel *w, u32 i);
/* Deadline of an object that is set, rounded up to a tick. */
u64 coop_wheel_when(const struct coop_wheel *w, u32 i);
/* Not later than the earliest deadline, ~0 when none is set. */
u64 coop_wheel_first(const struct coop_wheel *w);
/* Removes and returns an object that is due; COOP_NONE: there is none. */
u32 coop_wheel_due(struct coop_wheel *w, u64 now);

#ifdef __cplusplus
}
#endif

#endif /* COOP_CHAN_WHEEL_H */
