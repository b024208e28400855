/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * idtab.h - ids that a later object in the same slot does not share.
 *
 * An id is slot | generation << shift. A slot's generation changes each time the
 * slot is freed, so an id that outlived its object finds nothing. Ids are never
 * 0 or COOP_NONE. A remote value becomes an index only through
 * coop_idtab_slot().
 */
#ifndef COOP_IDTAB_H
#define COOP_IDTAB_H

#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

struct coop_id {
	u32 gen;  /* of the object in the slot, or of the next one if the slot is free */
	u32 next; /* free list; COOP_ID_USED while in use */
};

#define COOP_ID_USED 0xfffffffeu

struct coop_idtab {
	struct coop_id *v; /* n of them, the caller's memory */
	u32 n, shift, gen_max;
	u32 head, tail; /* free slots, first in first out: generations repeat as late as possible */
	u32 used;
};

/* n of 1 .. 1 << 20. */
void coop_idtab_init(struct coop_idtab *t, struct coop_id *mem, u32 n);
/* A new id, or COOP_NONE if all slots are in use. */
u32 coop_idtab_get(struct coop_idtab *t);
/* Slot of a valid id, or COOP_NONE. Takes any value. */
u32 coop_idtab_slot(const struct coop_idtab *t, u32 id);
/* Id of a slot in use, or COOP_NONE. */
u32 coop_idtab_id(const struct coop_idtab *t, u32 slot);
/* Frees the id; -ENOENT if it is stale. */
int coop_idtab_put(struct coop_idtab *t, u32 id);

#ifdef __cplusplus
}
#endif

#endif /* COOP_IDTAB_H */
