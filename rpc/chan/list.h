/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * list.h - doubly linked lists of numbered objects.
 *
 * The links of objects 0..n-1 lie in an array beside them. An object can be in
 * several lists, with an array of links each, and leaves the middle in O(1).
 */
#ifndef COOP_CHAN_LIST_H
#define COOP_CHAN_LIST_H

#include "rpc/base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct coop_link {
	u32 prev, next;
};

struct coop_list {
	u32 head, tail;
};

static inline void coop_list_init(struct coop_list *l)
{
	l->head = COOP_NONE;
	l->tail = COOP_NONE;
}

static inline void coop_list_push(struct coop_list *l, struct coop_link *links, u32 i)
{
	links[i].prev = l->tail;
	links[i].next = COOP_NONE;
	if (l->tail == COOP_NONE)
		l->head = i;
	else
		links[l->tail].next = i;
	l->tail = i;
}

static inline void coop_list_push_front(struct coop_list *l, struct coop_link *links, u32 i)
{
	links[i].prev = COOP_NONE;
	links[i].next = l->head;
	if (l->head == COOP_NONE)
		l->tail = i;
	else
		links[l->head].prev = i;
	l->head = i;
}

/* i must be in this list. */
static inline void coop_list_remove(struct coop_list *l, struct coop_link *links, u32 i)
{
	if (links[i].prev == COOP_NONE)
		l->head = links[i].next;
	else
		links[links[i].prev].next = links[i].next;
	if (links[i].next == COOP_NONE)
		l->tail = links[i].prev;
	else
		links[links[i].next].prev = links[i].prev;
}

/* The first, or COOP_NONE. */
static inline u32 coop_list_pop(struct coop_list *l, struct coop_link *links)
{
	u32 i = l->head;

	if (i != COOP_NONE)
		coop_list_remove(l, links, i);
	return i;
}

#ifdef __cplusplus
}
#endif

#endif /* COOP_CHAN_LIST_H */
