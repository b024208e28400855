// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * dir_commit.c - fsync of directories, and sync of their names.
 *
 * Storage makes names at once, in the page cache of its machine; a COMMIT of the directory
 * brings them to its disk. What no COMMIT has covered is in the mount's table, also after
 * the inode has left memory (rpc/storage/uncommitted.h). If a COMMIT finds that names may
 * be lost, the error goes to the directory's mapping, so each open descriptor gets it once.
 *
 * sync(2) and syncfs(2) commit all names by one request. The end of a mount commits none: its
 * table ends, and nobody is left to be told of a loss.
 */
#include <linux/mm.h>
#include <linux/pagemap.h>

#include "fs/fs.h"

int coop_dirs_init(struct coop_mount *m)
{
	void *memory = kvzalloc(coop_uncommitted_size(COOP_UNCOMMITTED_DIRS), GFP_KERNEL_ACCOUNT);

	if (!memory)
		return -ENOMEM;
	spin_lock_init(&m->dirs.lock);
	coop_uncommitted_init(&m->dirs.table, memory, COOP_UNCOMMITTED_DIRS);
	m->dirs.memory = memory;
	return 0;
}

void coop_dirs_free(struct coop_mount *m)
{
	kvfree(m->dirs.memory);
}

/* The caller was killed or timed out: storage may have made the change, or make it later. */
static bool unknown(int err)
{
	return err == -ERESTARTSYS || err == -EINTR || err == -ETIMEDOUT;
}

/* Storage tried to write, and could not. */
static bool failed_at_storage(int err)
{
	return err == -EIO || err == -ENOSPC || err == -EDQUOT;
}

static u64 run_of(struct coop_mount *m, const struct coop_call *call, int err)
{
	return err ? coop_storage_run(m->storage) : call->run;
}

void coop_dirs_changed(const struct coop_call *call, struct inode *dir, struct inode *to,
		       struct inode *victim, int err)
{
	struct coop_mount *m = coop_sb(dir->i_sb);
	const u64 run = run_of(m, call, err);

	if (err && !unknown(err))
		return;
	spin_lock(&m->dirs.lock);
	coop_uncommitted_add(&m->dirs.table, &coop_i(dir)->fid, run, 0);
	if (to && to != dir)
		coop_uncommitted_add(&m->dirs.table, &coop_i(to)->fid, run, 0);
	if (!err && call->op == COOP_ST_RMDIR)
		coop_uncommitted_remove(&m->dirs.table, &coop_i(victim)->fid);
	spin_unlock(&m->dirs.lock);
}

void coop_dir_attributes(const struct coop_call *call, struct inode *dir, int err)
{
	struct coop_mount *m = coop_sb(dir->i_sb);

	if (!S_ISDIR(dir->i_mode) || (err && !unknown(err)))
		return;
	spin_lock(&m->dirs.lock);
	coop_uncommitted_add(&m->dirs.table, &coop_i(dir)->fid, run_of(m, call, err),
			     err ? 0 : call->res.verifier);
	spin_unlock(&m->dirs.lock);
}

static u64 covers(struct coop_mount *m)
{
	u64 number;

	spin_lock(&m->dirs.lock);
	number = coop_uncommitted_now(&m->dirs.table);
	spin_unlock(&m->dirs.lock);
	return number;
}

/* Sends a COMMIT of a directory, or of everything; the caller puts the call. */
static struct coop_call *commit(struct inode *dir, u64 open_id, int *err)
{
	struct coop_call *call = coop_call_alloc(coop_sb(dir->i_sb)->storage, COOP_ST_COMMIT);

	*err = -ENOMEM;
	if (!call)
		return NULL;
	call->arg.fh.p = coop_i(dir)->fh;
	call->arg.fh.len = coop_i(dir)->fh_len;
	call->arg.open_id = open_id;
	*err = coop_call_run(call);
	return call;
}

int coop_dir_fsync(struct file *file, loff_t start, loff_t end, int datasync)
{
	struct inode *dir = file_inode(file);
	struct coop_mount *m = coop_sb(dir->i_sb);
	const u64 number = covers(m);
	struct coop_call *call;
	bool lost = false;
	int err, told;

	call = commit(dir, 0, &err);
	if (!call)
		return err;
	spin_lock(&m->dirs.lock);
	if (!err)
		lost = coop_uncommitted_done(&m->dirs.table, &coop_i(dir)->fid, number, call->run,
					     call->res.verifier);
	else if (failed_at_storage(err))
		coop_uncommitted_failed(&m->dirs.table, &coop_i(dir)->fid, number);
	spin_unlock(&m->dirs.lock);
	if (lost || failed_at_storage(err))
		mapping_set_error(dir->i_mapping, err ?: -EIO);
	coop_call_put(call);
	/* The directory was removed: it has no names. */
	if (err == -ESTALE && coop_gone(dir))
		err = 0;
	told = file_check_and_advance_wb_err(file);
	return err ?: told;
}

int coop_dirs_sync(struct super_block *sb)
{
	struct coop_mount *m = coop_sb(sb);
	struct coop_call *call;
	bool any, lost = false;
	u64 number;
	int err;

	/* The last reference is gone at the end of the mount. */
	if (!atomic_read(&sb->s_active) || !coop_storage_run(m->storage))
		return 0;
	spin_lock(&m->dirs.lock);
	any = coop_uncommitted_any(&m->dirs.table);
	number = coop_uncommitted_now(&m->dirs.table);
	spin_unlock(&m->dirs.lock);
	if (!any)
		return 0;
	call = commit(d_inode(sb->s_root), COOP_ST_COMMIT_ALL, &err);
	if (!call)
		return err;
	if (!err) {
		spin_lock(&m->dirs.lock);
		lost = coop_uncommitted_done_all(&m->dirs.table, number, call->res.verifier);
		spin_unlock(&m->dirs.lock);
	}
	if (lost)
		errseq_set(&sb->s_wb_err, -EIO); /* syncfs(2) tells each descriptor */
	coop_call_put(call);
	return err;
}
