// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * readdir.c - reading directories.
 *
 * Storage sends entries with handles and attributes. What one request brought is kept
 * with the open directory until the reader has taken it; a seek or a rewind asks again.
 * While the names of a directory are being looked up one by one (ls -l, find), entries
 * also become dentries and inodes, which saves those look-ups; a plain ls does not pay for
 * that after its first request.
 *
 * Positions are storage's cookies, but for the two names that it leaves out.
 */
#include <linux/namei.h>
#include <linux/slab.h>

#include "fs/fs.h"

#define LIST_PAGES 8

/* Cookies of the exported file system's directories do not come near. */
#define AFTER_DOT    0x7ffffffffffffff0LL
#define AFTER_DOTDOT 0x7ffffffffffffff1LL

struct coop_list {
	struct mutex lock;
	u64 next;    /* position of what stands at 'at' */
	u64 asked;   /* ticket */
	u32 at, len; /* bytes of buf */
	bool end;    /* nothing comes after buf */
	bool filled;
	struct page *page; /* LIST_PAGES, adjacent */
	struct bio_vec bvec[LIST_PAGES];
};

static int coop_dir_open(struct inode *inode, struct file *file)
{
	struct coop_list *l = kzalloc(sizeof(*l), GFP_KERNEL);
	u32 i;

	if (!l)
		return -ENOMEM;
	l->page = alloc_pages(GFP_KERNEL, order_base_2(LIST_PAGES));
	if (!l->page) {
		kfree(l);
		return -ENOMEM;
	}
	mutex_init(&l->lock);
	for (i = 0; i < LIST_PAGES; i++) {
		l->bvec[i].bv_page = nth_page(l->page, i);
		l->bvec[i].bv_len = PAGE_SIZE;
	}
	file->private_data = l;
	return 0;
}

static int coop_dir_release(struct inode *inode, struct file *file)
{
	struct coop_list *l = file->private_data;

	__free_pages(l->page, order_base_2(LIST_PAGES));
	kfree(l);
	return 0;
}

static int list_fill(struct coop_list *l, struct file *file, u64 cookie)
{
	struct inode *dir = file_inode(file);
	struct coop_inode *ci = coop_i(dir);
	struct coop_call *call = coop_call_alloc(coop_sb(dir->i_sb)->storage, COOP_ST_READDIR);
	int err;

	if (!call)
		return -ENOMEM;
	l->filled = false;
	l->asked = coop_ticket(dir->i_sb);
	coop_call_cred(call, file->f_cred);
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.cookie = cookie;
	call->arg.count = LIST_PAGES * PAGE_SIZE;
	call->bvec = l->bvec;
	call->n_bvec = LIST_PAGES;
	call->data_max = LIST_PAGES * PAGE_SIZE;
	err = coop_call_run(call);
	if (!err) {
		l->at = 0;
		l->len = call->data_len;
		l->next = cookie;
		l->end = call->res.flags & 1 || !call->data_len;
		l->filled = true;
	}
	coop_call_put(call);
	return err;
}

/* Gives an entry's name a dentry and an inode, or brings those there are up to date. */
static void prime(struct file *file, const struct coop_st_body *e, u64 asked)
{
	struct dentry *parent = file_dentry(file), *dentry, *alias;
	struct qstr name = QSTR_INIT(e->name.p, e->name.len);
	DECLARE_WAIT_QUEUE_HEAD_ONSTACK(wq);
	struct inode *inode;

	name.hash = full_name_hash(parent, name.name, name.len);
	dentry = d_lookup(parent, &name);
	if (!dentry) {
		dentry = d_alloc_parallel(parent, &name, &wq);
		if (IS_ERR(dentry))
			return;
	}
	inode = coop_iget(parent->d_sb, &e->attr, e->fh.p, e->fh.len, asked);
	if (IS_ERR(inode))
		inode = NULL;
	if (!d_in_lookup(dentry)) {
		/* A name that means another file by now: its own time will tell. */
		if (inode && d_inode(dentry) == inode)
			coop_entry_seen(dentry);
		iput(inode);
	} else {
		coop_entry_seen(dentry);
		alias = inode ? d_splice_alias(inode, dentry) : NULL;
		d_lookup_done(dentry);
		if (!IS_ERR_OR_NULL(alias)) {
			coop_entry_seen(alias);
			dput(alias);
		}
	}
	dput(dentry);
}

static bool name_is_sane(const struct coop_st_bytes *name)
{
	const bool dots = name->len <= 2 && !memcmp(name->p, "..", name->len); /* ours to say */

	return name->len && name->len <= COOP_ST_NAME_MAX && !dots &&
	       !memchr(name->p, '/', name->len) && !memchr(name->p, 0, name->len);
}

/* Hands out what is in the buffer. 1: the reader has enough; 0: used up; -errno. */
static int list_emit(struct coop_list *l, struct file *file, struct dir_context *ctx,
		     struct coop_st_body *e, bool plus)
{
	const u8 *buf = page_address(l->page);

	while (l->at < l->len) {
		const int n = coop_st_dirent_get(e, buf + l->at, l->len - l->at);

		if (n <= 0 || !name_is_sane(&e->name))
			return -EIO;
		if (!dir_emit(ctx, e->name.p, e->name.len, e->attr.ino,
			      fs_umode_to_dtype(e->attr.mode)))
			return 1;
		if (plus && e->fh.len)
			prime(file, e, l->asked);
		l->at += n;
		l->next = e->cookie;
		ctx->pos = e->cookie;
	}
	return 0;
}

static bool emit_dots(struct file *file, struct dir_context *ctx)
{
	if (ctx->pos == 0) {
		if (!dir_emit_dot(file, ctx))
			return false;
		ctx->pos = AFTER_DOT;
	}
	if (ctx->pos == AFTER_DOT) {
		if (!dir_emit_dotdot(file, ctx))
			return false;
		ctx->pos = AFTER_DOTDOT;
	}
	return true;
}

static int coop_iterate(struct file *file, struct dir_context *ctx)
{
	struct coop_list *l = file->private_data;
	struct coop_inode *ci = coop_i(file_inode(file));
	const bool start = ctx->pos == 0;
	struct coop_st_body *e;
	bool plus;
	int err = 0;

	if (!emit_dots(file, ctx))
		return 0;
	e = kmalloc(sizeof(*e), GFP_KERNEL);
	if (!e)
		return -ENOMEM;
	plus = test_and_clear_bit(COOP_I_LOOKUP, &ci->flags) || start;
	mutex_lock(&l->lock);
	for (;;) {
		const u64 cookie = ctx->pos == AFTER_DOTDOT ? 0 : ctx->pos;

		if (!l->filled || l->next != cookie || start) {
			err = list_fill(l, file, cookie);
			if (err)
				break;
		}
		err = list_emit(l, file, ctx, e, plus);
		if (err || l->end)
			break;
		l->filled = false;
		if (!cookie && ctx->pos == AFTER_DOTDOT)
			break; /* nothing came, and it was not the end */
		cond_resched();
	}
	mutex_unlock(&l->lock);
	kfree(e);
	return min(err, 0);
}

/* Names are made at storage; this brings them to its disk. */
static int coop_dir_fsync(struct file *file, loff_t start, loff_t end, int datasync)
{
	struct inode *dir = file_inode(file);
	struct coop_call *call = coop_call_alloc(coop_sb(dir->i_sb)->storage, COOP_ST_COMMIT);
	int err;

	if (!call)
		return -ENOMEM;
	call->arg.fh.p = coop_i(dir)->fh;
	call->arg.fh.len = coop_i(dir)->fh_len;
	err = coop_call_run(call);
	coop_call_put(call);
	/* Removed, by us: it has no names. */
	return err == -ESTALE && !dir->i_nlink ? 0 : err;
}

/* Positions are cookies, so the largest size of a file is no bound of them. */
static loff_t coop_dir_llseek(struct file *file, loff_t offset, int whence)
{
	return generic_file_llseek_size(file, offset, whence, LLONG_MAX,
					i_size_read(file_inode(file)));
}

const struct file_operations coop_dir_ops = {
	.open = coop_dir_open,
	.release = coop_dir_release,
	.iterate_shared = coop_iterate,
	.fsync = coop_dir_fsync,
	.llseek = coop_dir_llseek,
	.read = generic_read_dir,
	.setlease = simple_nosetlease,
};
