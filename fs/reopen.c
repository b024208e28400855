// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * reopen.c - opens files again after the daemon has forgotten the session.
 *
 * The new daemon gets an OPEN for every open file, under its old id, and then the locks that
 * were taken through it (lock.c). Files that the old daemon did not know of are not included
 * (unsaid.c).
 */
#include "fs/fs.h"

static void reopened(struct coop_call *call)
{
	struct coop_file *f = call->owner;
	struct inode *inode = f->inode;
	struct coop_mount *m = coop_sb(inode->i_sb);

	const int err = call->error;

	if (err != -ECONNRESET)
		WRITE_ONCE(f->error, err);
	if (!err)
		coop_locks_reclaim(f);
	else if (err != -ECONNRESET)
		coop_locks_lost(f);
	coop_locks_reclaim_put(m, err);
	coop_call_put(call);
	coop_file_put(f);
	coop_iput_later(inode);
	coop_calls_end(m);
}

static void reopen(struct coop_mount *m, struct coop_file *f)
{
	struct coop_inode *ci = coop_i(f->inode);
	struct coop_call *call = coop_call_alloc(m->storage, COOP_ST_OPEN);

	if (!call) {
		WRITE_ONCE(f->error, -ENOMEM);
		coop_locks_lost(f);
		coop_file_put(f);
		coop_iput_later(&ci->vfs);
		coop_calls_end(m);
		return;
	}
	coop_call_cred(call, f->cred);
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = f->open_id;
	call->arg.flags = f->flags | COOP_ST_O_AGAIN;
	call->again = true;
	call->owner = f;
	call->done = reopened;
	coop_locks_reclaim_get(m);
	coop_call_submit(call);
}

/* The next file that this reopening has not handled; with references to the file, its inode and the
 * mount. */
static struct coop_file *next_to_reopen(struct coop_mount *m, u32 reopening)
{
	struct coop_file *f, *found = NULL;

	spin_lock(&m->files_lock);
	while (!found && !list_empty(&m->files)) {
		f = list_first_entry(&m->files, struct coop_file, opened);
		if (f->reopening == reopening)
			break;
		f->reopening = reopening;
		list_move_tail(&f->opened, &m->files);
		/* A task that closes it holds the inode until the file is off this list. */
		if (refcount_inc_not_zero(&f->refs)) {
			ihold(f->inode);
			coop_calls_begin(m);
			found = f;
		}
	}
	spin_unlock(&m->files_lock);
	return found;
}

void coop_files_reopen(struct coop_mount *m)
{
	struct coop_file *f;
	u32 reopening;

	spin_lock(&m->files_lock);
	reopening = ++m->reopenings;
	spin_unlock(&m->files_lock);
	while ((f = next_to_reopen(m, reopening)))
		reopen(m, f);
}
