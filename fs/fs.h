/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * fs.h - the nouns of the file system: a mount, an inode, an open file.
 *
 * Consistency is close-to-open by data version. Storage gives every content of a
 * file a version; equal versions mean equal bytes. The pages of an inode are of
 * exactly one version, coop_inode.version. An open that returns another version
 * throws the pages away first; our own writes carry the version on where storage
 * proves that nothing came between ("before" in its replies).
 *
 * Rule 11 of the page fetch (a peer is served only what did not change under the
 * send) rests on coop_inode.change: whoever is about to change bytes or validity
 * of a page - write_begin, page_mkwrite, truncate, invalidation, a new version -
 * bumps it first. The responder reads it before it looks and after it sent.
 *
 * Lock order: inode->i_rwsem, mapping->invalidate_lock, folio lock, coop_inode.lock.
 */
#ifndef COOP_FS_FS_H
#define COOP_FS_FS_H

#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/mempool.h>
#include <linux/rwsem.h>
#include <linux/siphash.h>

#include "fs/compat.h"
#include "fs/lease.h"
#include "fs/storage/storage.h"
#include "ib/ib.h"
#include "stats/stats.h"

#define COOPFS_MAGIC   0x636f6f70   /* "coop" */
#define COOP_READ_UNIT (256 * 1024) /* bytes of one storage READ of a readahead window */

struct coop_callers;
struct coop_proc;

enum coop_local_lock { /* which locks are this node's own */
		       COOP_LOCAL_FLOCK = 1,
		       COOP_LOCAL_POSIX = 2,
};

/* What the mount command said; show_options and /proc print it. */
struct coop_options {
	char *source;      /* as given */
	char *export_name; /* "/data" */
	struct sockaddr_storage server[COOP_SERVERS_MAX];
	u32 n_servers;
	char *key_name; /* path, for show_options */
	u8 *key;        /* its bytes; wiped when the mount goes */
	u32 key_len;
	u32 readahead; /* pages */
	bool ra_async;
	bool commit_on_close;
	bool ib; /* exchange pages with peers */
	struct coop_node_cfg node;
	bool soft;
	u32 timeo_ds;      /* tenths of a second, as NFS has it */
	char *server_addr; /* numeric addresses, where the source has names; NULL: it has none */
	u32 local_lock;    /* enum coop_local_lock */
	bool strict;       /* names and attributes are asked for each time */
	bool nolease;
};

/* Locks among nodes, see lock.c. */
struct coop_locks {
	siphash_key_t owner_key; /* never changes: owners' numbers by their addresses */
	struct rw_semaphore noting;
	u32 restarts;          /* of the daemon; under 'noting' */
	spinlock_t lock;       /* guards the following */
	struct list_head asks; /* those that may be queued at storage */
	u64 last_cookie;
	/* a reclaiming: its calls under way, and that the daemon was restarted again */
	atomic_t reclaims;
	bool overtaken;
};

struct coop_mount {
	struct super_block *sb;
	u32 id;                  /* /proc/fs/coopfs/<id> */
	struct coop_options opt; /* tunables change under sb->s_umount */
	struct coop_storage *storage;
	struct coop_node *node; /* NULL: no cooperation */
	struct coop_stats stats;
	struct coop_proc *proc;
	struct workqueue_struct *wq;        /* reads that go on to storage, put-off iputs */
	mempool_t *write_pool;              /* of WRITEs under way */
	struct workqueue_struct *direct_wq; /* ends of direct I/O: they wait for what is on wq */
	struct llist_head
		unused_inodes; /* inodes that serving is done with: iput() may sleep long */
	struct work_struct iput_work;
	atomic_t reads;               /* windows that are being read (read.c) */
	wait_queue_head_t reads_gone; /* umount waits for reads and calls */
	atomic_t calls;               /* that hold an inode and nobody waits for */
	struct mutex node_lock; /* between the daemon's pushes and the node's coming and going */
	atomic64_t clock;       /* of tickets, see coop_ticket() */
	spinlock_t files_lock;
	struct list_head files; /* open at storage, coop_file.opened */
	u32 reopenings;
	struct coop_locks locks;
	struct coop_leases leases;
	struct coop_callers *callers; /* NULL: no task came by an id-mapped mount yet */
};

/*
 * What the clean pages of a regular file are, by two fields under coop_inode.lock; content.c alone
 * changes them:
 *
 *   state    version  STALE  the clean pages are                   peers get them
 *   PROVED   not 0    no     all of that version                   yes
 *   MIXED    0        no     as good as any reader may have them   no
 *   FOREIGN  0        yes    older than what storage has           no
 *
 *   from              by                                                        to
 *   PROVED            an own change whose 'before' is version: its 'after'      PROVED
 *   PROVED            one with another 'before', if both are proofs             FOREIGN
 *   PROVED            one that failed, or without such proofs                   MIXED
 *   PROVED            attributes of another version, no own change under way    FOREIGN
 *   MIXED             the same, if both versions are proofs, or the end moved   FOREIGN
 *   MIXED, FOREIGN    settling: dirty pages written, all dropped, and 'mixed'   PROVED
 *                     is what it was; version is 'seen' then
 *   MIXED, FOREIGN    settling that something came between                      MIXED
 *   MIXED, FOREIGN    settling that could not drop all pages                    FOREIGN
 *
 * An open settles whatever is not PROVED; reads, writes, faults and mmap settle FOREIGN only.
 *
 *   seen, seen_size   what storage told last of the whole file; 0: an own change ended without
 *   believed          replies asked for before this ticket are older than what is known
 *   mixed             moves with everything that makes a settling's result void
 *   changes           own changes under way: while there are any, attributes say nothing of others
 *   pending           own changes answered before one that they follow, not settled yet
 *   change            see above; moves before any byte, version or validity does
 */
struct coop_inode {
	struct inode vfs;
	struct coop_fid fid;   /* never changes */
	u8 fh[COOP_ST_FH_MAX]; /* never changes */
	u32 fh_len;
	atomic64_t change;        /* see above */
	atomic64_t fetched;       /* bytes that arrived and no reader took yet */
	spinlock_t lock;          /* guards what follows */
	u64 version;              /* data version of the pages; 0: none that storage proved */
	u64 size;                 /* bytes of the file at that version */
	u64 seen, seen_size;      /* what storage told last; not of our pages if version is 0 */
	u64 believed;             /* ticket of the reply that attributes are from */
	u64 mixed;                /* counts what made version 0 or came in without one */
	u32 changes;              /* our own changes of content that are under way */
	u32 in_round[2];          /* the same, by the round that they were begun in */
	u8 round;                 /* of what begins now */
	bool round_waits;         /* some pending wait for the end of the other round */
	struct list_head pending; /* those answered before one that they follow */
	wait_queue_head_t quiet;  /* 'changes' came down to 0 */
	unsigned long flags;      /* COOP_I_*, atomic */
	/* unstable.c: what no COMMIT has covered */
	u64 unstable;        /* counts changes that are not stable when they are answered */
	u64 covered;         /* those up to it a COMMIT has covered, or was about */
	u64 loose, verifier; /* the last one that is not kept: its number, 0: none; its verifier */
	u64 handed; /* those up to it may be another lock holder's now: never written again */
	struct list_head kept;    /* struct coop_kept, by number */
	u32 n_kept;               /* folios of those */
	bool again;               /* a COMMIT has taken some, and writes them again */
	unsigned long attr_until; /* jiffies until which the attributes are believed */
	u32 has;                  /* enum coop_st_has */
	unsigned long has_until;  /* jiffies until which what is not in 'has' is not there */
	u32 traits, traits_known; /* enum coop_st_trait */
	struct timespec64 btime;  /* with COOP_ST_HAS_BTIME */
	/* lease.c: tickets; what is read without the lock is written under it */
	u64 leased_since;            /* 0: no lease is believed */
	u64 judged_since;            /* permissions of before prove nothing */
	u64 lease_broken;            /* replies asked for before tell of no lease */
	u32 lease_changes;           /* our own changes that are under way */
	bool lease_attr;             /* attributes are those of the lease */
	bool lease_used;             /* lately */
	struct list_head lease_link; /* coop_leases.list, under its lock */
	struct coop_lease_users __rcu *lease_users;
	struct list_head listing; /* readdir.c: parts of a directory, within a lease */
	u32 listing_bytes;
	u32 n_openers;
	u32 openers[COOP_MAX_HINTS]; /* node ids, from the last open of this version */
	struct list_head files;      /* open files, coop_file.link */
	/* iput() that were put off */
	struct llist_node unused;
	atomic_t unused_refs;
};

enum coop_inode_flag {                /* bits of coop_inode.flags */
		       COOP_I_STALE,  /* somebody else changed the content that pages are of */
		       COOP_I_LOOKUP, /* directory: its entries are being looked up one by one */
		       COOP_I_WROTE,  /* a close has something to commit */
		       COOP_I_LEFT,   /* an fsync has, though no open file tells */
		       COOP_I_COMMITTING,    /* held: a bit lock */
		       COOP_I_COMMIT_QUEUED, /* a COMMIT that nobody waits for */
		       COOP_I_UNSURE, /* an own change may happen yet: no lease is believed */
		       COOP_I_AGAIN, /* one folio: 'handed' is looked at, and it becomes dirty again
				      */
};

/* Does storage know of an open file? See unsaid.c. */
enum coop_said {
	COOP_SAID,
	COOP_UNSAID,  /* opened within a lease */
	COOP_TELLING, /* its OPEN is under way */
	COOP_REFUSED, /* coop_file.error says why */
};

/* One open at storage; file->private_data. */
struct coop_file {
	struct list_head link;   /* coop_inode.files */
	struct list_head opened; /* coop_mount.files, or as 'said' has it */
	enum coop_said said;     /* under coop_mount.files_lock */
	unsigned long since;     /* jiffies since which it is unsaid */
	int say_error;           /* of the last attempt, if another one is to be made */
	refcount_t refs;         /* the open file; reads and writes under way that name open_id */
	struct inode *inode;     /* whoever has a reference to this has one to the inode */
	const struct cred *cred; /* of the opener, as its mount maps it: for opening again */
	struct coop_call *close; /* made with it: to close needs no memory; NULL: sent */
	u64 closing;             /* ticket of a writer's CLOSE */
	u64 open_id;
	u32 flags;     /* enum coop_st_open_flag */
	int error;     /* of re-opening, after the daemon lost the session */
	bool lost;     /* a lock of it was: another node may have held it */
	u32 reopening; /* coop_mount.reopenings that it was part of */
	/*
	 * The same file with the other meaning of O_APPEND, which fcntl() changes and storage
	 * carries out; opened at its first use, never changed after that.
	 */
	struct coop_file *other;
};

static inline struct coop_mount *coop_sb(const struct super_block *sb)
{
	return sb->s_fs_info;
}

static inline struct coop_inode *coop_i(const struct inode *inode)
{
	return container_of(inode, struct coop_inode, vfs);
}

/* A call that holds an inode and that nobody waits for: umount does. */
static inline void coop_calls_begin(struct coop_mount *m)
{
	atomic_inc(&m->calls);
}

static inline void coop_calls_end(struct coop_mount *m)
{
	if (atomic_dec_and_test(&m->calls))
		wake_up_all(&m->reads_gone);
}

/* What one moment's reads need to know together. */
struct coop_content {
	u64 version, size;
	u64 change;
	u32 n_openers;
	u32 openers[COOP_MAX_HINTS];
};
void coop_content_get(struct coop_inode *ci, struct coop_content *out);

/* ---- super.c, options.c ---- */
extern struct file_system_type coop_fs_type;
int coop_init_fs_context(struct fs_context *fc);
int coop_options_begin(struct fs_context *fc, const struct coop_options *now);
int coop_options_end(struct fs_context *fc);
/* What a remount may not change is as it was, or -EINVAL and a message. */
int coop_options_compare(struct fs_context *fc, const struct coop_options *old);
int coop_inode_cache_init(void);
void coop_inode_cache_exit(void);
int coop_options_parse(struct fs_context *fc, struct fs_parameter *param);
void coop_options_show(struct seq_file *m, const struct coop_options *opt, char separator);
void coop_options_free(struct coop_options *opt);

/*
 * ---- caller.c: as whom storage is asked ----
 * Credentials are the caller's until its next call here, and for asking storage only. -EOVERFLOW:
 * the mount does not map the user; -ENOMEM; -ECHILD: it cannot be told without waiting.
 */
/* current_cred(), or what the mount maps it to. Notes the mount. RCU walks, without 'wait'. */
const struct cred *coop_caller(struct super_block *sb, struct mnt_idmap *idmap, bool wait);
/* For an operation that is not told of its mount: by the one that was noted. RCU walks, too. */
const struct cred *coop_caller_noted(struct super_block *sb, bool wait);
/*
 * The same for d_revalidate, which an overlay calls as the one who walks there, after a
 * ->permission as its mounter: whom the note maps, current or not. Never an error, never waits.
 */
const struct cred *coop_caller_last(struct super_block *sb);
/* Tasks come by id-mapped mounts, but the last ->permission that this one asked was of none. */
bool coop_caller_unnoted(struct super_block *sb);
/* As coop_caller_noted(), for what storage tells every user: never an error. */
const struct cred *coop_caller_any(struct super_block *sb);
/* By the mount that the file is opened by. */
const struct cred *coop_caller_by(const struct file *file);
bool coop_mount_maps(const struct inode *inode, struct mnt_idmap *idmap);
/* Nobody is left to call. */
void coop_callers_free(struct coop_mount *m);

/* ---- export.c ---- */
extern const struct export_operations coop_export_ops;

/* ---- inode.c ---- */
extern const struct inode_operations coop_file_inode_ops;
/* Parts of super_operations. */
struct inode *coop_alloc_inode(struct super_block *sb);
void coop_free_inode(struct inode *inode);
void coop_evict_inode(struct inode *inode);
int coop_write_inode(struct inode *inode, struct writeback_control *wbc);
/*
 * The inode of fid, made if new, its attributes brought up to date. May sleep.
 * Return: a reference, ERR_PTR(-ENOMEM), or ERR_PTR(-ESTALE): another type of file under one fid.
 */
struct inode *coop_iget(struct super_block *sb, const struct coop_st_attr *attr, const u8 *fh,
			u32 fh_len, u64 asked);
/* An inode that is in memory, without waiting; NULL: none. The put is coop_iput_later(). */
struct inode *coop_ilookup(struct super_block *sb, const struct coop_fid *fid);
/* iput() from where sleeping long is not allowed. */
void coop_iput_later(struct inode *inode);
/*
 * Replies come in any order. Who asks takes a ticket first; a reply is believed only if it was
 * asked for after the one that was believed last.
 */
static inline u64 coop_ticket(struct super_block *sb)
{
	return atomic64_inc_return(&coop_sb(sb)->clock);
}
/* Attributes that storage returned. Any context: pages of another content are only marked. */
void coop_attr_learn(struct inode *inode, const struct coop_st_attr *attr, u64 asked);
/* A name of the inode went, or its last one. */
void coop_attr_unlinked(struct inode *inode, bool last);
/*
 * After coop_change_end() or coop_change_end_alone(): what our own change led to. False: another
 * change was seen since, whose attributes are the newer ones.
 */
bool coop_attr_ours(struct inode *inode, const struct coop_st_attr *attr);
/* The attributes are not to be believed any more. */
void coop_attr_expire(struct inode *inode);
/*
 * Asks storage for the attributes if they are old, or in any case. Folio locks may be held. If
 * our own changes are under way it waits for them, so that what is learned is about others'.
 */
int coop_revalidate(struct inode *inode, bool force);
int coop_getattr(struct mnt_idmap *idmap, const struct path *path, struct kstat *stat, u32 mask,
		 unsigned int flags);
int coop_setattr(struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr);
int coop_permission(struct mnt_idmap *idmap, struct inode *inode, int mask);

/* ---- content.c: which version the pages are of ---- */
/* A WRITE under way. */
struct coop_change {
	struct list_head link; /* coop_inode.pending, then the caller's list of settled ones */
	u64 before, after, size;
	bool known;  /* storage said what it did */
	bool waited; /* pending, and waits for the end of the other round */
	u8 round;    /* of coop_change_begin() */
};
void coop_content_learn_locked(struct coop_inode *ci, const struct coop_st_attr *attr);
/* From the reply to an open of what was learned last. */
void coop_content_openers(struct coop_inode *ci, u64 version, const u32 *nodes, u32 n_nodes);
/* Bytes of no proven version are about to come among the pages. */
void coop_content_unproved(struct coop_inode *ci);
/* The rest of a page that is written is zeros, by the size known here: no READ proved it. */
void coop_content_mixes(struct coop_inode *ci);
/*
 * If the pages are not of what storage has, writes the dirty ones and drops the rest. Takes
 * invalidate_lock: no folio lock may be held. 0 also if others keep it from being settled.
 */
int coop_content_settle(struct inode *inode);
static inline int coop_content_fresh(struct inode *inode)
{
	return test_bit(COOP_I_STALE, &coop_i(inode)->flags) ? coop_content_settle(inode) : 0;
}
/* The round goes to the change's end. */
u8 coop_change_begin(struct coop_inode *ci);
/*
 * res: the reply, NULL: it is not known what happened. Adds to 'settled' those changes whose
 * pages may be clean now: their version is the inode's, or the inode has none.
 */
void coop_change_end(struct inode *inode, struct coop_change *change,
		     const struct coop_st_body *res, struct list_head *settled);
/* write.c: ends the writeback of the changes on the list. */
void coop_changes_settled(struct list_head *settled);
/*
 * The end of a change other than by writeback: [from, to] of pages go before the version moves on
 * (from > to: none). truncate: i_size becomes res->attr.size, and i_rwsem is held.
 */
void coop_change_end_alone(struct inode *inode, u8 round, const struct coop_st_body *res,
			   loff_t from, loff_t to, bool truncate);
/*
 * The same for who holds i_rwsem and invalidate_lock since before the change, and has dropped the
 * pages that it is of. i_size becomes that of the reply, if there is one.
 */
void coop_change_end_dropped(struct inode *inode, u8 round, const struct coop_st_body *res);

/* ---- unstable.c: what may be lost until a COMMIT; losses go to the mapping ---- */
/*
 * A change that cannot be repeated from here. wrote: a close commits it.
 */
void coop_unstable_add(struct inode *inode, u64 verifier, bool wrote);
/* The same of attributes alone; they may be of a file that is not open. */
void coop_unstable_attributes(struct inode *inode, u64 verifier);
/* A WRITE of these folios was answered; they are under writeback still. */
void coop_unstable_keep(struct inode *inode, u64 verifier, const struct bio_vec *bvec, u32 n,
			loff_t pos, u32 bytes);
/*
 * A WRITE that is sent now would spare a COMMIT: nothing is owed that a close commits. number: of
 * the last change that it would cover.
 */
bool coop_unstable_coverable(struct inode *inode, u64 *number);
/*
 * It was answered as stable, and so is what it covers. False: of that something may be lost, so a
 * COMMIT has to tell; keep its folios.
 */
bool coop_unstable_covered(struct inode *inode, u64 verifier, u64 number);
/* The file ends there now. */
void coop_unstable_cut(struct inode *inode, loff_t size);
/* All of it, if nobody has the file open any more, who could ask about it. */
void coop_unstable_forget(struct inode *inode);
/* 0: what was answered before is on stable storage, or its loss is in the mapping's error. */
int coop_commit(struct inode *inode);
/* The same, but nobody waits. */
void coop_commit_start(struct inode *inode);
/* Before a lock is given back: nothing of before it is written again from here. */
void coop_unstable_hand_over(struct inode *inode);
/* The same before close, which has no truncation to commit. */
static inline int coop_commit_wrote(struct inode *inode)
{
	return test_bit_acquire(COOP_I_WROTE, &coop_i(inode)->flags) ? coop_commit(inode) : 0;
}
/* The same before folios are dropped that may have to be written again, or are being so. */
static inline int coop_commit_kept(struct inode *inode)
{
	struct coop_inode *ci = coop_i(inode);
	bool any;

	spin_lock(&ci->lock);
	any = ci->n_kept || ci->again;
	spin_unlock(&ci->lock);
	return any ? coop_commit(inode) : 0;
}

/* ---- dir.c, link.c ---- */
extern const struct inode_operations coop_dir_inode_ops, coop_symlink_inode_ops;
/* The name was seen at storage, by a request with that ticket. */
void coop_entry_seen(struct dentry *dentry, u64 asked);
extern const struct file_operations coop_dir_ops;
/* Parts of a listing that was kept. */
void coop_listing_drop_locked(struct coop_inode *ci);
/*
 * Does a name that is being opened mean that file still? Begun before the OPEN is sent, so that
 * they travel together. 0, -EOPENSTALE: another one or none, -errno.
 */
struct coop_name_check {
	struct coop_call *call; /* NULL: nothing to ask */
	const struct cred *who;
	struct dentry *dentry, *parent;
	struct name_snapshot name;
	u64 asked; /* ticket */
};
/* True: it does, by the lease of its directory, where 'who' may search. RCU walks, too. */
bool coop_name_leased(struct dentry *dentry, const struct cred *who);
void coop_name_check_begin(struct coop_name_check *c, struct dentry *dentry,
			   const struct cred *who);
int coop_name_check_end(struct coop_name_check *c, const struct inode *inode);
extern const struct dentry_operations coop_dentry_ops;

/* ---- xattr.c ---- */
extern COOP_XATTR_TABLE coop_xattr_handlers[];
ssize_t coop_listxattr(struct dentry *dentry, char *list, size_t size);
struct posix_acl *coop_get_acl(struct inode *inode, int type, bool rcu);
int coop_set_acl(struct mnt_idmap *idmap, struct coop_acl_owner *owner, struct posix_acl *acl,
		 int type);

/* ---- file.c, reopen.c ---- */
extern const struct file_operations coop_file_ops;
struct coop_file *coop_file_get(struct coop_file *f);
void coop_file_put(struct coop_file *f); /* the last one sends CLOSE */
/* Any open file of the inode with these flags, for I/O that has none of its own. */
struct coop_file *coop_file_find(struct inode *inode, u32 flags);
/* The same file, opened with or without O_APPEND; a reference or ERR_PTR. May ask storage. */
struct coop_file *coop_file_as(struct coop_file *f, bool append);
/* atomic_open's part behind CREATE; the call's reply is used up. */
struct coop_file *coop_file_alloc(struct coop_mount *mount, u32 flags, const struct cred *who);
void coop_file_free(struct coop_file *f);
/*
 * Its OPEN or CREATE was answered. False: by a daemon that has forgotten it since, before it could
 * be opened again with the others; coop_file_open_anew() is next.
 */
bool coop_file_attach(struct coop_file *f, struct inode *inode);
/* Asks for the open file once more, under another id, and attaches it. 0 or -errno. */
int coop_file_open_anew(struct coop_file *f, struct inode *inode);
/*
 * Sends a CLOSE by whatever handle there is: the id is what counts. Nobody waits for it; the call
 * is no more the caller's.
 */
void coop_close_send(struct coop_call *call, struct inode *inode, u64 open_id);
/* The file's own, once. */
void coop_file_send_close(struct coop_file *f, struct inode *inode);
u32 coop_file_flags(unsigned int open_flags);
/* The daemon forgot what is open. */
void coop_files_reopen(struct coop_mount *mount);
int coop_write_init(void);
void coop_write_exit(void);
/* Memory to write back with, a mount's own: one that waits for its storage keeps no other from it.
 */
int coop_write_pool_create(struct coop_mount *m);
void coop_write_pool_destroy(struct coop_mount *m);
/* Reads and writes that pass by the page cache. */
ssize_t coop_direct_read(struct kiocb *iocb, struct iov_iter *to);
ssize_t coop_direct_write(struct kiocb *iocb, struct iov_iter *from);
vm_fault_t coop_page_mkwrite(struct vm_fault *vmf);
/*
 * The end of the file is about to move on from 'end': what stores through a mapping left behind it
 * in its page goes. i_rwsem is held, no folio lock.
 */
void coop_clear_behind(struct address_space *mapping, loff_t end);

/* ---- range.c ---- */
long coop_fallocate(struct file *file, int mode, loff_t offset, loff_t length);
ssize_t coop_copy_file_range(struct file *in, loff_t pos_in, struct file *out, loff_t pos_out,
			     size_t length, unsigned int flags);
loff_t coop_remap_file_range(struct file *in, loff_t pos_in, struct file *out, loff_t pos_out,
			     loff_t length, unsigned int flags);
/* SEEK_DATA, SEEK_HOLE. */
loff_t coop_seek_range(struct file *file, loff_t offset, int whence);

/* ---- lock.c ---- */
int coop_lock(struct file *file, int cmd, struct file_lock *fl);
int coop_flock(struct file *file, int cmd, struct file_lock *fl);
void coop_locks_init(struct coop_locks *l);
/* A push: the wait of that name has its lock. */
void coop_locks_granted(struct coop_mount *m, u64 cookie);
/* A push may have been lost with the last connection. */
void coop_locks_reconnected(struct coop_mount *m);
/*
 * The daemon forgot the session. From begin() to the last put() nothing else is sent; each file
 * that is opened again has its locks asked for by reclaim(). error: of the call that a put() is
 * for.
 */
void coop_locks_reclaim_begin(struct coop_mount *m);
static inline void coop_locks_reclaim_get(struct coop_mount *m)
{
	atomic_inc(&m->locks.reclaims);
}
void coop_locks_reclaim_put(struct coop_mount *m, int error);
void coop_locks_reclaim(struct coop_file *f);

/* ---- address space: read.c, read_storage.c, write.c ---- */
extern const struct address_space_operations coop_aops;
/*
 * Makes a part of the folio dirty, which storage has lost. No folio lock is held. False: it is not
 * in the cache any more.
 */
bool coop_write_again(struct inode *inode, struct folio *folio, size_t from, size_t len);
/*
 * Starts to write what is dirty in [start, end], for who waits for it and then commits. What fails
 * is in the mapping.
 */
void coop_write_to_commit(struct inode *inode, loff_t start, loff_t end);
void coop_readahead(struct readahead_control *rac);
int coop_read_folio(struct file *file, struct folio *folio);
/*
 * For write_begin: brings a locked folio up to date from storage and leaves it locked. 0, -ESTALE:
 * the version went away (unlock, coop_revalidate(inode, true), look the folio up again), -EINTR:
 * the folio is unlocked later by the read; drop the reference only. Other errors: still locked.
 */
int coop_read_locked(struct coop_file *f, struct folio *folio);
/*
 * read_iter returned so many bytes: what no fetch brought counts as served from the buffer.
 * Every byte is counted once: peer or storage when it arrives, buffer when it is read again.
 */
void coop_account_read(struct inode *inode, size_t bytes, u64 us);
/* Whoever is about to change bytes or validity of pages says so first. */
static inline void coop_content_changes(struct coop_inode *ci)
{
	/* Behind the folio's lock: a serve that reads the new number finds the folio locked. */
	smp_mb__before_atomic();
	atomic64_inc(&ci->change);
	/* Before any byte changes; pairs with smp_rmb() of the serve that has yet to look. */
	smp_mb__after_atomic();
}

/* ---- serve.c: peers read our page cache ---- */
extern const struct coop_node_ops coop_serve_ops;

#endif /* COOP_FS_FS_H */
