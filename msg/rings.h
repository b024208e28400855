/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * rings.h - the two rings of a machine, in memory that the process maps; see abi.h.
 *
 * The process writes to all of this memory at any time. So the module keeps its
 * own indices, copies an operation before it looks at it, and believes an index
 * of the process only within the bounds that its own indices set.
 *
 * Every event has its room reserved before what it tells about is begun: one for
 * each operation in use, one for each message that is being received. An event
 * that only tells a state takes room as it comes, or waits where the state is.
 */
#ifndef COOP_MSG_RINGS_H
#define COOP_MSG_RINGS_H

#include <linux/mm_types.h>

#include "msg/abi.h"

struct coop_rings {
	struct page **page;
	u32 n_pages;
	struct coop_net_rings *shared; /* the pages, as the kernel maps them */
	struct coop_net_op *op;
	struct coop_net_event *event;
	u32 ops, events; /* entries, powers of two */
	u32 op_head, event_tail;
	u32 event_head; /* as we believed it last */
	u32 reserved;   /* events to come, whose room nobody else gets */
};

/* 0 or -ENOMEM. Context: may sleep. */
int coop_rings_create(struct coop_rings *r, u32 ops, u32 events);
/* Also of a zeroed struct. Pages that are still mapped live on. */
void coop_rings_destroy(struct coop_rings *r);
int coop_rings_map(const struct coop_rings *r, struct vm_area_struct *vma);

static inline u64 coop_rings_bytes(const struct coop_rings *r)
{
	return (u64)r->n_pages << PAGE_SHIFT;
}

/* Events that fit beside those in the ring and those reserved; -EPROTO: the index is impossible. */
s64 coop_rings_room(struct coop_rings *r);
/* There is room: reserves one. */
static inline void coop_rings_reserve(struct coop_rings *r)
{
	r->reserved++;
}

/* Gives a reservation back unused. */
static inline void coop_rings_unreserve(struct coop_rings *r)
{
	r->reserved--;
}

/* Appends an event, for which there is room. */
void coop_rings_put(struct coop_rings *r, const struct coop_net_event *ev);

/* Copies the next operation. 1: there is one; 0: none; -EPROTO: the index is impossible. */
int coop_rings_peek(const struct coop_rings *r, struct coop_net_op *op);
/* The operation was taken. */
void coop_rings_take(struct coop_rings *r);

/* Are there operations to take? Any context. */
static inline bool coop_rings_pending(const struct coop_rings *r)
{
	return READ_ONCE(r->shared->op_tail) != r->op_head;
}

/* Events that the process has not taken, if it tells the truth. Any context. */
static inline u32 coop_rings_ready(const struct coop_rings *r)
{
	return READ_ONCE(r->event_tail) - READ_ONCE(r->shared->event_head);
}

#endif /* COOP_MSG_RINGS_H */
