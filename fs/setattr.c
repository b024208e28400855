// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * setattr.c - changes of attributes: owner, mode, times, size.
 *
 * Storage executes them, and checks the rights of the caller; the reply brings the new attributes.
 * Dirty pages go to storage first, because they change time and size there.
 */
#include <linux/fs.h>

#include "fs/fs.h"

static void time_to(struct coop_st_time *to, const struct timespec64 *from)
{
	to->sec = from->tv_sec;
	to->nsec = from->tv_nsec;
}

#define KILL_ID (ATTR_KILL_SUID | ATTR_KILL_SGID)

static void fill_set(struct coop_st_setattr *set, const struct inode *inode,
		     struct mnt_idmap *idmap, const struct iattr *attr)
{
	if (attr->ia_valid & KILL_ID)
		set->valid |= COOP_ST_SET_KILL_ID;
	if (attr->ia_valid & ATTR_MODE) {
		set->valid |= COOP_ST_SET_MODE;
		set->mode = attr->ia_mode & S_IALLUGO;
	}
	if (attr->ia_valid & ATTR_UID) {
		set->valid |= COOP_ST_SET_UID;
		set->uid = from_kuid(&init_user_ns,
				     from_vfsuid(idmap, i_user_ns(inode), attr->ia_vfsuid));
	}
	if (attr->ia_valid & ATTR_GID) {
		set->valid |= COOP_ST_SET_GID;
		set->gid = from_kgid(&init_user_ns,
				     from_vfsgid(idmap, i_user_ns(inode), attr->ia_vfsgid));
	}
	if (attr->ia_valid & ATTR_SIZE) {
		set->valid |= COOP_ST_SET_SIZE;
		set->size = attr->ia_size;
	}
	if (attr->ia_valid & ATTR_ATIME) {
		const bool given = attr->ia_valid & ATTR_ATIME_SET;

		set->valid |= given ? COOP_ST_SET_ATIME : COOP_ST_SET_ATIME_NOW;
		if (given)
			time_to(&set->atime, &attr->ia_atime);
	}
	if (attr->ia_valid & ATTR_MTIME) {
		const bool given = attr->ia_valid & ATTR_MTIME_SET;

		set->valid |= given ? COOP_ST_SET_MTIME : COOP_ST_SET_MTIME_NOW;
		if (given)
			time_to(&set->mtime, &attr->ia_mtime);
	}
}

/* The open file that sets the size, if it is one of ours. Void once that has lost a lock. */
static const struct file *sized_by(const struct iattr *attr)
{
	const bool by_file = attr->ia_valid & ATTR_SIZE && attr->ia_valid & ATTR_FILE;

	return by_file && attr->ia_file->f_op == &coop_file_ops ? attr->ia_file : NULL;
}

/* An open file whose right to write permits the change, whatever the mode is now; or NULL. */
static struct coop_file *open_for(struct inode *inode, const struct iattr *attr)
{
	const struct file *file = sized_by(attr);

	if (attr->ia_valid & ATTR_SIZE)
		return file ? coop_file_get(file->private_data) : NULL;
	return attr->ia_valid & KILL_ID ? coop_file_find(inode, COOP_ST_O_WRITE) : NULL;
}

/* A caller that the mount does not map may still use an open file that it was given. */
static int set_cred(struct coop_call *call, struct inode *inode, struct mnt_idmap *idmap,
		    const struct coop_file *file)
{
	const struct cred *who = coop_caller(inode->i_sb, idmap, true);

	if (who == ERR_PTR(-EOVERFLOW) && file)
		who = file->cred;
	if (IS_ERR(who))
		return PTR_ERR(who);
	coop_call_cred(call, who);
	return 0;
}

/*
 * The file becomes shorter, which changes the bytes behind its new end (see range.c). A page of
 * that end or behind it must not be stored to until i_size is the new one: its WRITE could follow
 * the SETATTR and make storage's file longer again, with old bytes. Takes invalidate_lock.
 */
static int cut_begin(struct inode *inode, loff_t size)
{
	int err;

	filemap_invalidate_lock(inode->i_mapping);
	err = coop_range_drop(inode, size, LLONG_MAX);
	if (err)
		filemap_invalidate_unlock(inode->i_mapping);
	return err;
}

/* Sends a SETATTR of a regular file. cuts: after cut_begin(), whose lock it releases. */
static int set_regular(struct inode *inode, struct coop_call *call, bool sizes, bool cuts)
{
	const u8 round = coop_change_begin(coop_i(inode));
	const int err = coop_call_run(call);
	const struct coop_st_body *res = err ? NULL : &call->res;
	const loff_t none = -1;

	if (res && sizes)
		coop_unstable_cut(inode, res->attr.size);
	if (cuts) {
		coop_change_end_dropped(inode, round, res);
		filemap_invalidate_unlock(inode->i_mapping);
	} else {
		coop_change_end_alone(inode, round, res, 0, none, 0, res && sizes);
	}
	if (res && sizes)
		coop_unstable_add(inode, res->verifier, false);
	else if (res)
		coop_unstable_attributes(inode, res->verifier);
	return err;
}

static int send_setattr(struct inode *inode, struct mnt_idmap *idmap, const struct iattr *attr)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	struct coop_call *call = coop_call_alloc(m->storage, COOP_ST_SETATTR);
	const bool sizes = attr->ia_valid & ATTR_SIZE;
	const bool cuts = sizes && attr->ia_size < i_size_read(inode);
	struct coop_file *file;
	int err;

	if (!call)
		return -ENOMEM;
	file = open_for(inode, attr);
	err = set_cred(call, inode, idmap, file);
	if (!err)
		err = coop_lease_change_begin(inode, false);
	if (err)
		goto out;
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	fill_set(&call->arg.set, inode, idmap, attr);
	if (sized_by(attr))
		coop_call_fence(call, attr->ia_file);
	if (file)
		call->arg.open_id = file->open_id;
	if (cuts) {
		err = cut_begin(inode, attr->ia_size);
		if (err) {
			coop_lease_change_end(inode, false, 0); /* nothing was sent */
			goto out;
		}
	}
	err = S_ISREG(inode->i_mode) ? set_regular(inode, call, sizes, cuts) : coop_call_run(call);
	coop_dir_attributes(call, inode, err);
	coop_lease_change_end(inode, false, err);
	if (!err && !coop_attr_ours(inode, &call->res.attr))
		coop_attr_expire(inode);
out:
	if (file)
		coop_file_put(file);
	coop_call_put(call);
	return err;
}

int coop_setattr(struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr)
{
	/* ATTR_FORCE marks a write. A chown() that changes nothing also sets KILL_ID, but its
	 * caller needs the right to ask. */
	const bool writes = attr->ia_valid & ATTR_FORCE && attr->ia_valid & KILL_ID;
	const bool kill = attr->ia_valid & KILL_ID;
	struct inode *inode = d_inode(dentry);
	const bool maps = coop_mount_maps(inode, idmap);
	/* Storage clears the bits with these. A size from user 0 does not clear them, and a mount
	 * may map another user to user 0. */
	const unsigned int takes = ATTR_UID | ATTR_GID | (maps ? 0 : ATTR_SIZE);
	int err;

	if (sized_by(attr) && coop_file_lost(attr->ia_file))
		return -EIO;
	/*
	 * Storage checks the rights; we only check the range of the size. But storage does not know
	 * what a mount maps: a user that is user 0 there may have rights to mapped files only. So
	 * we check as well on an id-mapped mount.
	 */
	err = maps ? coop_attr_to_judge(inode, idmap) : 0;
	if (err)
		return err;
	if (!maps)
		attr->ia_valid |= ATTR_FORCE;
	err = coop_setattr_prepare(idmap, dentry, attr);
	if (err)
		return err;
	/*
	 * The VFS computed the new mode from the one known here, which may be old. Storage clears
	 * the bits in the file's present mode: because of a new owner or size, or because of
	 * KILL_ID.
	 */
	if (kill && (writes || attr->ia_valid & takes))
		attr->ia_valid &= ~ATTR_MODE;
	if (!writes || attr->ia_valid & takes)
		attr->ia_valid &= ~KILL_ID;
	if (!(attr->ia_valid &
	      (KILL_ID | ATTR_MODE | ATTR_UID | ATTR_GID | ATTR_SIZE | ATTR_ATIME | ATTR_MTIME)))
		return 0;
	if (S_ISREG(inode->i_mode)) {
		if (attr->ia_valid & ATTR_SIZE)
			inode_dio_wait(inode); /* asynchronous direct writes */
		else if (coop_sb(inode->i_sb)->opt.commit_on_close)
			coop_write_to_commit(inode, 0, LLONG_MAX); /* a close usually follows */
		/* Dirty pages change time and size, so they must be written first. */
		err = filemap_write_and_wait(inode->i_mapping);
		if (err)
			return err;
	}
	return send_setattr(inode, idmap, attr);
}

/* ---- changes by another user than the opener --------------------------------------------- */

/*
 * Storage acts as the user who opened the file, and clears the bits of a file that this user
 * changes, but not if it is user 0. Then the bits depend on the caller, as they do locally.
 */
static bool storage_keeps(const struct file *file)
{
	const struct coop_file *f = file->private_data;

	return uid_eq(f->cred->fsuid, GLOBAL_ROOT_UID) &&
	       !ns_capable_noaudit(&init_user_ns, CAP_FSETID);
}

bool coop_bits_unseen(const struct file *file)
{
	/* With a lease no other node has set bits. */
	return storage_keeps(file) && !coop_lease_attr(file_inode(file));
}

void coop_bits_settle(struct file *file)
{
	/* The bytes are changed, so the result of the change stands, whatever happens here. */
	if (storage_keeps(file) && !coop_revalidate(file_inode(file), false))
		file_remove_privs(file);
}
