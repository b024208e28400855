// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Queues of numbered objects; see fifo.h. */
#include "fifo.h"

#include "types.h"

void coop_fifo_init(struct coop_fifo *f, u32 *next, u32 n)
{
	u32 i;

	f->next = next;
	f->head = COOP_NONE;
	f->tail = COOP_NONE;
	for (i = 0; i < n; i++)
		next[i] = COOP_FIFO_OUT;
}

void coop_fifo_push(struct coop_fifo *f, u32 i)
{
	if (coop_fifo_has(f, i))
		return;
	f->next[i] = COOP_NONE;
	if (f->tail == COOP_NONE)
		f->head = i;
	else
		f->next[f->tail] = i;
	f->tail = i;
}

void coop_fifo_push_front(struct coop_fifo *f, u32 i)
{
	if (coop_fifo_has(f, i))
		return;
	f->next[i] = f->head;
	f->head = i;
	if (f->tail == COOP_NONE)
		f->tail = i;
}

u32 coop_fifo_pop(struct coop_fifo *f)
{
	u32 i = f->head;

	if (i == COOP_NONE)
		return COOP_NONE;
	f->head = f->next[i];
	if (f->head == COOP_NONE)
		f->tail = COOP_NONE;
	f->next[i] = COOP_FIFO_OUT;
	return i;
}

void coop_fifo_remove(struct coop_fifo *f, u32 i)
{
	u32 at = f->head, before = COOP_NONE;

	if (!coop_fifo_has(f, i))
		return;
	for (; at != i; at = f->next[at])
		before = at;
	if (before == COOP_NONE)
		f->head = f->next[i];
	else
		f->next[before] = f->next[i];
	if (f->tail == i)
		f->tail = before;
	f->next[i] = COOP_FIFO_OUT;
}
