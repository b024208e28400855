// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Ids of slot | generation; see idtab.h. Free slots form a FIFO, so that a slot's generations
 * repeat as late as possible. */
#include "idtab.h"

#include "bits.h"
#include "types.h"

void coop_idtab_init(struct coop_idtab *t, struct coop_id *mem, u32 n)
{
	u32 i;

	t->v = mem;
	t->n = n;
	t->shift = n > 1 ? coop_ilog2(n - 1) + 1 : 1;
	t->gen_max = (1u << (32 - t->shift)) - 2; /* all ones would make COOP_NONE */
	t->head = 0;
	t->tail = n - 1;
	t->used = 0;
	for (i = 0; i < n; i++) {
		mem[i].gen = 1;
		mem[i].next = i + 1 < n ? i + 1 : COOP_NONE;
	}
}

u32 coop_idtab_get(struct coop_idtab *t)
{
	u32 slot = t->head;

	if (slot == COOP_NONE)
		return COOP_NONE;
	t->head = t->v[slot].next;
	if (t->head == COOP_NONE)
		t->tail = COOP_NONE;
	t->v[slot].next = COOP_ID_USED;
	t->used++;
	return t->v[slot].gen << t->shift | slot;
}

u32 coop_idtab_slot(const struct coop_idtab *t, u32 id)
{
	u32 slot = id & ((1u << t->shift) - 1);

	if (slot >= t->n || t->v[slot].next != COOP_ID_USED || t->v[slot].gen != id >> t->shift)
		return COOP_NONE;
	return slot;
}

u32 coop_idtab_id(const struct coop_idtab *t, u32 slot)
{
	if (slot >= t->n || t->v[slot].next != COOP_ID_USED)
		return COOP_NONE;
	return t->v[slot].gen << t->shift | slot;
}

int coop_idtab_put(struct coop_idtab *t, u32 id)
{
	u32 slot = coop_idtab_slot(t, id);

	if (slot == COOP_NONE)
		return -ENOENT;
	t->v[slot].gen = t->v[slot].gen < t->gen_max ? t->v[slot].gen + 1 : 1;
	t->v[slot].next = COOP_NONE;
	if (t->tail == COOP_NONE)
		t->head = slot;
	else
		t->v[t->tail].next = slot;
	t->tail = slot;
	t->used--;
	return 0;
}
