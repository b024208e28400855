/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * turns.h - which serve sends next.
 *
 * Nodes take turns, a batch each. The serves of one node send one after the other in the order
 * of their arrival: with mixed batches all of a node's serves would end as late as the last one.
 * A COMMIT goes first, because it ends a serve and a requester waits for it.
 *
 * Every step is O(1) except coop_turns_leave(), which only a rare abandoned serve needs.
 */
#ifndef COOP_TURNS_H
#define COOP_TURNS_H

#include "rpc/base/fifo.h"

#ifdef __cplusplus
extern "C" {
#endif

struct coop_turns {
	struct coop_fifo commits; /* serves whose COMMIT is due */
	struct coop_fifo nodes;   /* nodes with queued serves, in the order of their turns */
	struct coop_fifo *line;   /* by node: its queued serves; all share one 'next' */
	u32 n_nodes;
};

/* Memory of the caller: commit_next and serve_next for n_serves, node_next and line for n_nodes. */
void coop_turns_init(struct coop_turns *t, u32 *commit_next, u32 *serve_next, u32 n_serves,
		     u32 *node_next, struct coop_fifo *line, u32 n_nodes);
/* Queues the serve behind the others of its node; no effect if it is queued. */
void coop_turns_join(struct coop_turns *t, u32 node, u32 serve);
/* Queues an interrupted serve ahead of the others of its node. */
void coop_turns_resume(struct coop_turns *t, u32 node, u32 serve);
void coop_turns_commit(struct coop_turns *t, u32 serve);
void coop_turns_leave(struct coop_turns *t, u32 node, u32 serve);
/* The next serve, taken out of its queue; COOP_NONE: none. The first returns only serves whose
 * COMMIT is due. */
u32 coop_turns_next_commit(struct coop_turns *t);
u32 coop_turns_next(struct coop_turns *t);

#ifdef __cplusplus
}
#endif

#endif /* COOP_TURNS_H */
