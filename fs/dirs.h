/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * dirs.h - changes of names that storage may lose before a COMMIT (dir_commit.c). Losses go
 * to the directory's mapping.
 */
#ifndef COOP_FS_DIRS_H
#define COOP_FS_DIRS_H

#include <linux/fs.h>

#include "rpc/storage/uncommitted.h"

struct coop_call;
struct coop_mount;

struct coop_dirs {
	spinlock_t lock;
	struct coop_uncommitted table; /* under the lock */
	void *memory;                  /* of the table */
};

int coop_dirs_init(struct coop_mount *m);
void coop_dirs_free(struct coop_mount *m);
/*
 * Records what a call that ended with 'err' may have changed: names in dir, and in 'to' if it is
 * not NULL. victim: the inode that lost its name, or NULL.
 */
void coop_dirs_changed(const struct coop_call *call, struct inode *dir, struct inode *to,
		       struct inode *victim, int err);
/* The same for attributes of an inode, if it is a directory. */
void coop_dir_attributes(const struct coop_call *call, struct inode *dir, int err);
int coop_dir_fsync(struct file *file, loff_t start, loff_t end, int datasync);
/* Commits the names that this mount changed, for sync(2). 0 or -errno; reports losses itself. */
int coop_dirs_sync(struct super_block *sb);

#endif /* COOP_FS_DIRS_H */
