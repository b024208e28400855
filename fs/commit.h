/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * commit.h - changes that storage may lose before a COMMIT (unstable.c). Losses go to the mapping.
 */
#ifndef COOP_FS_COMMIT_H
#define COOP_FS_COMMIT_H

#include <linux/bvec.h>
#include <linux/fs.h>

struct coop_kept;

/*
 * Records a change that this client cannot repeat. wrote: a close commits it.
 */
void coop_unstable_add(struct inode *inode, u64 verifier, bool wrote);
/* The same for a change of attributes only; the file may not be open. */
void coop_unstable_attributes(struct inode *inode, u64 verifier);
/* Room for the record of a WRITE of n folios, from before it is sent. NULL: no memory. */
struct coop_kept *coop_kept_room(u32 n);
void coop_kept_room_free(struct coop_kept *room); /* NULL is fine */
/*
 * A WRITE of these folios was answered: keeps them. They are still under writeback. Takes over the
 * room; NULL: none was to be had, or the WRITE was to be stable. Never waits.
 */
void coop_unstable_keep(struct inode *inode, u64 verifier, struct coop_kept *room,
			const struct bio_vec *bvec, u32 n, loff_t pos, u32 bytes);
/*
 * Would a stable WRITE that is sent now make a COMMIT needless? True if no earlier change needs a
 * COMMIT at close. number: of the last change that it would cover.
 */
bool coop_unstable_coverable(struct inode *inode, u64 *number);
/*
 * That WRITE was answered as stable. True: all changes up to 'number' are stable. False: some may
 * be lost, so keep the WRITE's folios for a COMMIT.
 */
bool coop_unstable_covered(struct inode *inode, u64 verifier, u64 number);
/* The file was truncated to that size. */
void coop_unstable_cut(struct inode *inode, loff_t size);
/* Drops all records if the file is not open any more. */
void coop_unstable_forget(struct inode *inode);
/* 0: all changes answered before are on stable storage, or their loss is in the mapping's error. */
int coop_commit(struct inode *inode);
/* Queues a COMMIT without waiting. */
void coop_commit_start(struct inode *inode);
/* Call before a lock is given back: bytes written before are never written again from here. */
void coop_unstable_hand_over(struct inode *inode);

#endif /* COOP_FS_COMMIT_H */
