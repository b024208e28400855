// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gone.c - a directory that another node removed, and that is still in use here.
 *
 * Storage keeps nothing for a descriptor or a working directory, and answers ESTALE. A local file
 * system goes on to tell the attributes, with a link count of 0, and answers ENOENT for names. So
 * do we, with the attributes known last. Symbolic links and special files are treated alike; a
 * regular file that is open here is kept by storage.
 *
 * ESTALE may also mean that storage has lost the handle of a directory that is still there, whose
 * names must not seem to be gone. So ESTALE has to be a proof (rpc/storage/stale.h), and the name
 * has to be missing in the nearest directory above whose handle holds. Asking for the name lets
 * storage find it again, if it is there.
 *
 * A call that came by a name which does not hold any more must not end with ENOENT: after -ESTALE
 * the VFS walks its path again, and asks for every name. The first ESTALE drops the name here. So
 * what has link count 0 is reached without a name, and the answer is final.
 */
#include <linux/slab.h>

#include "fs/fs.h"
#include "rpc/storage/stale.h"

static struct coop_call *look_up(struct super_block *sb, struct inode *dir)
{
	struct coop_call *call = coop_call_alloc(coop_sb(sb)->storage, COOP_ST_LOOKUP);

	if (call) {
		coop_call_cred(call, coop_caller_any(sb));
		call->lease = false;
		call->arg.fh.p = coop_i(dir)->fh;
		call->arg.fh.len = coop_i(dir)->fh_len;
	}
	return call;
}

/* Whether storage had not just lost the handle. */
static bool stale_proves(struct super_block *sb)
{
	struct coop_call *call = look_up(sb, d_inode(sb->s_root));
	int err;

	if (!call)
		return false;
	call->arg.name.p = (const u8 *)"..";
	call->arg.name.len = 2;
	err = coop_call_run(call);
	coop_call_put(call);
	return coop_st_stale_proves(err);
}

/* Asks for the name of 'dentry'. 0: it means that file. */
static int ask_name_of(struct dentry *dentry, struct dentry *parent)
{
	const struct coop_fid *fid = &coop_i(d_inode(dentry))->fid;
	struct coop_call *call = look_up(dentry->d_sb, d_inode(parent));
	struct name_snapshot name;
	int err;

	if (!call)
		return -ENOMEM;
	take_dentry_name_snapshot(&name, dentry);
	call->arg.name.p = name.name.name;
	call->arg.name.len = name.name.len;
	err = coop_call_run(call);
	if (!err && (call->res.attr.fid.hi != fid->hi || call->res.attr.fid.lo != fid->lo))
		err = -ENOENT;
	release_dentry_name_snapshot(&name);
	coop_call_put(call);
	return err;
}

/* The last name that this node knew of it, or of a directory above it. */
static bool name_is_missing(struct dentry *dentry)
{
	struct dentry *at = dget(dentry), *parent;
	int err = -ESTALE;

	while (err == -ESTALE && !IS_ROOT(at)) {
		parent = dget_parent(at);
		err = ask_name_of(at, parent);
		dput(at);
		at = parent;
	}
	dput(at);
	return err == -ENOENT;
}

int coop_gone_attributes(struct inode *inode)
{
	struct dentry *alias;
	bool missing;

	if (!inode->i_nlink)
		return 0;
	if (S_ISREG(inode->i_mode))
		return -ESTALE;
	alias = d_find_any_alias(inode);
	missing = alias && name_is_missing(alias) && stale_proves(inode->i_sb);
	if (missing)
		coop_attr_unlinked(inode, true);
	/* A mount on top keeps the name, until a walk finds that it does not hold. */
	if (missing && !d_mountpoint(alias))
		d_drop(alias);
	dput(alias);
	return missing ? 0 : -ESTALE;
}

bool coop_gone(struct inode *inode)
{
	if (inode->i_nlink && !S_ISREG(inode->i_mode))
		coop_revalidate(inode, true);
	return !inode->i_nlink;
}

bool coop_gone_known(struct inode *inode)
{
	const bool known = !inode->i_nlink;

	coop_gone(inode);
	return known;
}
