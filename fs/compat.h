/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * compat.h - differences between the kernels that the module is built for.
 *
 * The module is written for Linux 6.12. This file gives interfaces of older
 * kernels, down to 6.1, their newer name and meaning. Kbuild examines the
 * kernel's headers and defines COOP_HAVE_* for what it finds: distributions
 * backport changes, so a version number proves nothing.
 */
#ifndef COOP_FS_COMPAT_H
#define COOP_FS_COMPAT_H

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mount.h>
#include <linux/pagemap.h>
#include <linux/splice.h>
#include <linux/uio.h>
#include <linux/user_namespace.h>
#include <linux/writeback.h>
#ifdef COOP_HAVE_FILELOCK_H
#include <linux/filelock.h>
#endif
#include <net/sock.h>

/* ---- inodes ---------------------------------------------------------------------------- */

/* A mount's map of user and group ids. */
#ifdef COOP_HAVE_MNT_IDMAP
static inline struct mnt_idmap *coop_mnt_idmap(const struct vfsmount *mnt)
{
	return mnt_idmap(mnt);
}

static inline bool coop_idmap_is_plain(struct mnt_idmap *idmap, const struct super_block *sb)
{
	return idmap == &nop_mnt_idmap;
}

static inline struct mnt_idmap *coop_idmap_get(struct mnt_idmap *idmap)
{
	return mnt_idmap_get(idmap);
}

static inline void coop_idmap_put(struct mnt_idmap *idmap)
{
	mnt_idmap_put(idmap);
}
#else
#define mnt_idmap user_namespace
static inline struct user_namespace *coop_mnt_idmap(const struct vfsmount *mnt)
{
	return mnt_user_ns(mnt);
}

static inline bool coop_idmap_is_plain(struct user_namespace *idmap, const struct super_block *sb)
{
	return no_idmapping(idmap, sb->s_user_ns);
}

static inline struct user_namespace *coop_idmap_get(struct user_namespace *idmap)
{
	return get_user_ns(idmap);
}

static inline void coop_idmap_put(struct user_namespace *idmap)
{
	put_user_ns(idmap);
}
#endif

#ifndef COOP_HAVE_SLAB_MEM_SPREAD
#define COOP_SLAB_INODE (SLAB_RECLAIM_ACCOUNT | SLAB_ACCOUNT)
#else
#define COOP_SLAB_INODE (SLAB_RECLAIM_ACCOUNT | SLAB_MEM_SPREAD | SLAB_ACCOUNT)
#endif

static inline void coop_fillattr(struct mnt_idmap *idmap, u32 mask, struct inode *inode,
				 struct kstat *stat)
{
#ifdef COOP_HAVE_FILLATTR_MASK
	generic_fillattr(idmap, mask, inode, stat);
#else
	generic_fillattr(idmap, inode, stat);
#endif
}

/* Reports the alignment that direct I/O needs for memory and offsets. */
#ifdef STATX_DIOALIGN
#define COOP_STATX_DIOALIGN STATX_DIOALIGN
static inline void coop_stat_dio(struct kstat *stat, u32 memory, u32 offset)
{
	stat->result_mask |= STATX_DIOALIGN;
	stat->dio_mem_align = memory;
	stat->dio_offset_align = offset;
}
#else
#define COOP_STATX_DIOALIGN 0
static inline void coop_stat_dio(struct kstat *stat, u32 memory, u32 offset) {}
#endif

#ifndef COOP_HAVE_INODE_CTIME
static inline struct timespec64 inode_set_ctime_to_ts(struct inode *inode, struct timespec64 ts)
{
	return inode->i_ctime = ts;
}
#endif

#ifndef COOP_HAVE_INODE_CTIME_SEC
static inline time64_t inode_get_ctime_sec(const struct inode *inode)
{
	return inode->i_ctime.tv_sec;
}
#endif

#ifndef COOP_HAVE_INODE_TIMES
static inline time64_t inode_get_mtime_sec(const struct inode *inode)
{
	return inode->i_mtime.tv_sec;
}

static inline struct timespec64 inode_set_atime_to_ts(struct inode *inode, struct timespec64 ts)
{
	return inode->i_atime = ts;
}

static inline struct timespec64 inode_set_mtime_to_ts(struct inode *inode, struct timespec64 ts)
{
	return inode->i_mtime = ts;
}
#endif

/* ---- extended attributes --------------------------------------------------------------- */

/* One change renamed .get_acl to .get_inode_acl and made .set_acl take the dentry. */
#ifdef COOP_HAVE_GET_INODE_ACL
#define coop_acl_owner dentry
static inline struct inode *coop_acl_inode(struct dentry *dentry)
{
	return d_inode(dentry);
}
#else
#define coop_acl_owner inode
#define get_inode_acl  get_acl
static inline struct inode *coop_acl_inode(struct inode *inode)
{
	return inode;
}
#endif

/* Kernels without these handlers convert the attributes to ACLs in the VFS. */
#ifdef COOP_HAVE_ACL_XATTR_HANDLERS
#define COOP_ACL_XATTR_HANDLERS &posix_acl_access_xattr_handler, &posix_acl_default_xattr_handler,
#else
#define COOP_ACL_XATTR_HANDLERS
#endif

#ifdef COOP_HAVE_CONST_XATTR_TABLE
#define COOP_XATTR_TABLE const struct xattr_handler *const
#else
#define COOP_XATTR_TABLE const struct xattr_handler *
#endif

/* ---- the page cache -------------------------------------------------------------------- */

/* A cached folio with a reference, or NULL; never waits and never adds a folio. */
static inline struct folio *coop_filemap_peek(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = __filemap_get_folio(mapping, index, 0, 0);

	/* No folio is NULL in 6.1 and an error later; no header shows which. */
	return IS_ERR_OR_NULL(folio) ? NULL : folio;
}

/* For write_begin: a locked folio of the cache, added if it is absent; or ERR_PTR. */
static inline struct folio *coop_filemap_grab(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio =
		__filemap_get_folio(mapping, index, FGP_LOCK | FGP_WRITE | FGP_CREAT | FGP_STABLE,
				    mapping_gfp_mask(mapping));

	return folio ?: ERR_PTR(-ENOMEM);
}

/*
 * write_begin and write_end are written for folios. COOP_WRITE_OPS(begin, end), once before the
 * operations' table, defines the functions that an older kernel calls; COOP_WRITE_OP(begin) is the
 * name for the table.
 */
#ifdef COOP_HAVE_FOLIO_WRITE_OPS
#define COOP_WRITE_OP(op) op
#define COOP_WRITE_OPS(begin, end)
#else
#define COOP_WRITE_OP(op) op##_page
#define COOP_WRITE_OPS(begin, end)                                                            \
	static int begin##_page(struct file *file, struct address_space *mapping, loff_t pos, \
				unsigned int len, struct page **page, void **fsdata)          \
	{                                                                                     \
		/* Folios have one page, so the page is its folio. */                         \
		return begin(file, mapping, pos, len, (struct folio **)page, fsdata);         \
	}                                                                                     \
	static int end##_page(struct file *file, struct address_space *mapping, loff_t pos,   \
			      unsigned int len, unsigned int copied, struct page *page,       \
			      void *fsdata)                                                   \
	{                                                                                     \
		return end(file, mapping, pos, len, copied, page_folio(page), fsdata);        \
	}
#endif

/* Calls each() with every dirty folio, locked and cleared for I/O; each() unlocks it. */
typedef int (*coop_each_folio)(struct folio *folio, struct writeback_control *wbc, void *data);

#ifdef COOP_HAVE_FOLIO_WRITEPAGE
static inline int coop_write_cache_folios(struct address_space *mapping,
					  struct writeback_control *wbc, coop_each_folio each,
					  void *data)
{
	return write_cache_pages(mapping, wbc, each, data);
}
#else
struct coop_each_page {
	coop_each_folio each;
	void *data;
};

static inline int coop_each_page(struct page *page, struct writeback_control *wbc, void *data)
{
	const struct coop_each_page *e = data;

	return e->each(page_folio(page), wbc, e->data);
}

static inline int coop_write_cache_folios(struct address_space *mapping,
					  struct writeback_control *wbc, coop_each_folio each,
					  void *data)
{
	struct coop_each_page e = {.each = each, .data = data};

	return write_cache_pages(mapping, wbc, coop_each_page, &e);
}
#endif

#ifndef COOP_HAVE_SPLICE_COPY
static inline ssize_t splice_copy_file_range(struct file *in, loff_t pos_in, struct file *out,
					     loff_t pos_out, size_t len)
{
	return generic_copy_file_range(in, pos_in, out, pos_out, len, 0);
}
#endif

#ifndef COOP_HAVE_FILEMAP_SPLICE_READ
/* Older kernels splice through read_iter, which does all that our own operation would. */
#define filemap_splice_read generic_file_splice_read
#define COOP_SPLICE_OP(op)  (true ? generic_file_splice_read : (op))
#else
#define COOP_SPLICE_OP(op) (op)
#endif

/* ---- locks ----------------------------------------------------------------------------- */

/* A field of struct file_lock that leases have as well: type, flags, owner, pid, file. */
#ifdef COOP_HAVE_FILE_LOCK_CORE
#define coop_fl(fl, field)           ((fl)->c.flc_##field)
#define coop_for_each_lock(fl, head) list_for_each_entry(fl, head, c.flc_list)
#else
#define coop_fl(fl, field)           ((fl)->fl_##field)
#define coop_for_each_lock(fl, head) list_for_each_entry(fl, head, fl_list)
#endif

/* ---- sockets --------------------------------------------------------------------------- */

/*
 * Gives a kernel socket a reference to its network namespace, which it lacks, because TCP continues
 * for a while after the socket is closed. Call it before the socket is locked or connected.
 */
static inline void coop_sock_hold_net(struct sock *sk)
{
#ifdef COOP_HAVE_NET_REFCNT_UPGRADE
	sk_net_refcnt_upgrade(sk);
#else
	struct net *net = sock_net(sk);

#ifdef COOP_HAVE_NETNS_TRACKER_FREE
	__netns_tracker_free(net, &sk->ns_tracker, false);
#endif
	sk->sk_net_refcnt = 1;
	get_net_track(net, &sk->ns_tracker, GFP_NOFS);
	sock_inuse_add(net, 1);
#endif
}

/*
 * Makes the socket fill a page fragment of its own rather than that of the task. A task that sends
 * on another socket may fault in the middle of its copy into the task's fragment, and the fault
 * sends on this one. Kernels without the field decide by sk_allocation, which lacks __GFP_FS.
 */
static inline void coop_sock_own_frag(struct sock *sk)
{
#ifdef COOP_HAVE_SK_USE_TASK_FRAG
	sk->sk_use_task_frag = false;
#endif
}

/* ---- memory of callers --------------------------------------------------------------- */

/* What holds the pages of a caller's memory. */
enum coop_hold {
	COOP_HOLD_CALLER, /* the caller itself, until the I/O is over */
	COOP_HOLD_REF,    /* a reference to each page */
	COOP_HOLD_PIN,    /* a pin on each page, which shows others that bytes may be written */
};

/*
 * Takes the pages of the iterator's next bytes, at most 'most' bytes and max_pages pages, and
 * advances the iterator. Pins pages of user memory. Returns the bytes, which start at *offset in
 * the first page, or -errno.
 */
static inline ssize_t coop_iter_hold(struct iov_iter *iter, struct page **pages, size_t most,
				     u32 max_pages, size_t *offset, enum coop_hold *hold)
{
#ifdef COOP_HAVE_ITER_EXTRACT
	*hold = iov_iter_extract_will_pin(iter) ? COOP_HOLD_PIN : COOP_HOLD_CALLER;
	return iov_iter_extract_pages(iter, &pages, most, max_pages, 0, offset) ?: -EFAULT;
#else
	unsigned int gup = iov_iter_rw(iter) == READ ? FOLL_WRITE : 0;
	size_t skip = iter->iov_offset, len = 0, bytes;
	unsigned long at = 0, k;
	int got;

	if (!user_backed_iter(iter)) {
		*hold = COOP_HOLD_REF;
		return iov_iter_get_pages2(iter, pages, most, max_pages, offset) ?: -EFAULT;
	}
	*hold = COOP_HOLD_PIN;
	if (iter_is_ubuf(iter)) {
		at = (unsigned long)iter->ubuf + skip;
		len = iter->count;
	} else {
		for (k = 0; k < iter->nr_segs && !len; k++, skip = 0) {
			at = (unsigned long)iter->iov[k].iov_base + skip;
			len = iter->iov[k].iov_len - skip;
		}
	}
	len = min3(len, most, iter->count);
	*offset = offset_in_page(at);
	if (iter->nofault)
		gup |= FOLL_NOFAULT;
	got = pin_user_pages_fast(at & PAGE_MASK,
				  min_t(size_t, DIV_ROUND_UP(*offset + len, PAGE_SIZE), max_pages),
				  gup, pages);
	if (got <= 0)
		return got ?: -EFAULT;
	bytes = min_t(size_t, len, got * PAGE_SIZE - *offset);
	iov_iter_advance(iter, bytes);
	return bytes;
#endif
}

#endif /* COOP_FS_COMPAT_H */
