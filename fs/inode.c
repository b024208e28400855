// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * inode.c - inodes by their storage identity, and how long their attributes are valid.
 *
 * An inode is found by coop_fid. Its attributes are valid for a time that grows with
 * the age of the last change (ATTR_MIN to ATTR_MAX), as in NFS. An open asks storage
 * anyway (file.c), and our own changes refresh or expire the attributes at once. While
 * pages are dirty we determine the end of the file, and storage can only move it
 * further out, when the pages of the end have been dropped (fs.h).
 *
 * Serving a peer uses inodes without their locks. So the lookup for it must not wait
 * for an inode that is being freed (whose pages may wait for this very thread), and the
 * last reference may have to be dropped where we must not sleep.
 */
#include <linux/fs.h>
#include <linux/posix_acl.h>
#include <linux/slab.h>
#include <linux/writeback.h>

#include "fs/fs.h"

#define ATTR_MIN (1 * HZ)
#define ATTR_MAX (30 * HZ)

static struct kmem_cache *inode_cache;

/* ---- memory -------------------------------------------------------------------- */

struct inode *coop_alloc_inode(struct super_block *sb)
{
	struct coop_inode *ci = alloc_inode_sb(sb, inode_cache, GFP_KERNEL);

	if (!ci)
		return NULL;
	memset_after(ci, 0, vfs);
	spin_lock_init(&ci->lock);
	INIT_LIST_HEAD(&ci->pending);
	INIT_LIST_HEAD(&ci->files);
	INIT_LIST_HEAD(&ci->windows);
	INIT_LIST_HEAD(&ci->kept);
	INIT_LIST_HEAD(&ci->lease_link);
	INIT_LIST_HEAD(&ci->lock_link);
	INIT_LIST_HEAD(&ci->listing);
	init_waitqueue_head(&ci->quiet);
	return &ci->vfs;
}

/* Called after a grace period: path walks read i_link without a reference. */
void coop_free_inode(struct inode *inode)
{
	if (S_ISLNK(inode->i_mode))
		kfree(inode->i_link);
	coop_lease_free(coop_i(inode));
	kfree(coop_i(inode)->bundled);
	kmem_cache_free(inode_cache, coop_i(inode));
}

void coop_evict_inode(struct inode *inode)
{
	truncate_inode_pages_final(&inode->i_data);
	clear_inode(inode);
	coop_lease_evict(inode);
	coop_locks_evict(inode);
	coop_roles_evict(coop_i(inode));
	WARN_ON_ONCE(!list_empty(&coop_i(inode)->files) || !list_empty(&coop_i(inode)->kept));
	WARN_ON_ONCE(!list_empty(&coop_i(inode)->windows));
}

static void coop_inode_init_once(void *p)
{
	struct coop_inode *ci = p;

	inode_init_once(&ci->vfs);
}

int coop_inode_cache_init(void)
{
	inode_cache = kmem_cache_create("coopfs_inode", sizeof(struct coop_inode), 0,
					COOP_SLAB_INODE, coop_inode_init_once);
	return inode_cache ? 0 : -ENOMEM;
}

void coop_inode_cache_exit(void)
{
	rcu_barrier(); /* waits for inodes that RCU has yet to free */
	kmem_cache_destroy(inode_cache);
}

/* ---- finding ------------------------------------------------------------------- */

static int fid_test(struct inode *inode, void *data)
{
	const struct coop_fid *fid = data;

	return coop_i(inode)->fid.hi == fid->hi && coop_i(inode)->fid.lo == fid->lo;
}

static int fid_set(struct inode *inode, void *data)
{
	coop_i(inode)->fid = *(const struct coop_fid *)data;
	return 0;
}

static void inode_set_type(struct inode *inode, const struct coop_st_attr *attr)
{
	inode->i_mode = attr->mode;
	inode->i_flags |= S_NOATIME | S_NOCMTIME; /* storage's clock sets the times */
	switch (attr->mode & S_IFMT) {
	case S_IFREG:
		inode->i_op = &coop_file_inode_ops;
		inode->i_fop = &coop_file_ops;
		inode->i_mapping->a_ops = &coop_aops;
		mapping_set_gfp_mask(inode->i_mapping, GFP_HIGHUSER_MOVABLE);
		break;
	case S_IFDIR:
		inode->i_op = &coop_dir_inode_ops;
		inode->i_fop = &coop_dir_ops;
		break;
	case S_IFLNK:
		inode->i_op = &coop_symlink_inode_ops;
		break;
	default:
		inode->i_op = &coop_file_inode_ops;
		init_special_inode(inode, attr->mode, new_decode_dev(attr->rdev));
		break;
	}
}

static void attr_learn(struct inode *inode, const struct coop_st_attr *attr, u64 asked);

struct inode *coop_iget(struct super_block *sb, const struct coop_st_attr *attr, const u8 *fh,
			u32 fh_len, u64 asked)
{
	struct coop_fid fid = attr->fid;
	struct coop_inode *ci;
	struct inode *inode;

	if (!fh_len || fh_len > COOP_ST_FH_MAX)
		return ERR_PTR(-EIO);
	inode = iget5_locked(sb, (unsigned long)fid.lo, fid_test, fid_set, &fid);
	if (!inode)
		return ERR_PTR(-ENOMEM);
	ci = coop_i(inode);
	if (!(inode->i_state & I_NEW) && inode_wrong_type(inode, attr->mode)) {
		/* The identity was reused: unhash the old inode, which its users may keep. */
		remove_inode_hash(inode);
		iput(inode);
		return ERR_PTR(-ESTALE);
	}
	if (inode->i_state & I_NEW) {
		inode->i_ino = attr->ino;
		memcpy(ci->fh, fh, fh_len);
		ci->fh_len = fh_len;
		inode_set_type(inode, attr);
		attr_learn(inode, attr, asked);
		unlock_new_inode(inode);
		/* Only now can a recall find the inode. */
		coop_lease_learn(inode, attr, asked);
	} else {
		coop_attr_learn(inode, attr, asked);
	}
	return inode;
}

struct inode *coop_ilookup(struct super_block *sb, const struct coop_fid *fid)
{
	struct inode *inode;

	rcu_read_lock();
	inode = find_inode_rcu(sb, (unsigned long)fid->lo, fid_test, (void *)fid);
	if (inode && (READ_ONCE(inode->i_state) & I_NEW || !igrab(inode)))
		inode = NULL;
	rcu_read_unlock();
	return inode;
}

void coop_iput_later(struct inode *inode)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);

	if (atomic_add_unless(&inode->i_count, -1, 1))
		return;
	if (atomic_inc_return(&ci->unused_refs) == 1 && llist_add(&ci->unused, &m->unused_inodes))
		queue_work(m->wq, &m->iput_work);
}

/* ---- attributes ---------------------------------------------------------------- */

static struct timespec64 time_of(const struct coop_st_time *t)
{
	return (struct timespec64){.tv_sec = t->sec, .tv_nsec = t->nsec};
}

static unsigned long attr_lifetime(const struct inode *inode)
{
	struct timespec64 now;
	s64 age;

	if (coop_sb(inode->i_sb)->opt.strict)
		return 0;
	ktime_get_real_ts64(&now);
	age = now.tv_sec - max(inode_get_mtime_sec(inode), inode_get_ctime_sec(inode));
	return max_t(unsigned long, ATTR_MIN, clamp_t(s64, age, 0, ATTR_MAX / HZ * 10) * HZ / 10);
}

static bool has_dirty_pages(struct inode *inode)
{
	return mapping_tagged(inode->i_mapping, PAGECACHE_TAG_DIRTY) ||
	       mapping_tagged(inode->i_mapping, PAGECACHE_TAG_WRITEBACK);
}

/*
 * cuts: accept a smaller size. Without it the reply is to our own write; such replies arrive in any
 * order, so a smaller size is an older one, or another client truncated the file: expire the
 * attributes.
 */
static void apply_locked(struct inode *inode, const struct coop_st_attr *attr, bool cuts)
{
	struct coop_inode *ci = coop_i(inode);
	bool dirty;

	lockdep_assert_held(&ci->lock);
	inode->i_mode = attr->mode;
	set_nlink(inode, attr->nlink);
	i_uid_write(inode, attr->uid);
	i_gid_write(inode, attr->gid);
	inode->i_blocks = attr->blocks;
	inode_set_atime_to_ts(inode, time_of(&attr->atime));
	dirty = S_ISREG(inode->i_mode) && (ci->changes || has_dirty_pages(inode));
	if (!dirty) {
		inode_set_mtime_to_ts(inode, time_of(&attr->mtime));
		inode_set_ctime_to_ts(inode, time_of(&attr->ctime));
	}
	ci->attr_until = jiffies + attr_lifetime(inode);
	if ((ci->has | attr->has) & (COOP_ST_HAS_ACL | COOP_ST_HAS_DEFAULT_ACL))
		forget_all_cached_acls(inode);
	ci->has = attr->has;
	ci->has_until = ci->attr_until;
	ci->btime = time_of(&attr->btime);
	ci->traits = attr->traits;
	ci->traits_known = attr->traits_known;
	coop_size_grows_locked(ci, attr->size);
	if (!dirty && attr->size < i_size_read(inode)) {
		if (cuts)
			i_size_write(inode, attr->size);
		else
			ci->attr_until = jiffies - 1;
	}
}

static void attr_learn(struct inode *inode, const struct coop_st_attr *attr, u64 asked)
{
	struct coop_inode *ci = coop_i(inode);

	spin_lock(&ci->lock);
	if (asked >= ci->believed && !inode_wrong_type(inode, attr->mode)) {
		ci->believed = asked;
		apply_locked(inode, attr, true);
		if (S_ISREG(inode->i_mode))
			coop_content_learn_locked(ci, attr, asked);
	}
	spin_unlock(&ci->lock);
}

void coop_attr_learn(struct inode *inode, const struct coop_st_attr *attr, u64 asked)
{
	attr_learn(inode, attr, asked);
	coop_lease_learn(inode, attr, asked);
}

bool coop_attr_ours(struct inode *inode, const struct coop_st_attr *attr)
{
	struct coop_inode *ci = coop_i(inode);
	bool known = true;

	spin_lock(&ci->lock);
	/* Replies to several changes come in any order: use only the one of the last change. */
	if (!inode_wrong_type(inode, attr->mode) &&
	    (!S_ISREG(inode->i_mode) || attr->version == ci->seen))
		/* coop_change_end_alone() has set the size after a truncation. */
		apply_locked(inode, attr, !S_ISREG(inode->i_mode));
	else
		known = false;
	spin_unlock(&ci->lock);
	return known;
}

void coop_attr_unlinked(struct inode *inode, bool last)
{
	struct coop_inode *ci = coop_i(inode);

	spin_lock(&ci->lock);
	ci->believed = coop_ticket(inode->i_sb); /* ignore the reply to a CLOSE under way */
	if (last)
		clear_nlink(inode);
	else if (inode->i_nlink)
		drop_nlink(inode);
	spin_unlock(&ci->lock);
}

void coop_attr_expire(struct inode *inode)
{
	WRITE_ONCE(coop_i(inode)->lease_attr, false);
	WRITE_ONCE(coop_i(inode)->attr_until, jiffies - 1);
}

static bool attr_fresh(struct inode *inode)
{
	if (time_before(jiffies, READ_ONCE(coop_i(inode)->attr_until)))
		return true;
	if (!coop_lease_attr(inode))
		return false;
	coop_count(&coop_sb(inode->i_sb)->stats, COOP_C_LEASE_ATTRIBUTES, 1);
	return true;
}

bool coop_is_of(const struct inode *inode, const struct coop_st_attr *attr)
{
	const struct coop_fid *fid = &coop_i(inode)->fid;

	return attr->fid.hi == fid->hi && attr->fid.lo == fid->lo &&
	       !inode_wrong_type(inode, attr->mode);
}

static int ask_attr(struct inode *inode)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	struct coop_call *call = coop_call_alloc(m->storage, COOP_ST_GETATTR);
	const u64 asked = coop_ticket(inode->i_sb);
	int err;

	if (!call)
		return -ENOMEM;
	coop_call_cred(call, coop_caller_any(inode->i_sb));
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	err = coop_call_run(call);
	if (!err && !coop_is_of(inode, &call->res.attr))
		err = -ESTALE;
	if (!err)
		coop_attr_learn(inode, &call->res.attr, asked);
	coop_call_put(call);
	/* The known attributes may be all that we can get. */
	return err == -ESTALE ? coop_gone_attributes(inode) : err;
}

/* For df(1) and stat(1) of the mount's top: answers while the daemon is silent, too. */
static int ask_attr_of_top(struct inode *inode)
{
	return inode == d_inode(inode->i_sb->s_root) ? coop_ask_attr_shortly(inode)
						     : ask_attr(inode);
}

int coop_revalidate(struct inode *inode, bool force)
{
	struct coop_inode *ci = coop_i(inode);
	int err;

	if (!force && attr_fresh(inode))
		return 0;
	if (force && S_ISREG(inode->i_mode)) {
		/* Without a version reads ask for none, and there is nothing to wait for. */
		long left = wait_event_killable_timeout(
			ci->quiet, !READ_ONCE(ci->changes) || !READ_ONCE(ci->version), HZ);

		if (left < 0)
			return left;
		if (!left) /* a task on this node writes without a pause */
			coop_content_unproved(ci);
	}
	err = ask_attr(inode);
	return err;
}

/* Adds the attributes that a VFS inode has no fields for. */
static void stat_beyond_inode(struct inode *inode, u32 mask, struct kstat *stat)
{
	struct coop_inode *ci = coop_i(inode);

	BUILD_BUG_ON(COOP_ST_TRAIT_ALL !=
		     (STATX_ATTR_COMPRESSED | STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND |
		      STATX_ATTR_NODUMP | STATX_ATTR_ENCRYPTED | STATX_ATTR_VERITY));
	spin_lock(&ci->lock);
	if (ci->has & COOP_ST_HAS_BTIME) {
		stat->btime = ci->btime;
		stat->result_mask |= STATX_BTIME;
	}
	stat->attributes |= ci->traits;
	stat->attributes_mask |= ci->traits_known;
	spin_unlock(&ci->lock);
	/* Direct I/O needs no alignment (direct.c). */
	if (S_ISREG(inode->i_mode) && mask & COOP_STATX_DIOALIGN)
		coop_stat_dio(stat, 1, 1);
}

int coop_getattr(struct mnt_idmap *idmap, const struct path *path, struct kstat *stat, u32 mask,
		 unsigned int flags)
{
	struct inode *inode = d_inode(path->dentry);
	int err = 0;

	switch (flags & AT_STATX_SYNC_TYPE) {
	case AT_STATX_DONT_SYNC:
		break;
	case AT_STATX_FORCE_SYNC:
		if (S_ISREG(inode->i_mode))
			err = filemap_write_and_wait(inode->i_mapping);
		if (!err)
			err = ask_attr(inode);
		break;
	default:
		if (!attr_fresh(inode))
			err = ask_attr_of_top(inode);
		break;
	}
	if (err)
		return err;
	if ((flags & AT_STATX_SYNC_TYPE) != AT_STATX_DONT_SYNC)
		coop_size_settle(inode);
	coop_fillattr(idmap, mask, inode, stat);
	stat_beyond_inode(inode, mask, stat);
	return 0;
}

/* Asks storage, which knows how the export maps the caller, and rules beyond mode and ACL. */
static int ask_access(struct inode *inode, const struct cred *who, u32 wanted)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	struct coop_call *call = coop_call_alloc(m->storage, COOP_ST_ACCESS);
	const u64 asked = coop_ticket(inode->i_sb);
	int err;

	if (!call)
		return -ENOMEM;
	coop_call_cred(call, who);
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.mode = wanted;
	err = coop_call_run(call);
	if (!err && wanted & ~call->res.mode)
		err = -EACCES;
	if (!err)
		coop_lease_allow(inode, who, COOP_MAY_ACCESS * wanted, asked);
	coop_call_put(call);
	return err == -ESTALE && coop_gone_known(inode) ? 0 : err; /* the known mode permits it */
}

/*
 * User 0 has all rights at storage. If a mount maps another user to user 0, only this node can
 * check that user's rights, and needs the present owner and mode for it.
 */
static bool judged_here(const struct inode *inode, struct mnt_idmap *idmap, const struct cred *who)
{
	return coop_mount_maps(inode, idmap) && !IS_ERR(who) &&
	       uid_eq(who->fsuid, GLOBAL_ROOT_UID) && !coop_lease_attr(inode);
}

int coop_attr_to_judge(struct inode *inode, struct mnt_idmap *idmap)
{
	const struct cred *who = coop_caller(inode->i_sb, idmap, true);

	return judged_here(inode, idmap, who) || !attr_fresh(inode) ? ask_attr(inode) : 0;
}

int coop_permission(struct mnt_idmap *idmap, struct inode *inode, int mask)
{
	const u32 wanted = mask & (MAY_READ | MAY_WRITE | MAY_EXEC);
	const struct cred *who = coop_caller(inode->i_sb, idmap, !(mask & MAY_NOT_BLOCK));
	bool judged;
	int err;

	if (IS_ERR(who))
		return PTR_ERR(who);
	judged = mask & MAY_OPEN && judged_here(inode, idmap, who);
	if (judged || !attr_fresh(inode)) {
		if (mask & MAY_NOT_BLOCK)
			return -ECHILD;
		/* df(1) opens the top; storage checks the caller again when it is read. */
		err = mask & MAY_OPEN && !judged ? ask_attr_of_top(inode) : ask_attr(inode);
		if (err)
			return err;
	}
	err = generic_permission(idmap, inode, mask);
	/* After access(2) and chdir(2) no request follows in which storage would check. */
	if (err || !wanted || !(mask & (MAY_ACCESS | MAY_CHDIR)))
		return err;
	if (coop_lease_may(inode, who, COOP_MAY_ACCESS * wanted))
		return 0;
	return mask & MAY_NOT_BLOCK ? -ECHILD : ask_access(inode, who, wanted);
}

const struct inode_operations coop_file_inode_ops = {
	.getattr = coop_getattr,
	.setattr = coop_setattr,
	.permission = coop_permission,
	.listxattr = coop_listxattr,
	.get_inode_acl = coop_get_acl,
	.set_acl = coop_set_acl,
};
