/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * proc.h - /proc/fs/coopfs/<id>/: what a mount is and does, as text.
 *
 *   ibaddr    read: own address, then the peers'; write: register a peer by hand
 *   peers     state, round-trip time and figures of each peer
 *   stats     who served what; writing resets
 *   options   option=value, a line each
 *   requests  in flight, with age
 *   info      server, export, device, mount id
 *
 * The same text as the .coopfs/ directory of the FUSE variant, so that one tool
 * reads both. Files are root's, mode 0600 where writing does something.
 */
#ifndef COOP_PROC_PROC_H
#define COOP_PROC_PROC_H

#include "ib/ib.h"

struct coop_proc;
struct seq_file;

/* What only the file system knows. Called with the file open; the mount is alive. */
struct coop_proc_source {
	u32 id;
	struct coop_stats *stats;
	struct coop_node *node; /* NULL: none */
	void *host;
	void (*options)(struct seq_file *m, void *host); /* one "option=value" a line */
	void (*info)(struct seq_file *m, void *host);    /* one "key value" a line */
	void (*gauges)(struct seq_file *m, void *host);  /* of stats: storage, cache */
	int (*requests)(struct seq_file *m, void *host); /* to storage; 0 or -ENOMEM */
};

int coop_proc_init(void); /* /proc/fs/coopfs */
void coop_proc_exit(void);
/* ERR_PTR(-ENOMEM). Context: may sleep. */
struct coop_proc *coop_proc_add(const struct coop_proc_source *source);
/* Waits for readers to leave. */
void coop_proc_remove(struct coop_proc *proc);

#endif /* COOP_PROC_PROC_H */
