// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * readdir.c - reading directories.
 *
 * Storage sends entries with handles and attributes. The open directory keeps the entries of
 * one request until the reader has taken them; a seek or a rewind asks again. While the names
 * of a directory are being looked up one by one (ls -l, find), entries also become dentries
 * and inodes, which saves those lookups. A plain ls does not pay for that after its first
 * request.
 *
 * Under a lease of the directory its inode keeps the entries too, for the next reader that
 * storage has permitted to list it: only names and types, because attributes change.
 *
 * Positions are storage's cookies, except for "." and "..", which storage omits.
 */
#include <linux/namei.h>
#include <linux/slab.h>

#include "fs/fs.h"

/* Larger than any cookie of an exported file system. */
#define AFTER_DOT    0x7ffffffffffffff0LL
#define AFTER_DOTDOT 0x7ffffffffffffff1LL

struct coop_list {
	struct mutex lock;
	u64 next;    /* position of the entry at 'at' */
	u64 asked;   /* ticket */
	u32 at, len; /* bytes of the buffer */
	bool end;    /* the buffer has the last entry */
	bool filled;
	bool prime;              /* make dentries and inodes of the entries */
	bool shared;             /* a reply said that others use the directory */
	const struct cred *cred; /* of the opener, as its mount maps it */
	struct page *page;       /* COOP_LIST_PAGES, adjacent; NULL: nothing was read yet */
	struct bio_vec bvec[COOP_LIST_PAGES];
};

/* ---- kept parts ------------------------------------------------------------------- */

#define KEPT_OF_ONE (1 << 20) /* most bytes of a directory's parts */
#define PART_LEAST  1024      /* a smaller part counts as so many bytes */

/* The entries of one READDIR. */
struct listing_part {
	struct list_head link; /* coop_inode.listing */
	u64 cookie;            /* of its request */
	u32 len;
	bool end;
	u8 bytes[];
};

static atomic64_t *kept_bytes(struct coop_inode *ci)
{
	return &coop_sb(ci->vfs.i_sb)->leases.listing_bytes;
}

/* Small parts count as PART_LEAST, so the limits also bound their number. */
static u32 part_cost(u32 len)
{
	return max_t(u32, PART_LEAST, sizeof(struct listing_part) + len);
}

void coop_listing_drop_locked(struct coop_inode *ci)
{
	struct listing_part *p, *next;

	lockdep_assert_held(&ci->lock);
	list_for_each_entry_safe(p, next, &ci->listing, link) {
		atomic64_sub(part_cost(p->len), kept_bytes(ci));
		kfree(p);
	}
	INIT_LIST_HEAD(&ci->listing);
	ci->listing_bytes = 0;
	coop_names_drop_locked(ci);
}

static struct listing_part *find_part_locked(struct coop_inode *ci, u64 cookie)
{
	struct listing_part *p;

	lockdep_assert_held(&ci->lock);
	list_for_each_entry(p, &ci->listing, link)
		if (p->cookie == cookie)
			return p;
	return NULL;
}

static void list_filled(struct coop_list *l, u64 cookie, u32 len, bool end)
{
	l->at = 0;
	l->len = len;
	l->next = cookie;
	l->end = end;
	l->filled = true;
}

static bool fill_from_kept(struct coop_list *l, struct file *file, u64 cookie)
{
	struct inode *dir = file_inode(file);
	struct coop_inode *ci = coop_i(dir);
	const struct listing_part *p;

	if (!coop_lease_may(dir, l->cred, COOP_MAY_LIST))
		return false;
	spin_lock(&ci->lock);
	/* The end of a lease drops its parts, except when all leases end at once: check. */
	p = coop_lease_since(dir) ? find_part_locked(ci, cookie) : NULL;
	if (p) {
		memcpy(page_address(l->page), p->bytes, p->len);
		list_filled(l, cookie, p->len, p->end);
	}
	spin_unlock(&ci->lock);
	if (!p)
		return false;
	coop_count(&coop_sb(dir->i_sb)->stats, COOP_C_LEASE_LISTINGS, 1);
	return true;
}

void coop_listing_keep(struct inode *dir, u64 asked, u64 cookie, const void *entries, u32 len,
		       bool end)
{
	struct coop_inode *ci = coop_i(dir);
	struct listing_part *p;
	u64 since = coop_lease_since(dir);

	if (!since || asked <= since || atomic64_read(kept_bytes(ci)) > COOP_KEPT_OF_ALL)
		return;
	if (!len && cookie)
		return; /* past the end any number of cookies is possible */
	p = kmalloc(struct_size(p, bytes, len), GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY);
	if (!p)
		return;
	p->cookie = cookie;
	p->len = len;
	p->end = end;
	memcpy(p->bytes, entries, len);
	spin_lock(&ci->lock);
	since = coop_lease_since(dir);
	if (since && asked > since && asked > ci->lease_broken && !ci->lease_changes &&
	    ci->listing_bytes + part_cost(p->len) <= KEPT_OF_ONE && !find_part_locked(ci, cookie)) {
		list_add_tail(&p->link, &ci->listing);
		ci->listing_bytes += part_cost(p->len);
		atomic64_add(part_cost(p->len), kept_bytes(ci));
		p = NULL;
	}
	spin_unlock(&ci->lock);
	kfree(p);
}

/* ---- open directories ------------------------------------------------------------- */

static int coop_dir_open(struct inode *inode, struct file *file)
{
	const struct cred *who = coop_caller_by(file);
	struct coop_list *l;

	if (IS_ERR(who))
		return PTR_ERR(who);
	l = kzalloc(sizeof(*l), GFP_KERNEL_ACCOUNT);
	if (!l)
		return -ENOMEM;
	mutex_init(&l->lock);
	l->cred = get_cred(who);
	file->private_data = l;
	return 0;
}

/* Many directories are opened for their names below only, and never read. */
static int list_room(struct coop_list *l)
{
	u32 i;

	if (l->page)
		return 0;
	l->page = alloc_pages(GFP_KERNEL_ACCOUNT, order_base_2(COOP_LIST_PAGES));
	if (!l->page)
		return -ENOMEM;
	for (i = 0; i < COOP_LIST_PAGES; i++) {
		l->bvec[i].bv_page = nth_page(l->page, i);
		l->bvec[i].bv_len = PAGE_SIZE;
	}
	return 0;
}

static int coop_dir_release(struct inode *inode, struct file *file)
{
	struct coop_list *l = file->private_data;

	if (l->page)
		__free_pages(l->page, order_base_2(COOP_LIST_PAGES));
	put_cred(l->cred);
	kfree(l);
	return 0;
}

static int list_fill(struct coop_list *l, struct file *file, u64 cookie, bool plus)
{
	struct inode *dir = file_inode(file);
	struct coop_inode *ci = coop_i(dir);
	struct coop_call *call;
	int err;

	l->filled = false;
	l->prime = false;
	if (fill_from_kept(l, file, cookie))
		return 0;
	call = coop_call_alloc(coop_sb(dir->i_sb)->storage, COOP_ST_READDIR);
	if (!call)
		return -ENOMEM;
	call->lease &= plus; /* without inodes we cannot use leases of the entries */
	l->asked = coop_ticket(dir->i_sb);
	coop_call_cred(call, l->cred);
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.cookie = cookie;
	call->arg.count = COOP_LIST_PAGES * PAGE_SIZE;
	call->bvec = l->bvec;
	call->n_bvec = COOP_LIST_PAGES;
	call->data_max = COOP_LIST_PAGES * PAGE_SIZE;
	err = coop_call_run(call);
	if (!err) {
		list_filled(l, cookie, call->data_len, call->res.flags & 1 || !call->data_len);
		l->prime = plus;
		coop_lease_allow(dir, l->cred, COOP_MAY_LIST, l->asked);
		coop_listing_keep(dir, l->asked, cookie, page_address(l->page), l->len, l->end);
		l->shared |= call->shared_dir;
	}
	coop_call_put(call);
	return err == -ESTALE && coop_gone(dir) ? -ENOENT : err;
}

/* Creates a dentry and an inode for an entry, or updates the existing ones. */
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
		/* If the name now means another file, leave the dentry: it will expire. */
		if (inode && d_inode(dentry) == inode)
			coop_entry_seen(dentry, asked);
		iput(inode);
	} else {
		coop_entry_seen(dentry, asked);
		alias = inode ? d_splice_alias(inode, dentry) : NULL;
		d_lookup_done(dentry);
		if (!IS_ERR_OR_NULL(alias)) {
			coop_entry_seen(alias, asked);
			dput(alias);
		}
	}
	dput(dentry);
}

static bool name_is_sane(const struct coop_st_bytes *name)
{
	const bool dots = name->len <= 2 && !memcmp(name->p, "..", name->len); /* we add these */

	return name->len && name->len <= COOP_ST_NAME_MAX && !dots &&
	       !memchr(name->p, '/', name->len) && !memchr(name->p, 0, name->len);
}

/* Emits the entries in the buffer. 1: the reader has enough; 0: used up; -errno. */
static int list_emit(struct coop_list *l, struct file *file, struct dir_context *ctx,
		     struct coop_st_body *e)
{
	const u8 *buf = page_address(l->page);

	while (l->at < l->len) {
		const int n = coop_st_dirent_get(e, buf + l->at, l->len - l->at);

		if (n <= 0 || !name_is_sane(&e->name))
			return -EIO;
		if (!dir_emit(ctx, e->name.p, e->name.len, e->attr.ino,
			      fs_umode_to_dtype(e->attr.mode)))
			return 1;
		if (l->prime && e->fh.len)
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
	bool plus, shared;
	int err = 0;

	if (!emit_dots(file, ctx))
		return 0;
	e = kmalloc(sizeof(*e), GFP_KERNEL);
	if (!e)
		return -ENOMEM;
	plus = test_and_clear_bit(COOP_I_LOOKUP, &ci->flags) || start;
	mutex_lock(&l->lock);
	err = list_room(l);
	while (!err) {
		const u64 cookie = ctx->pos == AFTER_DOTDOT ? 0 : ctx->pos;

		if (!l->filled || l->next != cookie || start) {
			err = list_fill(l, file, cookie, plus);
			if (err)
				break;
		}
		err = list_emit(l, file, ctx, e);
		if (err || l->end)
			break;
		l->filled = false;
		if (!cookie && ctx->pos == AFTER_DOTDOT)
			break; /* no entry came, and it was not the end */
		cond_resched();
	}
	shared = l->shared;
	l->shared = false;
	mutex_unlock(&l->lock);
	kfree(e);
	if (shared)
		coop_bundle_noticed(file_dentry(file), l->cred);
	return min(err, 0);
}

/* Positions are cookies, so the maximum file size does not bound them. */
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
