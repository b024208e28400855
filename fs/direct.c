// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * direct.c - reads and writes that bypass the page cache: O_DIRECT, O_APPEND, and
 * writes to a file that the writer may not read.
 *
 * The caller's own pages are sent and received, in spans, several at a time. Dirty
 * pages are written first. The cached pages of a written range are dropped before the
 * version changes; all spans of one write are one change together. An asynchronous
 * request (io_submit) returns when its spans have been sent, but a write that moves the
 * end of the file waits, under the inode's lock. Storage executes O_APPEND: it alone
 * knows the end of the file, so two nodes that append do not overwrite each other. Its
 * reply says where the bytes went. Up to 1 MiB of one write stays together, also if it
 * comes from several buffers; the next part is sent when the previous one has arrived.
 *
 * If a killed process gives up a call, the call is over: nothing touches its pages
 * after coop_call_wait() has returned.
 */
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/uio.h>

#include "fs/fs.h"
#include "fs/read.h"

#define SPANS_READ   16
#define SPANS_WRITE  8
#define ASYNC_PIECES 8 /* most pieces of the caller's memory; each is at least one span */
/* Storage answers a READ of at most so many bytes from memory, with one version. */
#define READ_AT_ONCE  (64 * 1024)
#define SETTLED_TRIES 4

/* A part of the caller's bytes, and the call that carries it. */
struct coop_span {
	struct list_head link;
	struct coop_call *call; /* NULL: no memory for one */
	loff_t pos;
	u32 n, bytes;
	enum coop_hold hold; /* how the pages are held */
	struct page **pages;
	struct bio_vec bvec[];
};

/* Spans that are under way together, in the order of the file. */
struct coop_direct {
	struct kiocb *iocb;
	struct inode *inode;
	struct coop_file *file; /* a reference, if async */
	struct list_head spans;
	size_t taken; /* bytes taken from the caller's iterator */
	bool write, dirties;
	u8 round;           /* of coop_change_begin(), for a write */
	bool async;         /* no task waits: the last call's end queues 'work' */
	atomic_t under_way; /* async: calls, plus one for the task that starts them */
	struct work_struct work;
	u64 begun;
};

static void span_free(struct coop_span *s, bool dirtied)
{
	if (s->call)
		coop_call_put(s->call);
	switch (s->hold) {
	case COOP_HOLD_PIN:
		unpin_user_pages_dirty_lock(s->pages, s->n, dirtied);
		break;
	case COOP_HOLD_REF:
		while (s->n)
			put_page(s->pages[--s->n]);
		break;
	case COOP_HOLD_CALLER:
		break;
	}
	kfree(s);
}

/* Copies memory whose pages cannot be held. whole: all of it, or fails. */
static ssize_t span_bounce(struct coop_span *s, struct iov_iter *from, size_t most, u32 pages,
			   bool whole)
{
	size_t left = most;

	s->hold = COOP_HOLD_REF;
	for (; left && s->n < pages; s->n++) {
		struct page *page = alloc_page(GFP_KERNEL);
		const size_t n = min_t(size_t, left, PAGE_SIZE);

		if (!page)
			break;
		s->pages[s->n] = page;
		if (copy_page_from_iter(page, 0, n, from) != n) {
			s->n++;
			return -EFAULT;
		}
		left -= n;
	}
	return left == most || (left && whole) ? -ENOMEM : most - left;
}

/*
 * Takes the next bytes from the iterator, and holds their pages. whole: as many as fit,
 * also from several buffers, which are held one at a time; so these are copied.
 */
static struct coop_span *span_take(struct iov_iter *iter, size_t most, bool whole)
{
	size_t offset = 0, left;
	struct coop_span *s;
	ssize_t got;
	u32 i, pages;

	most = min(most, iov_iter_count(iter));
	pages = most / PAGE_SIZE + 2;
	s = kzalloc(struct_size(s, bvec, pages) + pages * sizeof(s->pages[0]), GFP_KERNEL);
	if (!s)
		return ERR_PTR(-ENOMEM);
	s->pages = (struct page **)(s->bvec + pages);
	if (whole && iov_iter_single_seg_count(iter) < most)
		got = span_bounce(s, iter, most, pages, true);
	else if (!iov_iter_is_kvec(iter))
		got = coop_iter_hold(iter, s->pages, most, pages, &offset, &s->hold);
	else if (iov_iter_rw(iter) == WRITE)
		got = span_bounce(s, iter, most, pages, whole);
	else
		got = -EINVAL;
	if (got < 0) {
		span_free(s, false);
		return ERR_PTR(got);
	}
	s->n = DIV_ROUND_UP(offset + got, PAGE_SIZE);
	s->bytes = got;
	for (i = 0, left = got; i < s->n; i++) {
		s->bvec[i].bv_page = s->pages[i];
		s->bvec[i].bv_offset = i ? 0 : offset;
		s->bvec[i].bv_len = min_t(size_t, left, PAGE_SIZE - s->bvec[i].bv_offset);
		left -= s->bvec[i].bv_len;
	}
	return s;
}

static struct coop_call *span_call(struct coop_file *f, u16 op, loff_t pos, struct bio_vec *bvec,
				   u32 n, u32 bytes)
{
	struct coop_inode *ci = coop_i(f->inode);
	struct coop_call *call = coop_call_alloc(coop_sb(f->inode->i_sb)->storage, op);

	if (!call)
		return NULL;
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = f->open_id;
	call->arg.offset = pos;
	call->arg.count = bytes;
	call->bvec = bvec;
	call->n_bvec = n;
	call->data_max = bytes;
	return call;
}

static void direct_work(struct work_struct *work);

static void one_ended(struct coop_direct *op)
{
	if (atomic_dec_and_test(&op->under_way))
		queue_work(coop_sb(op->inode->i_sb)->direct_wq, &op->work);
}

static void span_done(struct coop_call *call)
{
	one_ended(call->owner);
}

/* 0: at least one span was taken; errors of later ones appear at the end. */
static int direct_start(struct coop_direct *op, struct iov_iter *iter, u32 most)
{
	const size_t unit = op->write ? COOP_ST_IO_MAX : COOP_READ_UNIT;
	const loff_t size = i_size_read(op->inode);
	int err = 0;

	while (most-- && iov_iter_count(iter)) {
		const loff_t pos = op->iocb->ki_pos + op->taken;
		struct coop_span *s;

		/* Ask for bytes past the known end only after all before it have arrived. */
		if (!op->write && op->taken && pos >= size)
			break;
		s = span_take(iter, unit, op->write && op->file->flags & COOP_ST_O_APPEND);
		if (IS_ERR(s)) {
			err = op->taken ? 0 : PTR_ERR(s);
			break;
		}
		if (op->write && !op->taken) /* all spans are one change */
			op->round = coop_change_begin(coop_i(op->inode));
		s->pos = pos;
		op->taken += s->bytes;
		list_add_tail(&s->link, &op->spans);
		s->call = span_call(op->file, op->write ? COOP_ST_WRITE : COOP_ST_READ, pos,
				    s->bvec, s->n, s->bytes);
		if (!s->call)
			break;
		if (op->write)
			coop_call_fence(s->call, op->iocb->ki_filp);
		if (op->async) {
			s->call->owner = op;
			s->call->done = span_done;
			s->call->prompt = true;
			atomic_inc(&op->under_way);
		}
		coop_call_queue(s->call);
	}
	coop_storage_push(coop_sb(op->inode->i_sb)->storage);
	return err;
}

static int span_error(struct coop_direct *op, struct coop_span *s)
{
	if (!s->call)
		return -ENOMEM;
	return op->async ? s->call->error : coop_call_wait(s->call);
}

/* No task is there to start more spans when the first have ended, so all must start at once. */
static bool may_be_async(struct kiocb *iocb, struct iov_iter *iter)
{
	const size_t most = iov_iter_rw(iter) == WRITE
				    ? COOP_ST_IO_MAX
				    : (SPANS_READ - ASYNC_PIECES) * COOP_READ_UNIT;

	return !is_sync_kiocb(iocb) && iocb->ki_flags & IOCB_DIRECT &&
	       !(iocb->ki_flags & IOCB_APPEND) && iov_iter_count(iter) <= most &&
	       user_backed_iter(iter) && iter->nr_segs <= ASYNC_PIECES;
}

static void direct_init(struct coop_direct *op, struct kiocb *iocb, struct coop_file *f,
			struct iov_iter *iter)
{
	memset(op, 0, sizeof(*op));
	op->iocb = iocb;
	op->inode = f->inode;
	op->file = f;
	INIT_LIST_HEAD(&op->spans);
	op->write = iov_iter_rw(iter) == WRITE;
	op->dirties = !op->write && user_backed_iter(iter);
	op->begun = coop_now_us();
}

/* -EIOCBQUEUED: op completes and frees itself; other errors: nothing was sent, op is freed. */
static int direct_submit(struct coop_direct *op, struct iov_iter *iter)
{
	int err;

	op->async = true;
	atomic_set(&op->under_way, 1);
	INIT_WORK(&op->work, direct_work);
	err = direct_start(op, iter, op->write ? SPANS_WRITE : SPANS_READ);
	if (err) {
		coop_file_put(op->file);
		kfree(op);
		return err;
	}
	one_ended(op);
	return -EIOCBQUEUED;
}

/* ---- writing ------------------------------------------------------------------------- */

/*
 * The combined result of the spans: the reply to the last one, with the version before the first.
 * If the last one is not known, or another client wrote in between, 'before' is 0.
 */
static struct coop_st_body *led_to(struct coop_direct *op)
{
	struct coop_span *last = list_last_entry(&op->spans, struct coop_span, link), *s;
	const u64 from = READ_ONCE(coop_i(op->inode)->version);
	u64 version = from;
	u32 n = 0, in_line = 0;
	bool found;

	if (list_is_singular(&op->spans))
		return &last->call->res;
	list_for_each_entry(s, &op->spans, link)
		n++;
	do {
		found = false;
		list_for_each_entry(s, &op->spans, link) {
			if (!version || s->call->res.before != version)
				continue;
			version = s->call->res.attr.version;
			last = s;
			in_line++;
			found = true;
		}
	} while (found && in_line < n);
	last->call->res.before = in_line == n ? from : 0;
	return &last->call->res;
}

/* Returns the bytes written from the start without a gap. at: where, according to storage. */
static ssize_t direct_end_write(struct coop_direct *op, loff_t *at)
{
	struct inode *inode = op->inode;
	struct coop_st_body *res = NULL;
	struct coop_span *s, *next;
	ssize_t done = 0;
	int err = 0;

	list_for_each_entry(s, &op->spans, link) {
		const int e = span_error(op, s);

		if (!e)
			coop_unstable_add(inode, s->call->res.verifier, true);
		if (!err && !e)
			done += s->bytes;
		err = err ?: e;
	}
	/* After an error the outcome is unknown, so we have no result. */
	if (!err)
		res = led_to(op);
	if (res && op->file->flags & COOP_ST_O_APPEND)
		*at = res->attr.size - op->taken;
	coop_change_end_alone(inode, op->round, res, *at, *at + op->taken - 1,
			      done ? *at + done : 0, false);
	if (res)
		coop_attr_ours(inode, &res->attr);
	else
		coop_attr_expire(inode);
	list_for_each_entry_safe(s, next, &op->spans, link)
		span_free(s, false);
	return done ? done : err;
}

static ssize_t write_all(struct kiocb *iocb, struct iov_iter *from, struct coop_file *f)
{
	const u32 most = f->flags & COOP_ST_O_APPEND ? 1 : SPANS_WRITE;
	struct coop_direct op;
	ssize_t done = 0, n;

	do {
		loff_t at = iocb->ki_pos;

		direct_init(&op, iocb, f, from);
		n = direct_start(&op, from, most);
		if (n)
			break;
		n = direct_end_write(&op, &at);
		if (n > 0) {
			iocb->ki_pos = at + n;
			done += n;
		}
		cond_resched();
	} while (n == op.taken && iov_iter_count(from));
	return done ? done : n;
}

/* The caller holds the inode's lock until the spans are sent. */
static ssize_t write_async(struct kiocb *iocb, struct iov_iter *from, struct coop_file *f)
{
	struct coop_direct *op = kmalloc(sizeof(*op), GFP_KERNEL);
	int err;

	if (!op)
		return -ENOMEM;
	direct_init(op, iocb, coop_file_get(f), from);
	inode_dio_begin(f->inode);
	err = direct_submit(op, from);
	if (err != -EIOCBQUEUED)
		inode_dio_end(f->inode);
	return err;
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
		/* All dirty pages: those past storage's end of the file move that end. */
		int err = filemap_write_and_wait(inode->i_mapping);

		/* Kept folios will be dropped, and must not be written again over this write. */
		if (!err)
			err = coop_commit_kept(inode);
		if (err)
			n = err;
		else if (may_be_async(iocb, from) && iocb->ki_pos + n <= i_size_read(inode) &&
			 !coop_bits_unseen(file))
			n = write_async(iocb, from, f);
		else
			n = write_all(iocb, from, f);
		if (n > 0)
			coop_bits_settle(file);
	}
	inode_unlock(inode);
	coop_file_put(f);
	return n > 0 ? generic_write_sync(iocb, n) : n;
}

/* ---- reading --------------------------------------------------------------------------- */

/* Reads a file that is being written in parts so small that each has one version. */
static ssize_t read_in_parts(struct coop_direct *op, struct coop_span *s)
{
	ssize_t got = 0, n = 0;
	u32 at, pages, tries;

	for (at = 0; at < s->n; at += pages) {
		u32 bytes = 0;

		for (pages = 0; at + pages < s->n && bytes + PAGE_SIZE <= READ_AT_ONCE; pages++)
			bytes += s->bvec[at + pages].bv_len;
		n = -ESTALE;
		for (tries = 0; n == -ESTALE && tries < SETTLED_TRIES; tries++) {
			struct coop_call *call = span_call(op->file, COOP_ST_READ, s->pos + got,
							   s->bvec + at, pages, bytes);

			if (!call)
				return got ? got : -ENOMEM;
			n = coop_call_run(call);
			if (!n)
				n = call->data_len;
			coop_call_put(call);
		}
		if (n < 0)
			break;
		got += n;
		if (n < bytes)
			break;
	}
	return got ? got : n == -ESTALE ? -EIO : n;
}

/* Returns the bytes read from the start without a gap. */
static ssize_t direct_end_read(struct coop_direct *op)
{
	struct coop_mount *m = coop_sb(op->inode->i_sb);
	struct coop_span *s, *next;
	ssize_t done = 0, n = 0;
	bool more = true;

	list_for_each_entry_safe(s, next, &op->spans, link) {
		const int err = span_error(op, s);

		if (more) {
			n = err == -ESTALE ? read_in_parts(op, s) : err ?: s->call->data_len;
			if (n > 0)
				done += n;
			more = n == s->bytes;
		}
		span_free(s, op->dirties && (!err || err == -ESTALE));
	}
	if (done) {
		coop_count_source(&m->stats, COOP_FROM_STORAGE, DIV_ROUND_UP(done, PAGE_SIZE),
				  done);
		coop_count_request(&m->stats, COOP_FROM_STORAGE, coop_now_us() - op->begun);
	}
	return done ? done : n;
}

static ssize_t read_all(struct kiocb *iocb, struct iov_iter *to, struct coop_file *f)
{
	struct coop_direct op;
	ssize_t done = 0, n;

	do {
		direct_init(&op, iocb, f, to);
		n = direct_start(&op, to, SPANS_READ);
		if (n)
			break;
		n = direct_end_read(&op);
		iov_iter_revert(to, op.taken - max_t(ssize_t, n, 0));
		if (n > 0) {
			iocb->ki_pos += n;
			done += n;
		}
		cond_resched();
	} while (n == op.taken && iov_iter_count(to));
	return done ? done : n;
}

ssize_t coop_direct_read(struct kiocb *iocb, struct iov_iter *to)
{
	struct file *file = iocb->ki_filp;
	struct inode *inode = file_inode(file);
	struct coop_direct *op;
	ssize_t n;

	if (!iov_iter_count(to))
		return 0;
	n = coop_file_say(file->private_data);
	if (n)
		return n;
	/* Also write dirty pages past the range: storage's file may end before them. */
	n = filemap_write_and_wait_range(inode->i_mapping, iocb->ki_pos, LLONG_MAX);
	if (n)
		return n;
	/* Spans past the known end are sent after those before it have ended, so the task waits. */
	if (!may_be_async(iocb, to) || iocb->ki_pos + iov_iter_count(to) > i_size_read(inode))
		return read_all(iocb, to, file->private_data);
	op = kmalloc(sizeof(*op), GFP_KERNEL);
	if (!op)
		return -ENOMEM;
	direct_init(op, iocb, coop_file_get(file->private_data), to);
	return direct_submit(op, to);
}

/* ---- the end of asynchronous requests -------------------------------------------------- */

/*
 * On a workqueue of its own: dropping pages, and reading in parts, wait for other calls and for
 * windows of readahead, whose work runs on the mount's queue.
 */
static void direct_work(struct work_struct *work)
{
	struct coop_direct *op = container_of(work, struct coop_direct, work);
	struct kiocb *iocb = op->iocb;
	loff_t at = iocb->ki_pos;
	ssize_t n;

	n = op->write ? direct_end_write(op, &at) : direct_end_read(op);
	if (op->write)
		inode_dio_end(op->inode);
	if (n > 0) {
		iocb->ki_pos += n;
		if (op->write)
			n = generic_write_sync(iocb, n);
	}
	coop_file_put(op->file);
	kfree(op);
	iocb->ki_complete(iocb, n);
}
