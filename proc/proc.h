/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * proc.h - /proc/fs/coopfs/<id>/: the state of a mount, as text.
 *
 *   ibaddr    read: own address, then the peers'; write: register a peer by hand
 *   peers     health, round-trip time and counters of each peer
 *   stats     counters: sources of reads, fetches, serves and others; a write resets them
 *   options   option=value, a line each
 *   requests  fetches, serves and calls in flight, with their age
 *   info      server, export, device, mount id
 *
 * The text is the same as in the .coopfs/ directory of the FUSE variant, so that one
 * tool reads both. The files belong to root.
 */
#ifndef COOP_PROC_PROC_H
#define COOP_PROC_PROC_H

#include "ib/ib.h"

struct coop_proc;
struct seq_file;

/* The file system's part. The callbacks run while a file is open; the mount is alive. */
struct coop_proc_source {
	u32 id;
	struct coop_stats *stats;
	struct coop_shards *shards; /* NULL: none */
	void *host;
	void (*options)(struct seq_file *m, void *host); /* one "option=value" a line */
	void (*info)(struct seq_file *m, void *host);    /* one "key value" a line */
	void (*gauges)(struct seq_file *m, void *host);  /* for stats: storage, leases, cache */
	int (*requests)(struct seq_file *m, void *host); /* calls to storage; 0 or -ENOMEM */
};

int coop_proc_init(void); /* /proc/fs/coopfs */
void coop_proc_exit(void);
/* ERR_PTR(-ENOMEM). Context: may sleep. */
struct coop_proc *coop_proc_add(const struct coop_proc_source *source);
/* Waits for readers to leave. */
void coop_proc_remove(struct coop_proc *proc);

#endif /* COOP_PROC_PROC_H */
