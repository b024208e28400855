// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Deadlines in an indexed binary heap; see timer.h. Invariant: v[v[p].heap].pos == p, p < count. */
#include "timer.h"

#include "types.h"

static void place(struct coop_timers *t, u32 pos, u32 object)
{
	t->v[pos].heap = object;
	t->v[object].pos = pos;
}

static bool earlier(const struct coop_timers *t, u32 a, u32 b)
{
	return t->v[a].when < t->v[b].when;
}

static void up(struct coop_timers *t, u32 pos)
{
	u32 object = t->v[pos].heap;

	while (pos > 0) {
		u32 parent = (pos - 1) / 2;

		if (!earlier(t, object, t->v[parent].heap))
			break;
		place(t, pos, t->v[parent].heap);
		pos = parent;
	}
	place(t, pos, object);
}

static void down(struct coop_timers *t, u32 pos)
{
	u32 object = t->v[pos].heap;

	for (;;) {
		u32 child = 2 * pos + 1;

		if (child >= t->count)
			break;
		if (child + 1 < t->count && earlier(t, t->v[child + 1].heap, t->v[child].heap))
			child++;
		if (!earlier(t, t->v[child].heap, object))
			break;
		place(t, pos, t->v[child].heap);
		pos = child;
	}
	place(t, pos, object);
}

void coop_timers_init(struct coop_timers *t, struct coop_timer *mem, u32 n)
{
	u32 i;

	t->v = mem;
	t->n = n;
	t->count = 0;
	for (i = 0; i < n; i++)
		mem[i].pos = COOP_NONE;
}

void coop_timer_set(struct coop_timers *t, u32 i, u64 when)
{
	u32 pos = t->v[i].pos;

	t->v[i].when = when;
	if (pos == COOP_NONE) {
		pos = t->count++;
		place(t, pos, i);
	}
	up(t, pos);
	down(t, t->v[i].pos);
}

void coop_timer_clear(struct coop_timers *t, u32 i)
{
	u32 pos = t->v[i].pos, last;

	if (pos == COOP_NONE)
		return;
	t->v[i].pos = COOP_NONE;
	last = t->v[--t->count].heap;
	if (last == i)
		return;
	place(t, pos, last);
	up(t, pos);
	down(t, t->v[last].pos);
}

u64 coop_timers_first(const struct coop_timers *t)
{
	return t->count ? t->v[t->v[0].heap].when : ~0ull;
}

u32 coop_timers_due(struct coop_timers *t, u64 now)
{
	u32 i;

	if (!t->count || coop_timers_first(t) > now)
		return COOP_NONE;
	i = t->v[0].heap;
	coop_timer_clear(t, i);
	return i;
}
