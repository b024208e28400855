// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * range.c - operations on ranges that storage executes: allocate, punch, move,
 * search and copy.
 *
 * Storage works on its own bytes, so dirty pages are written first. The pages of
 * the changed range are dropped before the request, and invalidate_lock keeps them
 * from coming back until the reply: a store through a mapping makes the whole page
 * dirty, so a page that stayed would carry bytes from before the change to storage
 * afterwards. Pages outside the range stay and get the new version.
 *
 * If storage fails, the remaining pages have no version and the attributes expire,
 * because storage may have done a part.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pagemap.h>

#include <linux/falloc.h> /* wants the types */

#include "fs/fs.h"

#define DROP_TRIES 3

/* ---- changes ---------------------------------------------------------------------------- */

int coop_range_drop(struct inode *inode, loff_t from, loff_t to)
{
	struct address_space *mapping = inode->i_mapping;
	int tries, err;

	lockdep_assert_held_write(&mapping->invalidate_lock);
	err = filemap_write_and_wait(mapping);
	if (err || from > to)
		return err;
	err = coop_commit_kept(inode);
	if (err)
		return err;
	/* A store through a mapping may dirty a page after it was written: try again. */
	for (tries = 0, err = -EBUSY; err == -EBUSY && tries < DROP_TRIES; tries++)
		err = invalidate_inode_pages2_range(mapping, from >> PAGE_SHIFT, to >> PAGE_SHIFT);
	return err;
}

/* i_rwsem is held. */
static int range_change(struct inode *inode, struct coop_call *call, loff_t from, loff_t to)
{
	struct coop_inode *ci = coop_i(inode);
	int err;
	u8 round;

	inode_dio_wait(inode); /* asynchronous direct writes */
	filemap_invalidate_lock(inode->i_mapping);
	err = coop_range_drop(inode, from, to);
	if (err) {
		filemap_invalidate_unlock(inode->i_mapping);
		return err;
	}
	round = coop_change_begin(ci);
	err = coop_call_run(call);
	if (!err)
		coop_unstable_add(inode, call->res.verifier, true);
	coop_change_end_dropped(inode, round, err ? NULL : &call->res);
	filemap_invalidate_unlock(inode->i_mapping);
	if (err || !coop_attr_ours(inode, &call->res.attr))
		coop_attr_expire(inode);
	return err;
}

static struct coop_call *range_call(struct coop_file *f, u16 op, loff_t offset)
{
	struct coop_inode *ci = coop_i(f->inode);
	struct coop_call *call = coop_call_alloc(coop_sb(f->inode->i_sb)->storage, op);

	if (!call)
		return NULL;
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = f->open_id;
	call->arg.offset = offset;
	return call;
}

/*
 * Storage removes set-id bits and capabilities of a file that it changes, but keeps the bits if it
 * acts as user 0, which the caller need not be: another user may have opened the file, or a mount
 * may map the caller to user 0. So they are removed here before the file changes, and those that
 * only the reply shows are removed after it.
 */
static int change_as_caller(struct file *file, struct coop_call *call, loff_t from, loff_t to)
{
	struct inode *inode = file_inode(file);
	int err;

	lockdep_assert_held_write(&inode->i_rwsem);
	err = file_remove_privs(file);
	if (err)
		return err;
	err = range_change(inode, call, from, to);
	if (!err)
		coop_bits_settle(file);
	return err;
}

/* ---- fallocate(2) ------------------------------------------------------------------------ */

static u32 falloc_flags(int mode)
{
	static const struct {
		int kernel;
		u32 ours;
	} bits[] = {
		{FALLOC_FL_KEEP_SIZE, COOP_ST_FA_KEEP_SIZE},
		{FALLOC_FL_PUNCH_HOLE, COOP_ST_FA_PUNCH},
		{FALLOC_FL_ZERO_RANGE, COOP_ST_FA_ZERO},
		{FALLOC_FL_COLLAPSE_RANGE, COOP_ST_FA_COLLAPSE},
		{FALLOC_FL_INSERT_RANGE, COOP_ST_FA_INSERT},
		{FALLOC_FL_UNSHARE_RANGE, COOP_ST_FA_UNSHARE},
	};
	u32 flags = 0, i;

	for (i = 0; i < ARRAY_SIZE(bits); i++) {
		if (mode & bits[i].kernel)
			flags |= bits[i].ours;
		mode &= ~bits[i].kernel;
	}
	/* Storage refuses flags that we do not know. */
	return mode ? ~0u : flags;
}

long coop_fallocate(struct file *file, int mode, loff_t offset, loff_t length)
{
	struct coop_file *f = file->private_data;
	struct coop_call *call = range_call(f, COOP_ST_FALLOCATE, offset);
	const bool moves = mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE);
	const bool zeroes = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
	struct inode *inode = file_inode(file);
	loff_t from = 0, to = -1;
	int err = 0;

	if (!call)
		return -ENOMEM;
	if (READ_ONCE(f->lost)) {
		coop_call_put(call);
		return -EIO;
	}
	coop_call_fence(call, file);
	call->arg.length = length;
	call->arg.flags = falloc_flags(mode);
	if (moves || zeroes) {
		from = offset;
		to = moves ? LLONG_MAX : offset + length - 1;
	}
	inode_lock(inode);
	if (!(mode & FALLOC_FL_KEEP_SIZE) && offset + length > i_size_read(inode))
		err = inode_newsize_ok(inode, offset + length);
	if (!err)
		err = change_as_caller(file, call, from, to);
	inode_unlock(inode);
	coop_call_put(call);
	return err;
}

/* ---- data and holes ------------------------------------------------------------------------ */

loff_t coop_seek_range(struct file *file, loff_t offset, int whence)
{
	struct inode *inode = file_inode(file);
	struct coop_call *call;
	loff_t at;
	int err;

	if (offset < 0)
		return -ENXIO;
	err = coop_file_say(file->private_data) ?: filemap_write_and_wait(inode->i_mapping);
	if (err)
		return err;
	call = range_call(file->private_data, COOP_ST_SEEK, offset);
	if (!call)
		return -ENOMEM;
	call->arg.flags = whence == SEEK_DATA ? COOP_ST_SEEK_DATA : COOP_ST_SEEK_HOLE;
	err = coop_call_run(call);
	at = err ?: call->res.offset;
	coop_call_put(call);
	return at < 0 ? at : vfs_setpos(file, at, inode->i_sb->s_maxbytes);
}

/* ---- from file to file --------------------------------------------------------------------- */

/* Sends one COPY; length 0: to the end of the file. Returns the bytes copied, or -errno. */
static loff_t copy_once(struct coop_file *in, loff_t pos_in, struct file *file,
			struct coop_file *out, loff_t pos_out, loff_t length, u32 flags)
{
	struct coop_inode *ci = coop_i(out->inode);
	struct coop_call *call;
	loff_t done;
	int err;

	err = coop_file_say(in);
	if (err)
		return err;
	call = range_call(in, COOP_ST_COPY, pos_in);
	if (!call)
		return -ENOMEM;
	coop_call_fence(call, file);
	call->arg.fh2.p = ci->fh;
	call->arg.fh2.len = ci->fh_len;
	call->arg.open_id2 = out->open_id;
	call->arg.offset2 = pos_out;
	call->arg.length = length;
	call->arg.flags = flags;
	err = filemap_write_and_wait_range(in->inode->i_mapping, pos_in, LLONG_MAX);
	if (!err)
		err = change_as_caller(file, call, pos_out,
				       length ? pos_out + length - 1 : LLONG_MAX);
	done = err;
	if (!err)
		done = min_t(u64, call->res.length, length ?: LLONG_MAX);
	coop_call_put(call);
	return done;
}

static ssize_t copy_range(struct coop_file *in, loff_t pos_in, struct file *file,
			  struct coop_file *out, loff_t pos_out, size_t length)
{
	ssize_t done = 0;
	loff_t n = 0;

	while (done < length) {
		inode_lock(out->inode);
		n = copy_once(in, pos_in + done, file, out, pos_out + done,
			      min_t(size_t, length - done, COOP_ST_COPY_MAX), 0);
		inode_unlock(out->inode);
		if (n <= 0)
			break;
		done += n;
		/* Not before a step: 0 would mean the end of the file. */
		if (signal_pending(current))
			break;
	}
	return done ?: n;
}

/* Did one of the open files lose a lock? Another node may hold it now. */
static bool copy_lost(const struct file *in, const struct file *out)
{
	const struct coop_file *from = in->private_data, *to = out->private_data;

	return READ_ONCE(from->lost) || READ_ONCE(to->lost);
}

ssize_t coop_copy_file_range(struct file *in, loff_t pos_in, struct file *out, loff_t pos_out,
			     size_t length, unsigned int flags)
{
	struct coop_file *to;
	ssize_t n = -EXDEV;

	if (file_inode(in)->i_sb == file_inode(out)->i_sb) {
		if (copy_lost(in, out))
			return -EIO;
		to = coop_file_as(out->private_data, false);
		if (IS_ERR(to))
			return PTR_ERR(to);
		n = copy_range(in->private_data, pos_in, out, to, pos_out, length);
		coop_file_put(to);
	}
	if (n == -EOPNOTSUPP || n == -EXDEV)
		n = splice_copy_file_range(in, pos_in, out, pos_out, length);
	return n;
}

loff_t coop_remap_file_range(struct file *in, loff_t pos_in, struct file *out, loff_t pos_out,
			     loff_t length, unsigned int flags)
{
	struct coop_file *to;
	loff_t n;

	if (flags & ~REMAP_FILE_ADVISORY)
		return -EOPNOTSUPP; /* storage cannot compare ranges */
	if (copy_lost(in, out))
		return -EIO;
	to = coop_file_as(out->private_data, false);
	if (IS_ERR(to))
		return PTR_ERR(to);
	inode_lock(to->inode);
	n = copy_once(in->private_data, pos_in, out, to, pos_out, length, COOP_ST_COPY_CLONE);
	inode_unlock(to->inode);
	coop_file_put(to);
	return n;
}
