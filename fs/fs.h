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

#include "fs/compat.h"
#include "fs/storage.h"
#include "ib/ib.h"
#include "proc/stats.h"

#define COOPFS_MAGIC   0x636f6f70   /* "coop" */
#define COOP_READ_UNIT (256 * 1024) /* bytes of one storage READ of a readahead window */

struct coop_proc;

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
	bool ib; /* exchange pages with peers */
	struct coop_node_cfg node;
	bool soft;
	u32 timeo_ms;
};

struct coop_mount {
	struct super_block *sb;
	u32 id;                  /* /proc/fs/coopfs/<id> */
	struct coop_options opt; /* tunables change under sb->s_umount */
	struct coop_storage *storage;
	struct coop_node *node; /* NULL: no cooperation */
	struct coop_stats stats;
	struct coop_proc *proc;
	struct workqueue_struct *wq; /* reads that go on to storage, put-off iputs */
	struct llist_head
		unused_inodes; /* inodes that serving is done with: iput() may sleep long */
	struct work_struct iput_work;
	atomic_t reads; /* windows that are being read (read.c) */
	wait_queue_head_t reads_gone;
	/* root, as the handshake gave it */
	u8 root_fh[COOP_ST_FH_MAX];
	u32 root_fh_len;
};

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
	unsigned long attr_until; /* jiffies until which the attributes are believed */
	u32 n_openers;
	u32 openers[COOP_MAX_HINTS]; /* node ids, from the last open of this version */
	struct list_head files;      /* open files, coop_file.link */
	int write_error;             /* of writeback, for the next fsync or close */
};

/* file->private_data. */
struct coop_file {
	struct list_head link; /* coop_inode.files */
	refcount_t refs;       /* the open file; reads and writes under way that name open_id */
	struct inode *inode;
	u64 open_id;
	u32 flags; /* enum coop_st_open_flag */
	int error; /* of re-opening, after the daemon lost the session */
};

static inline struct coop_mount *coop_sb(const struct super_block *sb)
{
	return sb->s_fs_info;
}

static inline struct coop_inode *coop_i(const struct inode *inode)
{
	return container_of(inode, struct coop_inode, vfs);
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
int coop_inode_cache_init(void);
void coop_inode_cache_exit(void);
int coop_options_parse(struct fs_context *fc, struct fs_parameter *param);
int coop_options_source(struct fs_context *fc, struct coop_options *opt);
void coop_options_show(struct seq_file *m, const struct coop_options *opt, char separator);
void coop_options_free(struct coop_options *opt);

/* ---- inode.c ---- */
extern const struct inode_operations coop_file_inode_ops;
/*
 * The inode of fid, made if new, its attributes brought up to date. May sleep.
 * Return: a reference, ERR_PTR(-ENOMEM), or ERR_PTR(-ESTALE): another type of file under one fid.
 */
struct inode *coop_iget(struct super_block *sb, const struct coop_st_attr *attr, const u8 *fh,
			u32 fh_len);
/* An inode that is in memory, without waiting; NULL: none. The put is coop_iput_later(). */
struct inode *coop_ilookup(struct super_block *sb, const struct coop_fid *fid);
/* iput() from where sleeping long is not allowed. */
void coop_iput_later(struct inode *inode);
/*
 * Attributes that storage returned. 'before': the data version before the change that this reply
 * is about, 0 if none or not known. Invalidates pages if the content is another than ours.
 */
void coop_attr_update(struct inode *inode, const struct coop_st_attr *attr, u64 before, bool ours);
int coop_revalidate(struct inode *inode, bool force);
int coop_getattr(struct user_namespace *ns, const struct path *path, struct kstat *stat, u32 mask,
		 unsigned int flags);
int coop_setattr(struct user_namespace *ns, struct dentry *dentry, struct iattr *attr);
int coop_permission(struct user_namespace *ns, struct inode *inode, int mask);

/* ---- dir.c, link.c ---- */
extern const struct inode_operations coop_dir_inode_ops, coop_symlink_inode_ops;
extern const struct file_operations coop_dir_ops;
extern const struct dentry_operations coop_dentry_ops;

/* ---- file.c ---- */
extern const struct file_operations coop_file_ops;
struct coop_file *coop_file_get(struct coop_file *f);
void coop_file_put(struct coop_file *f); /* the last one sends CLOSE */
/* Any open file of the inode with these flags, for I/O that has none of its own. */
struct coop_file *coop_file_find(struct inode *inode, u32 flags);

/* ---- address space: read.c, read_storage.c, write.c ---- */
extern const struct address_space_operations coop_aops;
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
/* Waits until no read is under way: before the node, the wq and the storage connection go. */
void coop_reads_drain(struct coop_mount *mount);
/* Whoever is about to change bytes or validity of pages says so first. */
static inline void coop_content_changes(struct coop_inode *ci)
{
	atomic64_inc(&ci->change);
	smp_mb__after_atomic();
}

/* ---- serve.c: peers read our page cache ---- */
extern const struct coop_node_ops coop_serve_ops;

#endif /* COOP_FS_FS_H */
