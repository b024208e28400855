// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * file.c - open files: close-to-open consistency, and the VFS's file operations.
 *
 * An open asks storage, whose reply has the file's version; pages of another version are
 * dropped before the open returns. The reply also names nodes that opened this version
 * last, which a read asks first. If there are none, it carries the first bytes, so that a
 * small file is read with its open. A close writes dirty pages back, commits what was
 * written, and sends CLOSE.
 *
 * A writer's open also asks for the right to read, because a partial write reads the page
 * first. If storage refuses that, writes bypass the page cache (direct.c). So do writes with
 * O_APPEND, which only storage can execute correctly among nodes.
 *
 * Under a lease an open for reading asks nothing, and storage learns of it later or never
 * (unsaid.c). When a daemon has forgotten the session, open files are opened again (reopen.c).
 */
#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "fs/fs.h"
#include "fs/read.h"

#define INLINE_PAGES (COOP_ST_INLINE_MAX >> PAGE_SHIFT)

/* ---- open files at storage -------------------------------------------------------- */

u32 coop_file_flags(unsigned int open_flags)
{
	u32 flags = 0;

	if ((open_flags & O_ACCMODE) != O_WRONLY)
		flags |= COOP_ST_O_READ;
	if ((open_flags & O_ACCMODE) != O_RDONLY)
		flags |= COOP_ST_O_WRITE;
	if (open_flags & O_APPEND && flags & COOP_ST_O_WRITE)
		flags |= COOP_ST_O_APPEND;
	if (open_flags & __FMODE_EXEC && flags == COOP_ST_O_READ)
		flags |= COOP_ST_O_EXEC;
	return flags;
}

static u32 reopenings(struct coop_mount *m)
{
	u32 n;

	spin_lock(&m->files_lock);
	n = m->reopenings;
	spin_unlock(&m->files_lock);
	return n;
}

struct coop_file *coop_file_alloc(struct coop_mount *m, u32 flags, const struct cred *who)
{
	struct coop_file *f = kzalloc(sizeof(*f), GFP_KERNEL_ACCOUNT);

	if (!f)
		return NULL;
	INIT_LIST_HEAD(&f->link);
	INIT_LIST_HEAD(&f->opened);
	refcount_set(&f->refs, 1);
	f->cred = get_cred(who);
	f->flags = flags;
	f->open_id = coop_storage_open_id(m->storage);
	f->reopening = reopenings(m);
	return f;
}

void coop_file_free(struct coop_file *f)
{
	put_cred(f->cred);
	kfree(f);
}

bool coop_file_attach(struct coop_file *f, struct inode *inode)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	bool in_time;

	f->inode = inode;
	spin_lock(&m->files_lock);
	in_time = f->reopening == m->reopenings;
	if (in_time)
		list_add_tail(&f->opened, &m->files);
	spin_unlock(&m->files_lock);
	if (!in_time)
		return false;
	spin_lock(&ci->lock);
	list_add(&f->link, &ci->files);
	spin_unlock(&ci->lock);
	return true;
}

struct coop_file *coop_file_get(struct coop_file *f)
{
	refcount_inc(&f->refs);
	return f;
}

/* An open file with the flags 'with' and none of 'without'. */
static struct coop_file *find(struct inode *inode, u32 with, u32 without)
{
	struct coop_inode *ci = coop_i(inode);
	struct coop_file *f, *found = NULL;

	spin_lock(&ci->lock);
	list_for_each_entry(f, &ci->files, link) {
		if ((f->flags & with) != with || f->flags & without || READ_ONCE(f->error) ||
		    READ_ONCE(f->lost))
			continue;
		/* With O_APPEND storage ignores the offset of a WRITE. */
		if (with & COOP_ST_O_WRITE && f->flags & COOP_ST_O_APPEND)
			continue;
		if (refcount_inc_not_zero(&f->refs)) {
			found = f;
			break;
		}
	}
	spin_unlock(&ci->lock);
	return found;
}

struct coop_file *coop_file_find(struct inode *inode, u32 flags)
{
	return find(inode, flags, 0);
}

struct coop_file *coop_file_find_reader(struct inode *inode)
{
	return find(inode, COOP_ST_O_READ, COOP_ST_O_WRITE) ?: find(inode, COOP_ST_O_READ, 0);
}

static void closed(struct coop_call *call)
{
	struct inode *inode = call->owner;
	struct coop_mount *m = coop_sb(inode->i_sb);

	coop_call_put(call);
	coop_iput_later(inode);
	coop_calls_end(m);
}

static void close_send(struct coop_call *call, struct inode *inode, u64 open_id, void *owner,
		       void (*done)(struct coop_call *call))
{
	call->arg.fh.p = coop_i(inode)->fh;
	call->arg.fh.len = coop_i(inode)->fh_len;
	call->arg.open_id = open_id;
	ihold(inode);
	coop_calls_begin(coop_sb(inode->i_sb));
	call->owner = owner;
	call->done = done;
	call->prompt = true;
	coop_call_submit(call);
}

void coop_close_send(struct inode *inode, u64 open_id)
{
	close_send(coop_call_alloc_sure(coop_sb(inode->i_sb)->storage, COOP_ST_CLOSE), inode,
		   open_id, inode, closed);
}

void coop_close_send_now(struct inode *inode, u64 open_id)
{
	struct coop_call *call = coop_call_alloc_now(coop_sb(inode->i_sb)->storage, COOP_ST_CLOSE);

	if (call)
		close_send(call, inode, open_id, inode, closed);
}

/* The CLOSE of a writer: its reply has the version that the file has now. */
static void writer_closed(struct coop_call *call)
{
	struct coop_file *f = call->owner;
	struct inode *inode = f->inode;

	if (!call->error)
		coop_attr_learn(inode, &call->res.attr, f->closing);
	coop_file_free(f);
	call->owner = inode;
	closed(call);
}

/*
 * No task waits for this CLOSE: the bytes of a writer are at storage, and committed if they have to
 * be. The file is freed, that of a writer at the end of the call.
 */
static void send_close(struct coop_file *f, struct coop_call *call)
{
	if (f->flags & COOP_ST_O_WRITE) {
		f->closing = coop_ticket(f->inode->i_sb);
		close_send(call, f->inode, f->open_id, f, writer_closed);
		return;
	}
	close_send(call, f->inode, f->open_id, f->inode, closed);
	coop_file_free(f);
}

static void send_close_late(struct work_struct *work)
{
	struct coop_file *f = container_of(work, struct coop_file, close_late);
	struct inode *inode = f->inode;
	struct coop_mount *m = coop_sb(inode->i_sb);

	send_close(f, coop_call_alloc_sure(m->storage, COOP_ST_CLOSE));
	coop_iput_later(inode);
	coop_calls_end(m);
}

/*
 * A file that is open holds no memory for its CLOSE: that is a page a file. The end of a WRITE may
 * come here, which must not wait for memory; a worker may.
 */
static void close_at_storage(struct coop_file *f)
{
	struct coop_mount *m = coop_sb(f->inode->i_sb);
	struct coop_call *call = coop_call_alloc_now(m->storage, COOP_ST_CLOSE);

	if (call) {
		send_close(f, call);
		return;
	}
	ihold(f->inode);
	coop_calls_begin(m);
	INIT_WORK(&f->close_late, send_close_late);
	queue_work(m->direct_wq, &f->close_late);
}

static void file_gone(struct coop_file *f)
{
	struct coop_mount *m = coop_sb(f->inode->i_sb);
	struct coop_inode *ci = coop_i(f->inode);
	bool said;

	spin_lock(&m->files_lock);
	said = f->said == COOP_SAID;
	list_del(&f->opened);
	spin_unlock(&m->files_lock);
	spin_lock(&ci->lock);
	list_del(&f->link);
	coop_roles_trim_locked(ci);
	spin_unlock(&ci->lock);
	coop_unstable_forget(f->inode);
	if (f->other)
		coop_file_put(f->other);
	if (said)
		close_at_storage(f);
	else
		coop_file_free(f);
}

void coop_file_put(struct coop_file *f)
{
	if (refcount_dec_and_test(&f->refs))
		file_gone(f);
}

/* ---- opening ------------------------------------------------------------------------ */

/* Pages for the first bytes of a file, which the reply to an open may carry. */
struct coop_inline {
	struct page *pages[INLINE_PAGES];
	struct bio_vec bvec[INLINE_PAGES];
	u32 n;
};

static void inline_free(struct coop_inline *in)
{
	while (in && in->n)
		put_page(in->pages[--in->n]);
	kfree(in);
}

static struct coop_inline *inline_alloc(struct inode *inode, u32 flags)
{
	const loff_t size = i_size_read(inode);
	struct folio *first = coop_filemap_peek(inode->i_mapping, 0);
	struct coop_inline *in;
	u32 want;

	if (first)
		folio_put(first); /* the first page is cached: no need to send it */
	if (first || !size || flags & COOP_ST_O_WRITE)
		return NULL;
	in = kzalloc(sizeof(*in), GFP_KERNEL);
	if (!in)
		return NULL;
	want = DIV_ROUND_UP(min_t(loff_t, size, COOP_ST_INLINE_MAX), PAGE_SIZE);
	for (; in->n < want; in->n++) {
		struct page *page = alloc_page(mapping_gfp_mask(inode->i_mapping) | __GFP_NOWARN);

		if (!page) {
			inline_free(in);
			return NULL;
		}
		in->pages[in->n] = page;
		in->bvec[in->n].bv_page = page;
		in->bvec[in->n].bv_len = PAGE_SIZE;
	}
	return in;
}

/* Adds the received pages to the page cache, where it has none. */
static void inline_keep(struct inode *inode, struct coop_inline *in, u32 bytes, u64 version,
			u64 size)
{
	const u32 n = bytes == size ? DIV_ROUND_UP(bytes, PAGE_SIZE) : bytes >> PAGE_SHIFT;
	struct address_space *mapping = inode->i_mapping;
	struct coop_inode *ci = coop_i(inode);
	u64 kept = 0, kept_bytes = 0;
	bool same;
	u32 i;

	if (!version || READ_ONCE(ci->version) != version)
		return;
	if (bytes & ~PAGE_MASK && n)
		zero_user_segment(in->pages[bytes >> PAGE_SHIFT], bytes & ~PAGE_MASK, PAGE_SIZE);
	filemap_invalidate_lock_shared(mapping);
	for (i = 0; i < n; i++) {
		struct folio *folio = page_folio(in->pages[i]);

		if (filemap_add_folio(mapping, folio, i, GFP_KERNEL))
			continue;
		spin_lock(&ci->lock);
		same = ci->version == version;
		spin_unlock(&ci->lock);
		if (same) {
			folio_mark_uptodate(folio);
			kept++;
			kept_bytes += min_t(u64, PAGE_SIZE, bytes - i * PAGE_SIZE);
		}
		folio_unlock(folio);
	}
	filemap_invalidate_unlock_shared(mapping);
	coop_count_source(&coop_sb(inode->i_sb)->stats, COOP_FROM_STORAGE, kept, kept_bytes);
	atomic64_add(kept_bytes, &ci->fetched);
}

/* The right that an open for reading needs. */
static u32 right_of(u32 flags)
{
	return flags & COOP_ST_O_EXEC ? COOP_MAY_EXECUTE : COOP_MAY_READ;
}

/* Sends one OPEN. -EAGAIN: the daemon that answered has restarted and forgotten it. */
static int ask_open_once(struct coop_file *f, struct inode *inode, u32 flags,
			 struct coop_inline *in)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	struct coop_call *call = coop_call_alloc(m->storage, COOP_ST_OPEN);
	const u64 asked = coop_ticket(inode->i_sb);
	const struct coop_st_body *res;
	int err;

	if (!call)
		return -ENOMEM;
	coop_call_cred(call, f->cred);
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = f->open_id;
	call->arg.flags = flags;
	if (in) {
		call->arg.count = in->n << PAGE_SHIFT;
		call->bvec = in->bvec;
		call->n_bvec = in->n;
		call->data_max = in->n << PAGE_SHIFT;
	}
	coop_roles_opening_begin(ci);
	err = coop_call_run(call);
	res = &call->res;
	if (err)
		goto out;
	if (!coop_file_attach(f, inode)) {
		err = -EAGAIN; /* EAGAIN from storage never gets here: the call is repeated */
		goto out;
	}
	coop_attr_learn(inode, &res->attr, asked);
	coop_content_catch_up(inode, asked);
	coop_content_openers(ci, res->attr.version, res->nodes, res->n_nodes);
	if (!(flags & COOP_ST_O_WRITE) &&
	    (res->attr.has & (COOP_ST_HAS_LEASE | COOP_ST_HAS_ASK_OPEN)) == COOP_ST_HAS_LEASE)
		coop_lease_allow(inode, f->cred, right_of(flags), asked);
	if (in && call->data_len)
		inline_keep(inode, in, call->data_len, res->attr.version, res->attr.size);
out:
	coop_roles_opening_end(ci);
	coop_call_put(call);
	return err;
}

int coop_file_open_anew(struct coop_file *f, struct inode *inode)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	int err;

	do {
		coop_close_send(inode, f->open_id); /* the new daemon may have it open as well */
		f->open_id = coop_storage_open_id(m->storage);
		f->reopening = reopenings(m);
		err = ask_open_once(f, inode, f->flags | COOP_ST_O_AGAIN, NULL);
	} while (err == -EAGAIN);
	return err;
}

static int ask_open(struct coop_file *f, struct inode *inode, struct coop_inline *in)
{
	const int err = ask_open_once(f, inode, f->flags, in);

	return err == -EAGAIN ? coop_file_open_anew(f, inode) : err;
}

static struct coop_file *file_open(struct inode *inode, const struct cred *who, u32 flags,
				   bool with_data)
{
	struct coop_file *f = coop_file_alloc(coop_sb(inode->i_sb), flags, who);
	struct coop_inline *in;
	int err;

	if (!f)
		return ERR_PTR(-ENOMEM);
	in = with_data ? inline_alloc(inode, flags) : NULL;
	err = ask_open(f, inode, in);
	inline_free(in);
	if (!err)
		return f;
	coop_file_free(f);
	return ERR_PTR(err);
}

/* Are the first bytes cached here or on other nodes? If not, an OPEN can bring them. */
static bool bytes_at_hand(struct inode *inode)
{
	struct folio *first = coop_filemap_peek(inode->i_mapping, 0);

	if (first)
		folio_put(first);
	return first || !i_size_read(inode) || READ_ONCE(coop_i(inode)->n_openers);
}

static bool may_open(struct inode *inode, struct dentry *dentry, const struct cred *who, u32 flags)
{
	return coop_lease_attr(inode) && coop_lease_may(inode, who, right_of(flags)) &&
	       (IS_ROOT(dentry) || d_unhashed(dentry) || coop_name_leased(dentry, who));
}

/* Opens without asking storage, if a lease permits it; NULL: it does not. */
static struct coop_file *open_leased(struct inode *inode, struct dentry *dentry,
				     const struct cred *who, u32 flags)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_file *f;

	if (flags & COOP_ST_O_WRITE || !may_open(inode, dentry, who, flags) ||
	    !bytes_at_hand(inode))
		return NULL;
	f = coop_file_alloc(m, flags, who);
	if (!f)
		return ERR_PTR(-ENOMEM);
	coop_unsaid_add(f, inode);
	/* A recall since the first check may have missed this file: check again. */
	if (!may_open(inode, dentry, who, flags)) {
		coop_file_put(f);
		return NULL;
	}
	coop_content_settle(inode);
	coop_count(&m->stats, COOP_C_LEASE_OPENS, 1);
	return f;
}

static int coop_open(struct inode *inode, struct file *file)
{
	const u32 flags = coop_file_flags(file->f_flags);
	struct dentry *dentry = file_dentry(file); /* f_path may be an overlay's */
	const struct cred *who = coop_caller_by(file);
	struct coop_name_check check;
	struct coop_file *f;
	int err;

	if (IS_ERR(who))
		return PTR_ERR(who);
	f = file->f_flags & O_TRUNC ? NULL : open_leased(inode, dentry, who, flags);
	if (f)
		goto opened;
	coop_name_check_begin(&check, dentry, who);
	f = file_open(inode, who, flags | COOP_ST_O_READ, true);
	err = coop_name_check_end(&check, inode);
	if (!err && f == ERR_PTR(-EACCES) && !(flags & COOP_ST_O_READ))
		f = file_open(inode, who, flags, false);
	if (err && !IS_ERR(f))
		coop_file_put(f);
	if (err)
		return err;
opened:
	if (IS_ERR(f))
		return PTR_ERR(f);
	file->private_data = f;
	file->f_mode |= FMODE_CAN_ODIRECT;
	return 0;
}

struct coop_file *coop_file_as(struct coop_file *f, bool append)
{
	struct coop_file *other = READ_ONCE(f->other), *first;
	int err;

	if (!!(f->flags & COOP_ST_O_APPEND) == append) {
		err = coop_file_say(f);
		return err ? ERR_PTR(err) : coop_file_get(f);
	}
	if (!other) {
		other = file_open(f->inode, f->cred, f->flags ^ COOP_ST_O_APPEND, false);
		if (IS_ERR(other))
			return other;
		first = cmpxchg(&f->other, NULL, other);
		if (first) {
			coop_file_put(other);
			other = first;
		}
	}
	return coop_file_get(other);
}

/* ---- file operations --------------------------------------------------------------------- */

/* Writes back and commits at a close. */
static int write_and_commit(struct inode *inode)
{
	const bool commits = coop_sb(inode->i_sb)->opt.commit_on_close;

	if (commits)
		coop_write_to_commit(inode, 0, LLONG_MAX);
	filemap_write_and_wait(inode->i_mapping);
	return commits ? coop_commit_wrote(inode) : 0;
}

static int coop_flush(struct file *file, fl_owner_t id)
{
	struct inode *inode = file_inode(file);
	int err;

	if (!(file->f_mode & FMODE_WRITE))
		return 0;
	err = write_and_commit(inode);
	/* Do not advance f_wb_err: an fsync through another descriptor must report it as well. */
	return err ?: filemap_check_wb_err(inode->i_mapping, file->f_wb_err);
}

static int coop_release(struct inode *inode, struct file *file)
{
	/* Pages dirtied through a mapping after the last close need this open file for their WRITE.
	 * Write them now. */
	if (file->f_mode & FMODE_WRITE)
		write_and_commit(inode);
	coop_file_put(file->private_data);
	return 0;
}

static int coop_fsync(struct file *file, loff_t start, loff_t end, int datasync)
{
	struct inode *inode = file_inode(file);
	int err, told;

	coop_write_to_commit(inode, start, end);
	err = file_write_and_wait_range(file, start, end);
	if (err)
		return err;
	err = coop_commit(inode);
	told = file_check_and_advance_wb_err(file);
	return err ?: told;
}

/* Call before reading cached pages: makes sure that they are storage's content as known here. */
static int read_begin(const struct file *file)
{
	struct inode *inode = file_inode(file);
	const int err = coop_file_readable(file) ?: coop_revalidate(inode, false);

	return err ?: coop_content_fresh(inode);
}

/*
 * The bytes of a read that the pages known now are good for. While it looks at them, i_size may
 * grow, and zeros behind the old end must not count as bytes of the longer file.
 */
static size_t coop_size_readable(struct inode *inode, loff_t pos, size_t wanted)
{
	const loff_t size = i_size_read(inode);

	smp_rmb(); /* before the look at the pages; pairs with coop_size_grows_locked() */
	return pos < size ? min_t(loff_t, wanted, size - pos) : 0;
}

static ssize_t coop_read_iter(struct kiocb *iocb, struct iov_iter *to)
{
	struct inode *inode = file_inode(iocb->ki_filp);
	const u64 begun = coop_now_us();
	size_t beyond;
	ssize_t n;
	int err;

	if (iocb->ki_flags & IOCB_DIRECT)
		return coop_file_not_lost(iocb->ki_filp) ?: coop_direct_read(iocb, to);
	err = read_begin(iocb->ki_filp);
	if (err)
		return err;
	beyond = iov_iter_count(to);
	iov_iter_truncate(to, coop_size_readable(inode, iocb->ki_pos, beyond));
	beyond -= iov_iter_count(to);
	n = generic_file_read_iter(iocb, to);
	iov_iter_reexpand(to, iov_iter_count(to) + beyond);
	if (n > 0)
		coop_account_read(inode, n, coop_now_us() - begun);
	return n;
}

static ssize_t coop_splice_read(struct file *file, loff_t *pos, struct pipe_inode_info *pipe,
				size_t len, unsigned int flags)
{
	struct inode *inode = file_inode(file);
	const u64 begun = coop_now_us();
	ssize_t n;
	int err;

	err = read_begin(file);
	if (err)
		return err;
	len = coop_size_readable(inode, *pos, len);
	n = filemap_splice_read(file, pos, pipe, len, flags);
	if (n > 0)
		coop_account_read(inode, n, coop_now_us() - begun);
	return n;
}

int coop_file_plain(struct coop_file *f)
{
	struct coop_file *plain;

	if (!(f->flags & COOP_ST_O_APPEND) || READ_ONCE(f->other))
		return 0;
	plain = coop_file_as(f, false);
	if (IS_ERR(plain))
		return PTR_ERR(plain);
	coop_file_put(plain); /* f keeps it */
	return 0;
}

static ssize_t coop_write_iter(struct kiocb *iocb, struct iov_iter *from)
{
	struct file *file = iocb->ki_filp;
	struct coop_file *f = file->private_data;
	int err = coop_file_not_lost(file);

	if (err)
		return err;
	if (iocb->ki_flags & (IOCB_DIRECT | IOCB_APPEND) || !(f->flags & COOP_ST_O_READ) ||
	    coop_bits_unseen(file))
		return coop_direct_write(iocb, from);
	err = coop_file_plain(f);
	if (!err)
		err = coop_content_fresh(file_inode(file));
	return err ? err : generic_file_write_iter(iocb, from);
}

static loff_t coop_llseek(struct file *file, loff_t offset, int whence)
{
	if (whence == SEEK_DATA || whence == SEEK_HOLE)
		return coop_seek_range(file, offset, whence);
	if (whence != SEEK_SET && whence != SEEK_CUR) {
		int err = coop_revalidate(file_inode(file), false);

		if (err)
			return err;
		coop_size_settle(file_inode(file));
	}
	return generic_file_llseek(file, offset, whence);
}

const struct file_operations coop_file_ops = {
	.open = coop_open,
	.release = coop_release,
	.flush = coop_flush,
	.fsync = coop_fsync,
	.read_iter = coop_read_iter,
	.write_iter = coop_write_iter,
	.mmap = coop_mmap,
	.llseek = coop_llseek,
	.splice_read = COOP_SPLICE_OP(coop_splice_read),
	.splice_write = iter_file_splice_write,
	.lock = coop_lock,
	.flock = coop_flock,
	.fallocate = coop_fallocate,
	.copy_file_range = coop_copy_file_range,
	.remap_file_range = coop_remap_file_range,
	.setlease = simple_nosetlease, /* an open on another node could not break it */
};
