/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * lease.h - the leases of this mount (rpc/storage/STORAGE.md, "Leases").
 *
 * All facts carry tickets (coop_ticket()), and the whole rule is to compare tickets. A request
 * takes a ticket before it is sent. Under a lease the file is as it was when we learned of the
 * lease, so
 *
 *   a name, a listing or a permission is valid  if its request was sent after that:
 *                                               asked > coop_inode.leased_since
 *   a permission is valid                       if it was also sent after our own last change
 *                                               of attributes: asked > judged_since
 *   a lease is over                             if it began before 'floor': all leases ended
 *   a reply gives a lease                       if nothing has happened since its request:
 *                                               no recall ('slots'), no change of our own
 *                                               (coop_inode.lease_broken), no loss (floor)
 *
 * We need not find and drop facts: when the lease that covers them ends, their tickets are old.
 *
 * A bundle vouches for its facts under the leases that came with it. If by the last rule nothing
 * has happened to the file since BUNDLE was sent, they get a ticket of now (coop_lease_within()).
 *
 * A recall may come for a file that has no inode yet, while a reply that gives the lease is being
 * processed. So we record recalls by a hash of the file's identity, before we look for the inode.
 * Two files in one slot share their recalls, which costs a request and is safe.
 *
 * Lock order: coop_inode.lock, coop_leases.lock. The queries take neither.
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

#define COOP_LEASE_SLOTS 1024       /* a power of two */
#define COOP_KEPT_OF_ALL (32 << 20) /* most bytes of a mount's listings and names */

/* Rights that storage has permitted a user; the last is for answers to access(2). */
enum coop_right {
	COOP_MAY_SEARCH = 1,
	COOP_MAY_LIST = 2,
	COOP_MAY_READ = 4,
	COOP_MAY_EXECUTE = 8,
	COOP_MAY_ACCESS = 16, /* times MAY_EXEC, MAY_WRITE, MAY_READ of the VFS: 1, 2, 4 */
};

struct coop_lease_slot {
	u64 broken;    /* ticket of the last recall, or return, of a file in this slot */
	u32 returning; /* LEASE_RETURNs without an answer */
};

/* A mount's leases; 'lock' guards all fields unless their comment says otherwise. */
struct coop_leases {
	bool wanted; /* never changes */
	u64 floor;   /* leases that began before this ticket are over; read without the lock */
	spinlock_t lock;
	bool closed;           /* umount: accept no lease any more */
	bool down;             /* the connection was lost: trust no lease until ... */
	u32 resuming;          /* ... these returns of all leases are answered */
	u32 held;              /* inodes on 'list' */
	struct list_head list; /* inodes that the daemon may hold a lease of for us, oldest first */
	struct list_head idle; /* struct lease_back: leases to return because we do not need them */
	struct coop_lease_slot slots[COOP_LEASE_SLOTS];
	struct work_struct resume_work, idle_work;
	atomic64_t listing_bytes; /* of directories, see readdir.c and names.c */
	/* unsaid.c; under coop_mount.files_lock */
	struct list_head unsaid;  /* open files that storage does not know of, oldest first */
	struct list_head telling; /* open files whose OPEN is under way */
	wait_queue_head_t told;
	struct delayed_work tell_old_work;
};

/* ---- lease.c ---- */
void coop_leases_init(struct coop_mount *m, bool wanted);
/* Call before umount waits for calls: returns all leases and accepts no more. */
void coop_leases_close(struct coop_mount *m);
/* Call after that wait. */
void coop_leases_stop(struct coop_mount *m);
/* The daemon pushed a recall. Runs in the receiver's work and does not wait. */
void coop_lease_recalled(struct coop_mount *m, const struct coop_fid *fid);
/* lost: the connection is lost. resume: it is up again and has delivered its first pushes. */
void coop_leases_lost(struct coop_mount *m);
void coop_leases_resume(struct coop_mount *m);
/*
 * Takes the lease from a reply to a request that asked for leases, after its attributes were taken.
 * Other tasks can already find the inode.
 */
void coop_lease_learn(struct inode *inode, const struct coop_st_attr *attr, u64 asked);
/*
 * For the other statements of a reply that vouches for them under the lease that it gave: a ticket
 * with which they are believed; 0: they are not, because something may have happened to the file
 * since the request.
 */
u64 coop_lease_within(struct inode *inode, u64 asked);
/* Ends all leases, because the daemon holds some for us that we do not know of, and begins anew. */
void coop_leases_renew(struct coop_mount *m);
/* The inode leaves memory. Does not wait. */
void coop_lease_evict(struct inode *inode);
void coop_lease_free(struct coop_inode *ci);

/* The ticket since which the lease has held without a break; 0: no lease. No locks. */
u64 coop_lease_since(const struct inode *inode);
/* A lease covers the attributes. No locks. */
bool coop_lease_attr(const struct inode *inode);
/* rights.c: under the present lease storage has permitted that user these rights. RCU walks, too.
 */
bool coop_lease_may(const struct inode *inode, const struct cred *cred, u32 rights);
void coop_lease_allow(struct inode *inode, const struct cred *cred, u32 rights, u64 asked);

/*
 * Brackets a request that changes the file: only a directory's names, or anything else. In the
 * latter case begin() first tells storage of open files that it does not know, because afterwards
 * storage might refuse to open them. err: the result of the request; if it was given up, its
 * outcome is unknown. begin(): 0, or -ERESTARTSYS, after which end() must not be called.
 */
int coop_lease_change_begin(struct inode *inode, bool names);
void coop_lease_change_end(struct inode *inode, bool names, int err);

/* ---- unsaid.c: files opened under a lease ---- */
/* Adds an open file of the inode that storage does not know of. */
void coop_unsaid_add(struct coop_file *f, struct inode *inode);
/*
 * Makes sure that storage knows the open file: 0. Call it before a request names the file.
 * Killable; folio locks may be held.
 */
int coop_file_say(struct coop_file *f);
/* Tells storage of all open files of the inode, or of the mount. */
int coop_unsaid_tell_inode(struct inode *inode); /* -ERESTARTSYS: killed */
void coop_unsaid_tell_all(struct coop_mount *m);
void coop_unsaid_init(struct coop_mount *m);
void coop_unsaid_stop(struct coop_mount *m);

#endif /* COOP_FS_LEASE_H */
