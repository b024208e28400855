/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * window.h - how much data a requester invites at a time.
 *
 * The responders send as fast as they can, so the requester limits what is under
 * way: slow start up to a threshold, from there additive increase for each window
 * delivered, and a decrease on loss. A loss among data that were invited before
 * the last decrease is part of the same congestion and changes nothing.
 *
 * The unit is the owner's: the engine counts bytes over all peers, a host with one
 * source for its data counts pages of each peer.
 */
#ifndef COOP_WINDOW_H
#define COOP_WINDOW_H

#include "rpc/base/bits.h"

struct coop_window {
	u32 size;       /* most to invite at a time, at least 1 */
	u32 most, step; /* bound of size; additive increase */
	u32 threshold;  /* end of slow start */
	u32 invited;    /* under way */
	u32 credit;     /* delivered since the last additive increase */
	u64 shrunk_at;
};

static inline void coop_window_init(struct coop_window *w, u32 first, u32 most, u32 step)
{
	const struct coop_window fresh = {coop_min_u32(first, most), most, step, most, 0, 0, 0};

	*w = fresh;
}

/* Is there room for n? There is for one that is alone, however large. */
static inline bool coop_window_fits(const struct coop_window *w, u32 n)
{
	return !w->invited || w->invited + n <= w->size;
}

static inline void coop_window_grow(struct coop_window *w, u32 delivered)
{
	if (w->size < w->threshold) {
		w->size = coop_min_u32(w->size + delivered, w->most);
		return;
	}
	w->credit += delivered;
	if (w->credit < w->size)
		return;
	w->credit = 0;
	w->size = coop_min_u32(w->size + w->step, w->most);
}

/* Data invited at t_invited were lost: at most 'size' from now on. False: an old loss. */
static inline bool coop_window_shrink(struct coop_window *w, u32 size, u64 t_invited, u64 now)
{
	if (t_invited < w->shrunk_at)
		return false;
	w->shrunk_at = now;
	w->credit = 0;
	w->size = coop_min_u32(size ? size : 1, w->most);
	w->threshold = w->size;
	return true;
}

#endif /* COOP_WINDOW_H */
