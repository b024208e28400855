/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * lease.h - what this mount holds leases of (rpc/storage/STORAGE.md, "Leases").
 *
 * All facts carry tickets (coop_ticket()), and comparing tickets is the whole rule. A request
 * takes one before it is sent. Within a lease the file is as it was when the lease became
 * known, so
 *
 *   a name, a listing or a permission holds     if its request was sent after that:
 *                                               asked > coop_inode.leased_since
 *   a permission holds                          if it was also sent after our own last change
 *                                               of attributes: asked > judged_since
 *   a lease is over                             if it began before 'floor': all of them ended
 *   a reply tells of a lease                    if nothing has happened since it was asked for:
 *                                               no recall ('slots'), no change of our own
 *                                               (coop_inode.lease_broken), no loss (floor)
 *
 * Facts need not be found and thrown away: the lease that covers them ends, and they are old.
 *
 * A recall may be of a file that no inode is known of yet, while a reply that gives the lease
 * is being taken in. So recalls are noted by a hash of the file's identity, before the inode is
 * looked for. Two files in one slot share their recalls, which costs a request and is safe.
 *
 * Lock order: coop_inode.lock, coop_leases.lock. Who asks whether a lease holds takes neither.
 */
#ifndef COOP_FS_LEASE_H
#define COOP_FS_LEASE_H

#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "rpc/storage/message.h"

struct coop_file;
struct coop_inode;
struct coop_mount;
struct cred;
struct inode;

#define COOP_LEASE_SLOTS 1024 /* a power of two */

/* What storage has permitted a user; the last three are answers to access(2). */
enum coop_right {
	COOP_MAY_SEARCH = 1,
	COOP_MAY_LIST = 2,
	COOP_MAY_READ = 4,
	COOP_MAY_EXECUTE = 8,
	COOP_MAY_ACCESS = 16, /* times MAY_EXEC, MAY_WRITE, MAY_READ of the VFS: 1, 2, 4 */
};

struct coop_lease_slot {
	u64 broken;    /* ticket of the last recall, or return, of a file here */
	u32 returning; /* LEASE_RETURNs without an answer */
};

/* A mount's; lock guards what is not said to be otherwise. */
struct coop_leases {
	bool wanted; /* never changes */
	u64 floor;   /* leases that began before this ticket are over; read without the lock */
	spinlock_t lock;
	bool closed;           /* umount: none any more */
	bool down;             /* the connection was lost: none is believed until ... */
	u32 resuming;          /* ... these returns of all leases are answered */
	u32 held;              /* inodes on 'list' */
	struct list_head list; /* those that the daemon may have a lease of for us, by first use */
	struct list_head idle; /* struct lease_back: to be returned, as we have no use for them */
	struct coop_lease_slot slots[COOP_LEASE_SLOTS];
	struct work_struct resume_work, idle_work;
	atomic64_t listing_bytes; /* of directories, see readdir.c */
	/* unsaid.c; under coop_mount.files_lock */
	struct list_head unsaid;  /* open files that storage has not been told of, oldest first */
	struct list_head telling; /* those that it is being told of, or has refused */
	wait_queue_head_t told;
	struct delayed_work tell_old_work;
};

/* ---- lease.c: what is believed ---- */
void coop_leases_init(struct coop_mount *m, bool wanted);
/* Before umount waits for calls: all leases are given back, and none is asked for. */
void coop_leases_close(struct coop_mount *m);
/* After that wait. */
void coop_leases_stop(struct coop_mount *m);
/* Pushed by the daemon. The receiver's work: waits for nothing. */
void coop_lease_recalled(struct coop_mount *m, const struct coop_fid *fid);
/* The connection is lost; it stands again, and has pushed what it had to. */
void coop_leases_lost(struct coop_mount *m);
void coop_leases_resume(struct coop_mount *m);
/*
 * A reply to a request that leases were asked for with, whose attributes have just been taken
 * over. The inode can be found by others.
 */
void coop_lease_learn(struct inode *inode, const struct coop_st_attr *attr, u64 asked);
/* It leaves memory. Waits for nothing. */
void coop_lease_evict(struct inode *inode);
void coop_lease_free(struct coop_inode *ci);

/* Since which ticket there has been a lease without a break; 0: there is none. No locks. */
u64 coop_lease_since(const struct inode *inode);
/* The attributes are those of a lease. No locks. */
bool coop_lease_attr(const struct inode *inode);
/* Storage has permitted it to that user within the lease that holds. RCU walks, too. */
bool coop_lease_may(const struct inode *inode, const struct cred *cred, u32 rights);
void coop_lease_allow(struct inode *inode, const struct cred *cred, u32 rights, u64 asked);

/*
 * Around a request that changes the file: a directory's names alone, or anything else. Before the
 * latter storage is told of those who have the file open: afterwards it might not let them. err:
 * how it ended. What a request that was given up has done is never known. begin(): 0, or
 * -ERESTARTSYS, and then there is no end().
 */
int coop_lease_change_begin(struct inode *inode, bool names);
void coop_lease_change_end(struct inode *inode, bool names, int err);

/* ---- unsaid.c: files opened within a lease ---- */
/* Makes it an open file of the inode that storage does not know of. */
void coop_unsaid_add(struct coop_file *f, struct inode *inode);
/*
 * Storage knows of the open file when it returns 0. Who names an open file in a request calls
 * this first. Killable; folio locks may be held.
 */
int coop_file_say(struct coop_file *f);
/* All that are open of the inode, or of the mount, are known to storage, or it has refused. */
int coop_unsaid_tell_inode(struct inode *inode); /* -ERESTARTSYS: killed */
void coop_unsaid_tell_all(struct coop_mount *m);
void coop_unsaid_init(struct coop_mount *m);
void coop_unsaid_stop(struct coop_mount *m);

#endif /* COOP_FS_LEASE_H */
