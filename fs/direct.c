// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * direct.c - reads and writes that pass by the page cache: O_DIRECT, O_APPEND, and
 * writes to a file that its writer may not read.
 *
 * The caller's own pages are sent and received. What is dirty goes out first, and what
 * the cache has of a written range is dropped before the version moves on. O_APPEND is
 * storage's to carry out: it alone knows the end of the file, so two nodes that append do
 * not write over each other; the reply tells where the bytes went (up to 1 MiB of one
 * write stay together).
 *
 * A call that a killed process gives up on is over: its pages are not touched after
 * coop_call_run() has returned.
 */
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/uio.h>

#include "fs/fs.h"
#include "fs/read.h"

#define DIRECT_PAGES  (COOP_ST_IO_MAX >> PAGE_SHIFT)
#define SETTLED_TRIES 4
/* Up to so much storage answers from memory, of one version. */
#define READ_AT_ONCE (64 * 1024)

/* The caller's bytes of one call. */
struct coop_span {
	u32 n, bytes;
	bool bounced; /* the pages are our own, for memory that has none to give */
	struct page *pages[DIRECT_PAGES];
	struct bio_vec bvec[DIRECT_PAGES];
};

static void span_put(struct coop_span *s, bool dirtied)
{
	while (s->n) {
		struct page *page = s->pages[--s->n];

		if (dirtied)
			set_page_dirty_lock(page);
		put_page(page);
	}
}

static int span_bounce(struct coop_span *s, struct iov_iter *from, size_t most)
{
	size_t left = min(most, iov_iter_count(from));

	s->bounced = true;
	while (left && s->n < DIRECT_PAGES) {
		struct page *page = alloc_page(GFP_KERNEL);
		const size_t n = min_t(size_t, left, PAGE_SIZE);

		if (!page)
			break;
		if (copy_page_from_iter(page, 0, n, from) != n) {
			put_page(page);
			span_put(s, false);
			return -EFAULT;
		}
		s->pages[s->n] = page;
		s->bvec[s->n].bv_page = page;
		s->bvec[s->n].bv_offset = 0;
		s->bvec[s->n++].bv_len = n;
		s->bytes += n;
		left -= n;
	}
	return s->n ? 0 : -ENOMEM;
}

/* Takes the next bytes off the iterator, their pages referenced. */
static int span_get(struct coop_span *s, struct iov_iter *iter, size_t most)
{
	size_t offset, left;
	ssize_t got;
	u32 i;

	s->n = 0;
	s->bytes = 0;
	s->bounced = false;
	if (iov_iter_is_kvec(iter))
		return iov_iter_rw(iter) == WRITE ? span_bounce(s, iter, most) : -EINVAL;
	got = iov_iter_get_pages2(iter, s->pages, most, DIRECT_PAGES, &offset);
	if (got <= 0)
		return got ?: -EFAULT;
	s->n = DIV_ROUND_UP(offset + got, PAGE_SIZE);
	s->bytes = got;
	for (i = 0, left = got; i < s->n; i++) {
		s->bvec[i].bv_page = s->pages[i];
		s->bvec[i].bv_offset = i ? 0 : offset;
		s->bvec[i].bv_len = min_t(size_t, left, PAGE_SIZE - s->bvec[i].bv_offset);
		left -= s->bvec[i].bv_len;
	}
	return 0;
}

static struct coop_call *span_call(struct coop_span *s, struct coop_file *f, u16 op, loff_t pos)
{
	struct coop_inode *ci = coop_i(f->inode);
	struct coop_call *call = coop_call_alloc(coop_sb(f->inode->i_sb)->storage, op);

	if (!call)
		return NULL;
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = f->open_id;
	call->arg.offset = pos;
	call->bvec = s->bvec;
	call->n_bvec = s->n;
	call->data_max = s->bytes;
	return call;
}

/* ---- writing ------------------------------------------------------------------------- */

/* Bytes written, and where: *pos. */
static ssize_t write_span(struct coop_span *s, struct coop_file *f, loff_t *pos)
{
	struct inode *inode = f->inode;
	struct coop_inode *ci = coop_i(inode);
	struct coop_call *call = span_call(s, f, COOP_ST_WRITE, *pos);
	const struct coop_st_body *res;
	int err;

	if (!call)
		return -ENOMEM;
	coop_change_begin(ci);
	err = coop_call_run(call);
	res = err ? NULL : &call->res;
	if (res && f->flags & COOP_ST_O_APPEND)
		*pos = res->attr.size - s->bytes;
	/* If it is not known what happened, nothing here is known to be right. */
	coop_change_end_alone(inode, res, *pos, *pos + s->bytes - 1, false);
	if (res) {
		set_bit(COOP_I_WROTE, &ci->flags);
		coop_unstable_add(inode, res->verifier);
		coop_attr_ours(inode, &res->attr);
	}
	coop_call_put(call);
	return err ? err : s->bytes;
}

static ssize_t write_all(struct kiocb *iocb, struct iov_iter *from, struct coop_file *f)
{
	struct coop_span *s = kmalloc(sizeof(*s), GFP_KERNEL);
	ssize_t done = 0, n = 0;
	loff_t pos = iocb->ki_pos;

	if (!s)
		return -ENOMEM;
	while (iov_iter_count(from)) {
		n = span_get(s, from, COOP_ST_IO_MAX);
		if (n)
			break;
		n = write_span(s, f, &pos);
		span_put(s, false);
		if (n < 0)
			break;
		pos += n;
		done += n;
		iocb->ki_pos = pos;
		cond_resched();
	}
	kfree(s);
	return done ? done : n;
}

ssize_t coop_direct_write(struct kiocb *iocb, struct iov_iter *from)
{
	struct file *file = iocb->ki_filp;
	struct inode *inode = file_inode(file);
	struct coop_file *f = coop_file_as(file->private_data, iocb->ki_flags & IOCB_APPEND);
	ssize_t n;

	if (IS_ERR(f))
		return PTR_ERR(f);
	inode_lock(inode);
	n = generic_write_checks(iocb, from);
	if (n > 0) {
		const int err = file_remove_privs(file);

		if (err)
			n = err;
	}
	if (n > 0) {
		/* All of it: what is dirty behind the end of the file moves that end. */
		const int err = filemap_write_and_wait(inode->i_mapping);

		n = err ? err : write_all(iocb, from, f);
	}
	inode_unlock(inode);
	coop_file_put(f);
	return n > 0 ? generic_write_sync(iocb, n) : n;
}

/* ---- reading --------------------------------------------------------------------------- */

/* Bytes read, fewer than the span at the end of the file. */
static ssize_t read_span(struct coop_span *s, struct coop_file *f, loff_t pos)
{
	struct coop_call *call = span_call(s, f, COOP_ST_READ, pos);
	ssize_t n;

	if (!call)
		return -ENOMEM;
	call->arg.count = s->bytes;
	n = coop_call_run(call);
	if (!n)
		n = call->data_len;
	coop_call_put(call);
	return n;
}

/* As read_span(), but a file that is written to meanwhile is read in parts that hold still. */
static ssize_t read_some(struct coop_span *s, struct iov_iter *to, struct coop_file *f, loff_t pos)
{
	u32 tries;
	ssize_t n;

	for (tries = 0;; tries++) {
		n = span_get(s, to, tries < SETTLED_TRIES / 2 ? COOP_ST_IO_MAX : READ_AT_ONCE);
		if (n)
			return n;
		n = read_span(s, f, pos);
		span_put(s, n > 0 && user_backed_iter(to));
		iov_iter_revert(to, s->bytes - max_t(ssize_t, n, 0));
		if (n != -ESTALE || tries == SETTLED_TRIES)
			return n == -ESTALE ? -EIO : n;
	}
}

ssize_t coop_direct_read(struct kiocb *iocb, struct iov_iter *to)
{
	struct file *file = iocb->ki_filp;
	struct inode *inode = file_inode(file);
	struct coop_mount *m = coop_sb(inode->i_sb);
	const u64 begun = coop_now_us();
	struct coop_span *s;
	ssize_t done = 0, n;

	if (!iov_iter_count(to))
		return 0;
	n = filemap_write_and_wait_range(inode->i_mapping, iocb->ki_pos,
					 iocb->ki_pos + iov_iter_count(to) - 1);
	if (n)
		return n;
	s = kmalloc(sizeof(*s), GFP_KERNEL);
	if (!s)
		return -ENOMEM;
	do {
		n = read_some(s, to, file->private_data, iocb->ki_pos);
		if (n <= 0)
			break;
		iocb->ki_pos += n;
		done += n;
		cond_resched();
	} while (n == s->bytes && iov_iter_count(to));
	kfree(s);
	if (!done)
		return n;
	coop_count_source(&m->stats, COOP_FROM_STORAGE, DIV_ROUND_UP(done, PAGE_SIZE), done);
	coop_count_request(&m->stats, COOP_FROM_STORAGE, coop_now_us() - begun);
	return done;
}
