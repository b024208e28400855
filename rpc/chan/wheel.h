/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * wheel.h - deadlines of many objects, set and cleared in O(1).
 *
 * A hierarchical timing wheel (Varghese and Lauck): levels of 64 slots, each 64
 * times as coarse as the one below. A deadline stands at the level of the
 * highest group of 6 bits in which it differs from the present, so that every
 * slot of a level lies before every one of the next, and one bitmap a level
 * finds the earliest. Slots of the upper levels are dealt out again when their
 * time begins. A peer's RTO and ACK timers are moved with nearly every
 * datagram, of thousands of peers; the heap of timer.h is for few objects.
 */
#ifndef COOP_CHAN_WHEEL_H
#define COOP_CHAN_WHEEL_H

#include "rpc/base/host.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COOP_WHEEL_TICK   3 /* log2 of the microseconds that are told apart: 8 */
#define COOP_WHEEL_BITS   6
#define COOP_WHEEL_SLOTS  64
#define COOP_WHEEL_LEVELS 6 /* 2^36 ticks: six days; later deadlines are looked at by then */

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
/* Sets or moves the deadline of object i: it is due at the first tick not before when. */
void coop_wheel_set(struct coop_wheel *w, u32 i, u64 when);
void coop_wheel_clear(struct coop_wheel *w, u32 i);
bool coop_wheel_is_set(const struct coop_wheel *w, u32 i);
/* Deadline of an object that is set, rounded up to a tick. */
u64 coop_wheel_when(const struct coop_wheel *w, u32 i);
/* Not later than the earliest deadline, ~0 when none is set. */
u64 coop_wheel_first(const struct coop_wheel *w);
/* Takes out an object that is due at now; COOP_NONE: there is none. */
u32 coop_wheel_due(struct coop_wheel *w, u64 now);

#ifdef __cplusplus
}
#endif

#endif /* COOP_CHAN_WHEEL_H */
