/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * bundle.h - bundles of directories (rpc/storage/STORAGE.md, "Bundles").
 *
 * A task whose look-up tells that other nodes use the directory, too, may fetch a bundle of it
 * (bundle_fetch.c), if it is time for that (bundle_policy.c). What the bundle says becomes what
 * replies would have said one by one (bundle_learn.c): inodes with attributes and leases, rights of
 * its user, pages, targets of links, listings, and the names of its directories (names.c). After
 * that the bundle's bytes are not needed here. Its pages stay for some seconds, for peers.
 *
 * One task of a mount at a time fetches a bundle; the others go on as without bundles, but a task
 * that changes names of the directory waits for it.
 */
#ifndef COOP_FS_BUNDLE_H
#define COOP_FS_BUNDLE_H

#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/workqueue.h>

#include "rpc/storage/message.h"

struct coop_bundled;
struct coop_inode;
struct coop_mount;
struct coop_names;
struct cred;
struct crypto_shash;
struct dentry;
struct inode;
struct qstr;

/* A mount's bundles; 'lock' guards all fields below it. */
struct coop_bundles {
	struct crypto_shash *sha; /* SHA-256; NULL: no bundles; never changes */
	spinlock_t lock;
	bool asking; /* a task fetches one */
	bool ended;  /* umount: keep none open any more */
	u32 n_open;
	struct list_head open; /* struct bundle_open, oldest first */
	/* The latest roles for a file without an inode, while a bundle is fetched. */
	bool roles_came;
	struct coop_fid roles_fid;
	u64 roles_version;
	struct coop_st_roles roles;
	struct delayed_work close_work;
};

/* ---- bundle_fetch.c ---- */
void coop_bundles_init(struct coop_mount *m, bool wanted);
/* Closes all. No task uses the mount any more. Call before umount waits for calls. */
void coop_bundles_stop(struct coop_mount *m);
void coop_bundles_free(struct coop_mount *m);
/* Roles came for a file without an inode, perhaps the bundle being opened. Must not wait. */
void coop_bundles_roles(struct coop_mount *m, const struct coop_fid *fid, u64 version,
			const struct coop_st_roles *roles);
/*
 * A reply to 'who' has said that other nodes use the directory. Fetches a bundle if it is time for
 * one, and waits for it: killable. The directory's i_rwsem may be held.
 */
void coop_bundle_noticed(struct dentry *dir, const struct cred *who);

/* ---- bundle_policy.c ---- */
struct coop_bundle_want {
	struct dentry *dir; /* a reference */
	struct coop_fid sought;
	bool subtree;
	u32 part;
};

/* True: ask now for what 'want' says, call came() in any case, and put want->dir. */
bool coop_bundle_wanted(struct dentry *dir, struct coop_bundle_want *want);
/* used: it was of use; more: there is a next part; had: it has the directory 'sought'. */
void coop_bundle_came(const struct coop_bundle_want *want, bool used, bool more, bool had);

/* ---- bundle_learn.c ---- */
struct coop_bundle_bytes {
	const u8 *bytes; /* trusted as far as storage is: their SHA-256 came from there */
	u32 size;
	u64 asked;              /* ticket of BUNDLE */
	const struct cred *who; /* for whom storage has made it */
	struct coop_fid sought;
	bool had;   /* set: it has the directory 'sought' */
	bool taken; /* set: each lease that came with it is known */
	u32 files;  /* set: with a believed right to read, whose contents were taken or were here */
};
/* Takes what it says as far as that is believed. 0; -ESTALE: nothing was; -EPROTO; -ENOMEM. */
int coop_bundle_learn(struct coop_mount *m, struct coop_bundle_bytes *b);

/* ---- names.c: all names of a directory, under its lease ---- */
/* For n names of 'bytes' bytes together; NULL: no memory, or too many. */
struct coop_names *coop_names_alloc(u32 n, u32 bytes);
/* fid: NULL: only the name is known. At most n names, each once. */
void coop_names_add(struct coop_names *names, const struct coop_st_bytes *name,
		    const struct coop_fid *fid);
/* asked: ticket. Takes the names over. They end with the lease, or our own change of a name. */
void coop_names_keep(struct inode *dir, struct coop_names *names, u64 asked);
void coop_names_free(struct coop_names *names);
void coop_names_drop_locked(struct coop_inode *ci);
/* They have turned out to be wrong, perhaps. */
void coop_names_forget(struct inode *dir);
/*
 * A reference to the file of that name; ERR_PTR(-ENOENT): there is no such name; ERR_PTR(-EAGAIN):
 * ask storage. asked: set to the ticket of that knowledge, unless -EAGAIN.
 */
struct inode *coop_names_find(struct inode *dir, const struct qstr *name, const struct cred *who,
			      u64 *asked);

#endif /* COOP_FS_BUNDLE_H */
