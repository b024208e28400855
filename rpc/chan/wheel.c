// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The timing wheel; see wheel.h. Invariant: a deadline after the present equals
 * it in all groups of bits above the deadline's level, and is greater in the
 * group of that level. The invariant holds while the present does not move past
 * the earliest slot.
 */
#include "wheel.h"

#include "rpc/base/bits.h"
#include "rpc/base/types.h"

void coop_wheel_init(struct coop_wheel *w, struct coop_wheel_node *mem, u32 n, u64 now)
{
	u32 i;

	memset(w, 0, sizeof(*w));
	w->v = mem;
	w->n = n;
	w->tick = now >> COOP_WHEEL_TICK;
	for (i = 0; i <= COOP_WHEEL_DUE; i++)
		w->head[i] = COOP_NONE;
	for (i = 0; i < n; i++)
		mem[i].slot = COOP_NONE;
}

static void put(struct coop_wheel *w, u32 i)
{
	struct coop_wheel_node *x = &w->v[i];
	u32 level, slot = COOP_WHEEL_DUE;

	if (x->when > w->tick) {
		u64 when = x->when;

		level = coop_ilog2(when ^ w->tick) / COOP_WHEEL_BITS;
		if (level >= COOP_WHEEL_LEVELS) { /* too far: the last slot puts it in again */
			when = w->tick | ((1ull << (COOP_WHEEL_LEVELS * COOP_WHEEL_BITS)) - 1);
			level = COOP_WHEEL_LEVELS - 1;
		}
		slot = (u32)(when >> (level * COOP_WHEEL_BITS)) & (COOP_WHEEL_SLOTS - 1);
		w->occupied[level] |= 1ull << slot;
		slot += level * COOP_WHEEL_SLOTS;
	}
	x->slot = slot;
	x->prev = COOP_NONE;
	x->next = w->head[slot];
	if (x->next != COOP_NONE)
		w->v[x->next].prev = i;
	w->head[slot] = i;
}

void coop_wheel_clear(struct coop_wheel *w, u32 i)
{
	struct coop_wheel_node *x = &w->v[i];

	if (x->slot == COOP_NONE)
		return;
	if (x->next != COOP_NONE)
		w->v[x->next].prev = x->prev;
	if (x->prev != COOP_NONE)
		w->v[x->prev].next = x->next;
	else
		w->head[x->slot] = x->next;
	if (w->head[x->slot] == COOP_NONE && x->slot != COOP_WHEEL_DUE)
		w->occupied[x->slot / COOP_WHEEL_SLOTS] &= ~(1ull << (x->slot % COOP_WHEEL_SLOTS));
	x->slot = COOP_NONE;
}

void coop_wheel_set(struct coop_wheel *w, u32 i, u64 when)
{
	coop_wheel_clear(w, i);
	w->v[i].when = (when >> COOP_WHEEL_TICK) + !!(when & ((1u << COOP_WHEEL_TICK) - 1));
	put(w, i);
}

bool coop_wheel_is_set(const struct coop_wheel *w, u32 i)
{
	return w->v[i].slot != COOP_NONE;
}

u64 coop_wheel_when(const struct coop_wheel *w, u32 i)
{
	return w->v[i].when << COOP_WHEEL_TICK;
}

/* The earliest occupied slot and the tick at which it begins; false: none is occupied. */
static bool earliest(const struct coop_wheel *w, u64 *tick, u32 *slot)
{
	u32 level;

	for (level = 0; level < COOP_WHEEL_LEVELS; level++) {
		u32 shift = level * COOP_WHEEL_BITS, s;

		if (!w->occupied[level])
			continue;
		s = coop_lowest(w->occupied[level]);
		*tick = (w->tick >> (shift + COOP_WHEEL_BITS) << (shift + COOP_WHEEL_BITS)) |
			(u64)s << shift;
		*slot = level * COOP_WHEEL_SLOTS + s;
		return true;
	}
	return false;
}

u64 coop_wheel_first(const struct coop_wheel *w)
{
	u64 tick;
	u32 slot;

	if (w->head[COOP_WHEEL_DUE] != COOP_NONE)
		return w->tick << COOP_WHEEL_TICK;
	return earliest(w, &tick, &slot) ? tick << COOP_WHEEL_TICK : ~0ull;
}

u32 coop_wheel_due(struct coop_wheel *w, u64 now)
{
	u64 present = now >> COOP_WHEEL_TICK, tick;
	u32 slot, i, next;

	while (w->head[COOP_WHEEL_DUE] == COOP_NONE && earliest(w, &tick, &slot) &&
	       tick <= present) {
		w->tick = tick;
		i = w->head[slot];
		w->head[slot] = COOP_NONE;
		w->occupied[slot / COOP_WHEEL_SLOTS] &= ~(1ull << (slot % COOP_WHEEL_SLOTS));
		for (; i != COOP_NONE; i = next) {
			next = w->v[i].next;
			put(w, i);
		}
	}
	i = w->head[COOP_WHEEL_DUE];
	if (i != COOP_NONE)
		coop_wheel_clear(w, i);
	else if (w->tick < present)
		w->tick = present;
	return i;
}
