/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * fifo.h - queues of numbered objects.
 *
 * Each of the objects 0..n-1 is in a queue at most once. A push of a queued
 * object has no effect, so a caller that makes work pushes without a check.
 */
#ifndef COOP_FIFO_H
#define COOP_FIFO_H

#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

struct coop_fifo {
	u32 *next; /* n of them, the caller's memory */
	u32 head, tail;
};

#define COOP_FIFO_OUT 0xfffffffeu /* next[i]: i is in no queue */

static inline bool coop_fifo_has(const struct coop_fifo *f, u32 i)
{
	return f->next[i] != COOP_FIFO_OUT;
}

void coop_fifo_init(struct coop_fifo *f, u32 *next, u32 n);
void coop_fifo_push(struct coop_fifo *f, u32 i);
void coop_fifo_push_front(struct coop_fifo *f, u32 i);
/* The first, or COOP_NONE. */
u32 coop_fifo_pop(struct coop_fifo *f);
/* O(position in the queue): for rare removals from the middle. */
void coop_fifo_remove(struct coop_fifo *f, u32 i);

#ifdef __cplusplus
}
#endif

#endif /* COOP_FIFO_H */
