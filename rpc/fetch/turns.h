/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * turns.h - which serve sends next.
 *
 * Nodes take turns, of a batch each; the serves of one node follow one another in the order in
 * which they came. Were their batches mixed, all of a node's windows would end as late as the
 * last of them. A COMMIT goes first: it ends a serve, and somebody waits for it.
 *
 * Every step is O(1) but for coop_turns_leave(), which is for the rare one that gives up.
 */
#ifndef COOP_TURNS_H
#define COOP_TURNS_H

#include "rpc/base/fifo.h"

#ifdef __cplusplus
extern "C" {
#endif

struct coop_turns {
	struct coop_fifo commits; /* serves whose COMMIT is due */
	struct coop_fifo nodes;   /* that have serves in line, in the order of their turns */
	struct coop_fifo *line;   /* by node: its serves; all share one 'next' */
	u32 n_nodes;
};

/* The caller's memory: commit_next and serve_next for n_serves, node_next and line for n_nodes. */
void coop_turns_init(struct coop_turns *t, u32 *commit_next, u32 *serve_next, u32 n_serves,
		     u32 *node_next, struct coop_fifo *line, u32 n_nodes);
/* It has something to send, after what its node has in line. Doubled is no error. */
void coop_turns_join(struct coop_turns *t, u32 node, u32 serve);
/* It was interrupted, and goes on before the others of its node. */
void coop_turns_resume(struct coop_turns *t, u32 node, u32 serve);
void coop_turns_commit(struct coop_turns *t, u32 serve);
void coop_turns_leave(struct coop_turns *t, u32 node, u32 serve);
/* Out of its line; COOP_NONE: there is none. The first: only if its COMMIT is due. */
u32 coop_turns_next_commit(struct coop_turns *t);
u32 coop_turns_next(struct coop_turns *t);

#ifdef __cplusplus
}
#endif

#endif /* COOP_TURNS_H */
