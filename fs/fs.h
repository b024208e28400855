/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * fs.h - the objects of the file system: a mount, an inode, an open file.
 *
 * Consistency is close-to-open by data version. Storage gives every content of a
 * file a version; equal versions mean equal bytes. The pages of an inode have
 * exactly one version, coop_inode.version. An open that returns another version
 * drops the pages first. Our own writes move the version forward where storage
 * proves that no other change came in between ("before" in its replies).
 *
 * Rule 11 of the page fetch (serve a peer only pages that did not change during
 * the send) rests on coop_inode.change. All code that is about to change bytes or
 * validity of a page (write_begin, page_mkwrite, truncate, invalidation, a new
 * version) increments it first. The responder reads it before the lookup and
 * after the send.
 *
 * Lock order: inode->i_rwsem, mapping->invalidate_lock, folio lock, coop_inode.lock.
 */
#ifndef COOP_FS_FS_H
#define COOP_FS_FS_H

#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/mempool.h>

#include "fs/attr_set.h"
#include "fs/bundle.h"
#include "fs/commit.h"
#include "fs/compat.h"
#include "fs/dirs.h"
#include "fs/lease.h"
#include "fs/locks.h"
#include "fs/silence.h"
#include "fs/storage/storage.h"
#include "ib/ib.h"
#include "stats/stats.h"

#define COOPFS_MAGIC    0x636f6f70   /* "coop" */
#define COOP_READ_UNIT  (256 * 1024) /* bytes of one storage READ of a readahead window */
#define COOP_LIST_PAGES 8            /* for the entries in a reply to READDIR */

struct coop_callers;
struct coop_proc;

enum coop_local_lock { /* locks that only this node's processes see */
		       COOP_LOCAL_FLOCK = 1,
		       COOP_LOCAL_POSIX = 2,
};

/* The mount options; show_options and /proc print them. */
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
	u32 engines;         /* of the node, see ib/shards.c */
	bool tree;           /* take part in the forests of files that several nodes have open */
	bool forward;        /* load for others, too, in these forests */
	u32 wait_timeout_ms; /* for pages on their way to this node's parents */
	bool soft;
	u32 timeo_ds;      /* tenths of a second, as in NFS */
	char *server_addr; /* numeric addresses, if the source has names; else NULL */
	u32 local_lock;    /* enum coop_local_lock */
	bool strict;       /* ask storage for names and attributes each time */
	bool nolease;
	bool bundles; /* fetch what is known of directories that others use too */
};

/* Files in whose forests this node has a place, and those in which it is a leaf; trees in which it
 * is carrier and substitute; its children over all trees. */
struct coop_role_counts {
	u32 files, leaf, carrier, substitute, children;
};

struct coop_mount {
	struct super_block *sb;
	u32 id;                  /* /proc/fs/coopfs/<id> */
	struct coop_options opt; /* tunables change under sb->s_umount */
	struct coop_storage *storage;
	struct coop_shards *shards; /* NULL: no cooperation */
	struct coop_stats stats;
	struct coop_proc *proc;
	u64 cached_pages, cached_inodes;    /* with pages; when they were counted last: */
	unsigned long counted;              /* jiffies */
	struct workqueue_struct *wq;        /* reads that continue at storage, deferred iputs */
	mempool_t *write_pool;              /* of WRITEs under way */
	struct workqueue_struct *direct_wq; /* ends of direct I/O, which wait for work on wq */
	struct llist_head
		unused_inodes; /* deferred iputs of served inodes: iput() may sleep long */
	struct work_struct iput_work;
	atomic_t reads;               /* windows that are being read (read.c), and relays */
	atomic_t relays;              /* loads for peers (relay.c), bounded there */
	bool ending;                  /* no more loads for peers, nor reads from storage */
	wait_queue_head_t reads_gone; /* umount waits for reads and calls */
	atomic_t calls;               /* calls that hold an inode and that no task waits for */
	struct mutex node_lock;       /* orders the daemon's pushes and the node's life */
	atomic64_t clock;             /* of tickets, see coop_ticket() */
	spinlock_t files_lock;
	struct list_head files; /* open at storage, coop_file.opened */
	u32 reopenings;
	spinlock_t roles_lock; /* guards the following two; inside coop_inode.lock */
	int connection;        /* roles told on another one are void */
	struct coop_role_counts roles;
	struct coop_locks locks;
	struct coop_leases leases;
	struct coop_bundles bundles;
	struct coop_dirs dirs;
	struct coop_silence silence;
	struct coop_callers *callers; /* NULL: no task came through an id-mapped mount yet */
};

/*
 * The state of a regular file's clean pages, in two fields under coop_inode.lock, which only
 * content.c changes:
 *
 *   state    version  STALE  the clean pages are                   peers get them
 *   PROVED   not 0    no     all of that version                   yes
 *   MIXED    0        no     good for any reader, not proved       no
 *   FOREIGN  0        yes    older than storage                    no
 *
 *   from              by                                                        to
 *   PROVED            an own change whose 'before' is version: its 'after'      PROVED
 *   PROVED            an own change with another 'before', both are proofs      FOREIGN
 *   PROVED            an own change that failed, or without such proofs         MIXED
 *   PROVED            attributes of another version, no own change under way    FOREIGN
 *   MIXED             the same, if both versions are proofs, or the end moved   FOREIGN
 *   MIXED             an own change alone: 'before' and 'seen' differ, proofs   FOREIGN
 *   any               the loss of a lock: settling drops dirty pages, too         FOREIGN
 *   MIXED, FOREIGN    settling: dirty pages written, all dropped, and 'mixed'   PROVED
 *                     did not move; version becomes 'seen'
 *   MIXED, FOREIGN    settling during which 'mixed' moved                       MIXED
 *   MIXED, FOREIGN    settling that could not drop all pages                    FOREIGN
 *
 * An open settles pages that are not PROVED; reads, writes, faults and mmap settle FOREIGN only.
 *
 * Every cached page is good up to i_size, dirty or not: it has no zeros there that storage does not
 * have. So i_size does not grow over a cached page of the end or behind it because of a reply: the
 * size waits in 'longer' until settling has dropped these pages, which are FOREIGN then unless a
 * change of our own may be the reason. Direct writes drop them before i_size grows; so does a new
 * size, unless 'before' is version. write(2) past 'longer' makes all FOREIGN: others wrote there.
 *
 *   longer            storage's size, if it is more than i_size, which could not follow; else 0
 *   seen, seen_size   the file's version and size in storage's last reply; 0: unknown
 *   believed          replies to requests from before this ticket are older than what is known
 *   judged            ticket of the latest reply that showed whether others changed the content
 *   mixed             moves with every event that makes a settling's result void
 *   losses            counts lost locks; calls that change bytes are void if it has moved
 *   changes           own changes under way: until they end, attributes do not show others' changes
 *   pending           own changes answered before the one that they follow, not settled yet
 *   change            see above; moves before any byte, version or validity changes
 */
struct coop_inode {
	struct inode vfs;
	struct coop_fid fid;   /* never changes */
	u8 fh[COOP_ST_FH_MAX]; /* never changes */
	u32 fh_len;
	atomic64_t change;        /* see above */
	atomic64_t fetched;       /* bytes that arrived and no reader has taken yet */
	spinlock_t lock;          /* guards the following */
	u64 version;              /* data version of the pages; 0: none that storage proved */
	u64 size;                 /* bytes of the file at that version */
	u64 seen, seen_size;      /* of storage's last reply; not of our pages if version is 0 */
	u64 longer;               /* see above */
	u64 believed;             /* ticket of the reply that the attributes are from */
	u64 judged;               /* ticket of the latest reply that showed others' changes */
	u64 mixed;                /* counts events that set version to 0 or add pages without one */
	u32 losses;               /* locks lost; read without the lock, see coop_content_lost() */
	u32 changes;              /* our own changes of content under way */
	u32 in_round[2];          /* the same, by the round in which they began */
	bool crowded;             /* two were under way at once since there was none */
	u8 round;                 /* of changes that begin now */
	bool round_waits;         /* some pending changes wait for the end of the other round */
	struct list_head pending; /* changes answered before the one that they follow */
	wait_queue_head_t quiet;  /* 'changes' became 0 */
	unsigned long flags;      /* COOP_I_*, atomic */
	/* unstable.c: changes that no COMMIT has covered */
	u64 unstable;        /* counts changes that were not stable when answered */
	u64 covered;         /* changes up to this number are covered, or their COMMIT failed */
	u64 loose, verifier; /* of the last change that is not kept: number, 0: none; verifier */
	u64 handed; /* changes up to this number may be another lock holder's: never write again */
	struct list_head kept;    /* struct coop_kept, by number */
	u32 n_kept;               /* folios in 'kept' */
	bool again;               /* a COMMIT took some records and is writing them again */
	unsigned long attr_until; /* jiffies until which the attributes are valid */
	u32 has;                  /* enum coop_st_has */
	unsigned long has_until;  /* jiffies until which bits missing in 'has' are certain */
	u32 traits, traits_known; /* enum coop_st_trait */
	struct timespec64 btime;  /* with COOP_ST_HAS_BTIME */
	/* lease.c: tickets; written under the lock, some are read without it */
	u64 leased_since;            /* 0: we trust no lease */
	u64 judged_since;            /* permissions from before prove nothing */
	u64 lease_broken;            /* replies to requests from before give no lease */
	u32 lease_changes;           /* our own changes under way */
	bool lease_attr;             /* the lease covers the attributes */
	bool lease_used;             /* lately */
	struct list_head lease_link; /* coop_leases.list, under its lock */
	struct coop_lease_users __rcu *lease_users;
	/* lock_keep.c; under coop_locks.lock */
	struct list_head lock_link; /* coop_locks.kept */
	u32 lock_round;
	bool locked;              /* it is on the list; read without the lock */
	struct list_head listing; /* readdir.c: parts of a directory, under a lease */
	u32 listing_bytes;
	struct coop_names *names;     /* names.c: all of a directory, under a lease; or NULL */
	struct coop_bundled *bundled; /* bundle_policy.c: never changes once it is set */
	u32 n_openers;
	u32 openers[COOP_MAX_HINTS]; /* node ids, from the last open of this version */
	struct list_head files;      /* open files, coop_file.link */
	struct list_head windows;    /* pages being read, coop_window.link */
	atomic_t awaited;            /* serves that wait for pages of this file */
	struct coop_roles *roles;    /* roles.c; NULL: none */
	u32 opening;                 /* OPENs under way, whose replies the roles precede */
	/* deferred iput() */
	struct llist_node unused;
	atomic_t unused_refs;
};

enum coop_inode_flag {                /* bits of coop_inode.flags */
		       COOP_I_STALE,  /* another client changed the content of our pages */
		       COOP_I_LOOKUP, /* directory: its entries are being looked up one by one */
		       COOP_I_WROTE,  /* a close has something to commit */
		       COOP_I_LEFT,   /* closed files left something for an fsync to commit */
		       COOP_I_COMMITTING,    /* a bit lock */
		       COOP_I_COMMIT_QUEUED, /* a COMMIT is queued that no task waits for */
		       COOP_I_UNSURE,        /* an own change may still happen: trust no lease */
		       COOP_I_LOST,          /* a lock was lost: no dirty page may go to storage */
		       COOP_I_AGAIN, /* 'handed' is checked and a folio becomes dirty again */
};

/* Does storage know of an open file? See unsaid.c. */
enum coop_said {
	COOP_SAID,
	COOP_UNSAID,  /* no: opened under a lease */
	COOP_TELLING, /* its OPEN is under way */
	COOP_REFUSED, /* no: coop_file.error says why */
};

/* One open at storage; file->private_data. */
struct coop_file {
	struct list_head link;   /* coop_inode.files */
	struct list_head opened; /* coop_mount.files, or another list: see unsaid.c */
	enum coop_said said;     /* under coop_mount.files_lock */
	unsigned long since;     /* jiffies since when it is UNSAID */
	int say_error;           /* of the last attempt, if another one will follow */
	refcount_t refs;         /* the open file; reads and writes under way that name open_id */
	struct inode *inode;     /* a reference to this implies one to the inode */
	const struct cred *cred; /* of the opener, as its mount maps it: for opening again */
	struct work_struct close_late; /* sends CLOSE, if there was no memory at once */
	u64 closing;                   /* ticket of a writer's CLOSE */
	u64 open_id;
	u32 flags;     /* enum coop_st_open_flag */
	int error;     /* of opening again, after the daemon lost the session */
	bool lost;     /* it lost a lock, which another node may have held since */
	u32 reopening; /* value of coop_mount.reopenings when it was last opened */
	/*
	 * The same file opened with the opposite of O_APPEND, which fcntl() can toggle and which
	 * storage executes. Opened at its first use, then never changed.
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

/* Brackets a call that holds an inode and that no task waits for; umount waits for its end. */
static inline void coop_calls_begin(struct coop_mount *m)
{
	atomic_inc(&m->calls);
}

static inline void coop_calls_end(struct coop_mount *m)
{
	if (atomic_dec_and_test(&m->calls))
		wake_up_all(&m->reads_gone);
}

static inline void coop_reads_end(struct coop_mount *m)
{
	if (atomic_dec_and_test(&m->reads))
		wake_up_all(&m->reads_gone);
}

/* A consistent snapshot of a file's content state, for reads. */
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
/* Checks that a remount changes tunable options only; else -EINVAL and a message. */
int coop_options_compare(struct fs_context *fc, const struct coop_options *old);
int coop_inode_cache_init(void);
void coop_inode_cache_exit(void);
int coop_options_parse(struct fs_context *fc, struct fs_parameter *param);
void coop_options_show(struct seq_file *m, const struct coop_options *opt, char separator);
void coop_options_free(struct coop_options *opt);

/*
 * ---- caller.c: the credential for requests to storage ----
 * A returned credential is valid until the task's next call here, and for requests to storage only.
 * -EOVERFLOW: the mount does not map the user; -ENOMEM; -ECHILD: the answer needs to wait.
 */
/* current_cred(), or what the mount maps it to. Notes the mount. RCU walks, without 'wait'. */
const struct cred *coop_caller(struct super_block *sb, struct mnt_idmap *idmap, bool wait);
/* For an operation that does not get its mount: uses the noted one. RCU walks, without 'wait'. */
const struct cred *coop_caller_noted(struct super_block *sb, bool wait);
/*
 * The same for d_revalidate, which an overlay calls as the walking task, after a ->permission as
 * its mounter: the mapped credential in the note, whichever task it is of. No error, never waits.
 */
const struct cred *coop_caller_last(struct super_block *sb);
/* Some tasks use id-mapped mounts, but this task's last ->permission came through a plain one. */
bool coop_caller_unnoted(struct super_block *sb);
/* As coop_caller_noted(), for information that storage gives to every user: never an error. */
const struct cred *coop_caller_any(struct super_block *sb);
/* For the mount that the file was opened through. */
const struct cred *coop_caller_by(const struct file *file);
bool coop_mount_maps(const struct inode *inode, struct mnt_idmap *idmap);
/* Call when no task can use the mount any more. */
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
 * The inode of fid, created if new, with these attributes. May sleep.
 * Return: a reference, ERR_PTR(-ENOMEM), or ERR_PTR(-ESTALE): the type of the file changed.
 */
struct inode *coop_iget(struct super_block *sb, const struct coop_st_attr *attr, const u8 *fh,
			u32 fh_len, u64 asked);
/* An inode that is in memory, without waiting; NULL: none. Put it with coop_iput_later(). */
struct inode *coop_ilookup(struct super_block *sb, const struct coop_fid *fid);
/* iput() for contexts that must not sleep long. */
void coop_iput_later(struct inode *inode);
/*
 * Replies arrive in any order. A request takes a ticket before it is sent; its reply is believed
 * only if its ticket is later than that of the reply that was believed last.
 */
static inline u64 coop_ticket(struct super_block *sb)
{
	return atomic64_inc_return(&coop_sb(sb)->clock);
}
/* Takes attributes that storage returned. Any context: pages of another content are only marked. */
void coop_attr_learn(struct inode *inode, const struct coop_st_attr *attr, u64 asked);
/* A name of the inode was removed, or its last one. */
void coop_attr_unlinked(struct inode *inode, bool last);
/*
 * After coop_change_end() or coop_change_end_alone(): takes the attributes after our own change.
 * False: a later change was seen, whose attributes are newer.
 */
bool coop_attr_ours(struct inode *inode, const struct coop_st_attr *attr);
/* Are they of this inode? */
bool coop_is_of(const struct inode *inode, const struct coop_st_attr *attr);
/* The attributes are no longer valid. */
void coop_attr_expire(struct inode *inode);
/*
 * Asks storage for the attributes if they are old, or always with 'force'. Folio locks may be held.
 * With 'force' it first waits for our own changes, so that the reply shows those of other clients.
 */
int coop_revalidate(struct inode *inode, bool force);
int coop_getattr(struct mnt_idmap *idmap, const struct path *path, struct kstat *stat, u32 mask,
		 unsigned int flags);
int coop_permission(struct mnt_idmap *idmap, struct inode *inode, int mask);
/* Sees to attributes that are good enough to check the caller's rights here. */
int coop_attr_to_judge(struct inode *inode, struct mnt_idmap *idmap);

/* ---- gone.c: directories that other nodes removed ---- */
/*
 * After storage answered ESTALE to GETATTR: 0 if the known attributes are the answer, which then
 * have link count 0; else -ESTALE.
 */
int coop_gone_attributes(struct inode *inode);
/* After another ESTALE: was it removed? May ask storage. */
bool coop_gone(struct inode *inode);
/* The same of a call with a path. False also if the VFS must walk the path again. */
bool coop_gone_known(struct inode *inode);
/* The error of a call that names something in the directory. */
static inline int coop_gone_error(struct inode *dir, int err)
{
	return err == -ESTALE && coop_gone_known(dir) ? -ENOENT : err;
}

/* ---- content.c: the version of the pages ---- */
/* A WRITE under way. */
struct coop_change {
	struct list_head link; /* coop_inode.pending, then the caller's list of settled changes */
	u64 before, after, size;
	bool known;  /* the reply has the version before */
	bool waited; /* pending, and waits for the end of the other round */
	u8 round;    /* of coop_change_begin() */
};
void coop_content_learn_locked(struct coop_inode *ci, const struct coop_st_attr *attr, u64 asked);
/*
 * Storage's file has that size; i_size follows if it is less. If a page of the end is cached,
 * 'longer' keeps the size, and the attributes expire.
 */
void coop_size_grows_locked(struct coop_inode *ci, u64 size);
/* write(2) brought bytes up to 'end'. */
void coop_size_written_locked(struct coop_inode *ci, loff_t end);
/* Takes the openers of that version from the reply to an open. */
void coop_content_openers(struct coop_inode *ci, u64 version, const u32 *nodes, u32 n_nodes);
/* Bytes without a proven version are about to enter the page cache. */
void coop_content_unproved(struct coop_inode *ci);
/* A partly written page is filled with zeros because of the size known here, without a READ. */
void coop_content_mixes(struct coop_inode *ci);
/*
 * If the pages do not have storage's version, writes the dirty ones and drops the rest. Takes
 * invalidate_lock: no folio lock may be held. Returns 0 also if other tasks prevent the settling.
 */
int coop_content_settle(struct inode *inode);
/*
 * The same for an open or a lock, whose reader must see all that other clients changed before the
 * request with the ticket 'since'. It may ask storage, and wait for our own changes for a second.
 */
void coop_content_catch_up(struct inode *inode, u64 since);
/* A lock on the file was lost: nothing that was written here before may go to storage any more. */
void coop_content_lost(struct coop_inode *ci);
static inline int coop_content_fresh(struct inode *inode)
{
	return test_bit(COOP_I_STALE, &coop_i(inode)->flags) ? coop_content_settle(inode) : 0;
}
/* Call before i_size is shown to a caller: lets it follow storage, if a reply has told so. */
static inline void coop_size_settle(struct inode *inode)
{
	struct coop_inode *ci = coop_i(inode);

	if (READ_ONCE(ci->longer) && test_bit(COOP_I_STALE, &ci->flags))
		coop_content_settle(inode);
}
/* Returns the round, which the end of the change needs. */
u8 coop_change_begin(struct coop_inode *ci);
/*
 * res: the reply; NULL: the outcome is unknown. Adds to 'settled' the changes whose pages may be
 * clean now: the inode has their version, or none.
 */
void coop_change_end(struct inode *inode, struct coop_change *change,
		     const struct coop_st_body *res, struct list_head *settled);
/* write.c: ends the writeback of the changes on the list. */
void coop_changes_settled(struct list_head *settled);
/*
 * The end of a change other than writeback: drops the pages of [from, to] before the version
 * changes (from > to: none). end: the file reaches at least to there now; i_rwsem is held if that
 * is behind i_size. truncate: i_size becomes res->attr.size, and i_rwsem is held.
 */
void coop_change_end_alone(struct inode *inode, u8 round, const struct coop_st_body *res,
			   loff_t from, loff_t to, loff_t end, bool truncate);
/*
 * The same for a caller that has held i_rwsem and invalidate_lock since before the change, and has
 * dropped the changed pages. i_size becomes that of the reply, if there is one.
 */
void coop_change_end_dropped(struct inode *inode, u8 round, const struct coop_st_body *res);

/* ---- commit.h, for an inode that may have nothing to commit ---- */
/* Commits before a close, which need not commit a truncation. */
static inline int coop_commit_wrote(struct inode *inode)
{
	return test_bit_acquire(COOP_I_WROTE, &coop_i(inode)->flags) ? coop_commit(inode) : 0;
}
/* Commits before folios are dropped that may have to be written again, or are being so. */
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
/* A request with that ticket has seen the name at storage. */
void coop_entry_seen(struct dentry *dentry, u64 asked);
extern const struct file_operations coop_dir_ops;
/*
 * Keeps the entries of one READDIR from that cookie on, as coop_st_dirent_put() encodes them, at
 * most COOP_LIST_PAGES. asked: ticket. They end with the directory's lease.
 */
void coop_listing_keep(struct inode *dir, u64 asked, u64 cookie, const void *entries, u32 len,
		       bool end);
/* Drops the kept parts of a directory's listing, and all that is known of its names. */
void coop_listing_drop_locked(struct coop_inode *ci);
/* The target of a link never changes: keeps it, where path walks find it. 0, -EIO, -ENOMEM. */
int coop_link_keep(struct inode *inode, const struct coop_st_bytes *target);
/*
 * Checks whether a name that is being opened still means that file. begin() comes before the OPEN
 * is sent, so that both travel together. end(): 0, -EOPENSTALE: another file or none, -errno.
 */
struct coop_name_check {
	struct coop_call *call; /* NULL: nothing to ask */
	const struct cred *who;
	struct dentry *dentry, *parent;
	struct name_snapshot name;
	u64 asked; /* ticket */
};
/* True: the lease of its directory, where 'who' may search, covers the name. RCU walks, too. */
bool coop_name_leased(struct dentry *dentry, const struct cred *who);
void coop_name_check_begin(struct coop_name_check *c, struct dentry *dentry,
			   const struct cred *who);
int coop_name_check_end(struct coop_name_check *c, const struct inode *inode);
extern const struct dentry_operations coop_dentry_ops;

/* ---- xattr.c ---- */
extern COOP_XATTR_TABLE coop_xattr_handlers[];
ssize_t coop_listxattr(struct dentry *dentry, char *list, size_t size);
/* setattr_prepare(), but a capability that storage does not let the caller remove is no error. */
int coop_setattr_prepare(struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr);
struct posix_acl *coop_get_acl(struct inode *inode, int type, bool rcu);
int coop_set_acl(struct mnt_idmap *idmap, struct coop_acl_owner *owner, struct posix_acl *acl,
		 int type);

/* ---- file.c, reopen.c ---- */
extern const struct file_operations coop_file_ops;
struct coop_file *coop_file_get(struct coop_file *f);
void coop_file_put(struct coop_file *f); /* the last put sends CLOSE */
/* An open file that lost a lock must not touch bytes that another node may have locked since. */
static inline bool coop_file_lost(const struct file *file)
{
	const struct coop_file *f = file->private_data;

	return READ_ONCE(f->lost);
}
static inline int coop_file_not_lost(const struct file *file)
{
	return coop_file_lost(file) ? -EIO : 0;
}
/* The call changes bytes for that open file: it is void if a lock of the inode is lost from here
 * on, or the file has lost one before. */
static inline void coop_call_fence(struct coop_call *call, const struct file *file)
{
	call->fence = &coop_i(file_inode(file))->losses;
	/* Pairs with coop_content_lost(): with the new number we see the mark of the file. */
	call->fence_at = smp_load_acquire(call->fence);
	if (coop_file_lost(file))
		call->fence_at--;
}
/* Any open file of the inode with these flags, for I/O without an open file of its own. */
struct coop_file *coop_file_find(struct inode *inode, u32 flags);
/*
 * The same to read for a peer, which may take long. Prefers one without WRITE, because a writer's
 * close counts for other nodes: it should not wait.
 */
struct coop_file *coop_file_find_reader(struct inode *inode);
/* The same file, opened with or without O_APPEND; a reference or ERR_PTR. May ask storage. */
struct coop_file *coop_file_as(struct coop_file *f, bool append);
/*
 * Dirty pages are written in place. A file that was opened with O_APPEND is opened without it as
 * well, and keeps that open file. 0 or -errno.
 */
int coop_file_plain(struct coop_file *f);
/* An open file that is not attached to an inode yet, for OPEN, CREATE and TMPFILE. */
struct coop_file *coop_file_alloc(struct coop_mount *mount, u32 flags, const struct cred *who);
void coop_file_free(struct coop_file *f);
/*
 * Its OPEN or CREATE was answered. False: the daemon has restarted since and forgotten it, before
 * it could be opened again with the others; call coop_file_open_anew() next.
 */
bool coop_file_attach(struct coop_file *f, struct inode *inode);
/* Opens the file once more, under another id, and attaches it. 0 or -errno. */
int coop_file_open_anew(struct coop_file *f, struct inode *inode);
/*
 * Sends a CLOSE without waiting for its reply. The inode may be any: only the open id counts. May
 * wait for memory, but does not fail.
 */
void coop_close_send(struct inode *inode, u64 open_id);
/* The same, for ends of calls: waits for nothing. Without memory the file stays open at storage. */
void coop_close_send_now(struct inode *inode, u64 open_id);
u32 coop_file_flags(unsigned int open_flags);
/* The daemon forgot the open files: opens them again. */
void coop_files_reopen(struct coop_mount *mount);
int coop_write_init(void);
void coop_write_exit(void);
/* A mount's own memory for writeback: a mount that waits for its storage does not block others. */
int coop_write_pool_create(struct coop_mount *m);
void coop_write_pool_destroy(struct coop_mount *m);
/* Reads and writes that bypass the page cache. */
ssize_t coop_direct_read(struct kiocb *iocb, struct iov_iter *to);
ssize_t coop_direct_write(struct kiocb *iocb, struct iov_iter *from);
/* A page of a mapping is about to be stored to. The caller has settled FOREIGN pages. */
vm_fault_t coop_page_mkwrite(struct vm_fault *vmf);
/*
 * The file is about to grow from 'end'; i_rwsem is held, no folio lock. If stores through a mapping
 * have made the page of the end dirty up to its last byte, writes its bytes before 'end' now, and
 * returns true: what is behind, zeros and lost stores, must not become bytes of the file.
 */
bool coop_write_before(struct address_space *mapping, loff_t end);

/* ---- mapping.c ---- */
int coop_mmap(struct file *file, struct vm_area_struct *vma);

/* ---- range.c ---- */
long coop_fallocate(struct file *file, int mode, loff_t offset, loff_t length);
ssize_t coop_copy_file_range(struct file *in, loff_t pos_in, struct file *out, loff_t pos_out,
			     size_t length, unsigned int flags);
loff_t coop_remap_file_range(struct file *in, loff_t pos_in, struct file *out, loff_t pos_out,
			     loff_t length, unsigned int flags);
/*
 * Before storage changes [from, to]: drops the pages of this range; from > to: none. Writes all
 * dirty pages, which may move the end. Commits kept bytes first: if storage restarted without them,
 * they would be written again over the change. invalidate_lock is held until the change is over.
 * 0 or -errno.
 */
int coop_range_drop(struct inode *inode, loff_t from, loff_t to);
/* SEEK_DATA, SEEK_HOLE. */
loff_t coop_seek_range(struct file *file, loff_t offset, int whence);

/* ---- address space: read.c, read_storage.c, write.c ---- */
extern const struct address_space_operations coop_aops;
/*
 * Makes a part of the folio dirty again that storage has lost. No folio lock is held. False: the
 * folio is not in the cache any more.
 */
bool coop_write_again(struct inode *inode, struct folio *folio, size_t from, size_t len);
/*
 * Starts to write the dirty pages of [start, end], for a caller that waits for them and then
 * commits. Errors go to the mapping.
 */
void coop_write_to_commit(struct inode *inode, loff_t start, loff_t end);
void coop_readahead(struct readahead_control *rac);
int coop_read_folio(struct file *file, struct folio *folio);
/*
 * For write_begin: reads a locked folio from storage and leaves it locked. 0; -ESTALE: the version
 * changed (unlock, coop_revalidate(inode, true), look the folio up again); -EINTR: the read unlocks
 * the folio later, only drop the reference. After other errors the folio is still locked.
 */
int coop_read_locked(struct coop_file *f, struct folio *folio);
/*
 * read_iter returned so many bytes: those that did not just arrive count as read from the buffer.
 * Each byte counts once: as peer or storage when it arrives, as buffer when it is read again.
 */
void coop_account_read(struct inode *inode, size_t bytes, u64 us);
/* Call this before changing bytes or validity of pages. */
static inline void coop_content_changes(struct coop_inode *ci)
{
	/* After the folio lock: a serve that reads the new number finds the folio locked. */
	smp_mb__before_atomic();
	atomic64_inc(&ci->change);
	/* Before any byte changes; pairs with smp_rmb() in the lookup of a serve. */
	smp_mb__after_atomic();
}

/* ---- roles.c: this node's place in the forests of its files ---- */
struct coop_place {
	u32 parent, alternate; /* node ids; 0: none */
	u32 level;
};
/* A push. Context: must not wait. */
void coop_roles_learn(struct coop_mount *m, const struct coop_fid *fid, u64 version,
		      const struct coop_st_roles *roles);
/* The connection on which they were told is lost. */
void coop_roles_lost(struct coop_mount *m);
/* Between begin() and end() the roles stay also while the file is not open. */
void coop_roles_opening_begin(struct coop_inode *ci);
void coop_roles_opening_end(struct coop_inode *ci);
void coop_roles_count(struct coop_mount *m, struct coop_role_counts *out);
/* Frees the roles of a file that is not open, and not being opened. */
void coop_roles_trim_locked(struct coop_inode *ci);
void coop_roles_evict(struct coop_inode *ci);
/* The place in the tree of the page's unit; false: the node has none, in that version. */
bool coop_roles_place(struct coop_inode *ci, u64 version, u64 index, struct coop_place *out);

/* The text of the attribute coopfs.forest, less than PAGE_SIZE bytes; returns its length. */
size_t coop_roles_text(struct inode *inode, char *text);

/* ---- serve.c: peers read our page cache ---- */
extern const struct coop_node_ops coop_serve_ops;

#endif /* COOP_FS_FS_H */
