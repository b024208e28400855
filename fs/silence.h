/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * silence.h - what df(1) and stat(1) of a mount's top are told while the daemon is silent.
 */
#ifndef COOP_FS_SILENCE_H
#define COOP_FS_SILENCE_H

#include <linux/fs.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "rpc/storage/message.h"

/* Of requests that wait for a silent daemon for a short time only. */
struct coop_silence {
	atomic_t statfs, getattr; /* overdue requests */
	wait_queue_head_t over;   /* none of a kind is overdue any more */
	spinlock_t lock;          /* guards the following */
	bool known;
	struct coop_st_statfs space; /* of the last reply */
};

void coop_silence_init(struct coop_silence *s);
/* Asks for the attributes. 0: they are known now, or the wait is over. */
int coop_ask_attr_shortly(struct inode *inode);
/* For statfs(2), of now or the last ones known. */
int coop_ask_space(struct inode *inode, struct coop_st_statfs *out);
/* Asks without waiting, so that later ones are known. */
void coop_space_learn(struct inode *root);

#endif /* COOP_FS_SILENCE_H */
