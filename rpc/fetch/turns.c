// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Which serve sends next; see turns.h. */
#include "turns.h"

#include "engine.h"

void coop_turns_init(struct coop_turns *t, u32 *commit_next, u32 *serve_next, u32 n_serves,
		     u32 *node_next, struct coop_fifo *line, u32 n_nodes)
{
	u32 i;

	coop_fifo_init(&t->commits, commit_next, n_serves);
	coop_fifo_init(&t->nodes, node_next, n_nodes);
	t->line = line;
	t->n_nodes = n_nodes;
	coop_fifo_init(&line[0], serve_next, n_serves);
	for (i = 1; i < n_nodes; i++)
		line[i] = line[0]; /* a serve is in at most one queue */
}

void coop_turns_join(struct coop_turns *t, u32 node, u32 serve)
{
	coop_fifo_push(&t->line[node], serve);
	coop_fifo_push(&t->nodes, node);
}

void coop_turns_resume(struct coop_turns *t, u32 node, u32 serve)
{
	coop_fifo_push_front(&t->line[node], serve);
	coop_fifo_push(&t->nodes, node);
}

void coop_turns_commit(struct coop_turns *t, u32 serve)
{
	coop_fifo_push(&t->commits, serve);
}

void coop_turns_leave(struct coop_turns *t, u32 node, u32 serve)
{
	coop_fifo_remove(&t->line[node], serve);
}

u32 coop_turns_next_commit(struct coop_turns *t)
{
	return coop_fifo_pop(&t->commits);
}

u32 coop_turns_next(struct coop_turns *t)
{
	u32 serve = coop_turns_next_commit(t), node;

	while (serve == COOP_NONE) {
		node = coop_fifo_pop(&t->nodes);
		if (node == COOP_NONE)
			break;
		serve = coop_fifo_pop(&t->line[node]); /* none: its serves have left */
		if (t->line[node].head != COOP_NONE)
			coop_fifo_push(&t->nodes, node);
	}
	return serve;
}
