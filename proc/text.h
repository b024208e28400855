/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * text.h - a mount's node and its counters as lines of text.
 *
 * In all functions 'shards' may be NULL: no peers. Context: may sleep.
 */
#ifndef COOP_PROC_TEXT_H
#define COOP_PROC_TEXT_H

#include "ib/ib.h"

struct seq_file;

/* The own address, then those of all peers. */
void coop_show_addresses(struct seq_file *m, struct coop_shards *shards);
void coop_show_peers(struct seq_file *m, struct coop_shards *shards);
/* Fetches and serves in flight, with their age. */
void coop_show_requests(struct seq_file *m, struct coop_shards *shards);
/* 0 or -ENOMEM. */
int coop_show_stats(struct seq_file *m, const struct coop_stats *stats, struct coop_shards *shards);
/* "endpoint rxe0 port 1 ..." */
void coop_show_device(struct seq_file *m, struct coop_shards *shards);

#endif /* COOP_PROC_TEXT_H */
