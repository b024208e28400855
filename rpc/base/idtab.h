/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * idtab.h - ids that cannot be mistaken for an earlier holder's.
 *
 * An id is slot | generation << shift. A slot's generation changes each time it
 * is freed, so an id that outlived its object finds nothing. Ids are never 0 nor
 * COOP_NONE, and a remote value becomes an index only through coop_idtab_slot().
 */
#ifndef COOP_IDTAB_H
#define COOP_IDTAB_H

#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

struct coop_id {
	u32 gen;  /* of the holder, or of the next one when free */
	u32 next; /* free list; COOP_ID_USED while held */
};

#define COOP_ID_USED 0xfffffffeu

struct coop_idtab {
	struct coop_id *v; /* n of them, the caller's memory */
	u32 n, shift, gen_max;
	u32 head, tail; /* free slots, first in first out: a slot rests as long as it can */
	u32 used;
};

/* n of 1 .. 1 << 20. */
void coop_idtab_init(struct coop_idtab *t, struct coop_id *mem, u32 n);
/* An id, or COOP_NONE when all slots are held. */
u32 coop_idtab_get(struct coop_idtab *t);
/* Slot of an id that is held, or COOP_NONE. Takes any value. */
u32 coop_idtab_slot(const struct coop_idtab *t, u32 id);
/* Id of a slot that is held, or COOP_NONE. */
u32 coop_idtab_id(const struct coop_idtab *t, u32 slot);
/* Frees; -ENOENT if the id is stale. */
int coop_idtab_put(struct coop_idtab *t, u32 id);

#ifdef __cplusplus
}
#endif

#endif /* COOP_IDTAB_H */
