// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * link.c - reading symbolic links.
 *
 * The target of a link never changes while its identity exists, so we read it once
 * and keep it with the inode, where path walks find it without a request.
 */
#include <linux/namei.h>
#include <linux/slab.h>

#include "fs/fs.h"

int coop_link_keep(struct inode *inode, const struct coop_st_bytes *target)
{
	char *text;

	/* A target that contains a NUL is not a path. */
	if (!target->len || target->len >= PATH_MAX || memchr(target->p, 0, target->len))
		return -EIO;
	text = kmemdup_nul(target->p, target->len, GFP_KERNEL);
	if (!text)
		return -ENOMEM;
	/* Release: a task that sees the pointer sees the text. */
	if (cmpxchg_release(&inode->i_link, NULL, text))
		kfree(text); /* another task was faster */
	return 0;
}

static const char *coop_get_link(struct dentry *dentry, struct inode *inode,
				 struct delayed_call *done)
{
	struct coop_inode *ci = coop_i(inode);
	struct coop_call *call;
	int err;

	if (!dentry)
		return ERR_PTR(-ECHILD);
	call = coop_call_alloc(coop_sb(inode->i_sb)->storage, COOP_ST_READLINK);
	if (!call)
		return ERR_PTR(-ENOMEM);
	coop_call_cred(call, coop_caller_any(inode->i_sb));
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	err = coop_call_run(call);
	if (!err)
		err = coop_link_keep(inode, &call->res.text);
	coop_call_put(call);
	if (err)
		return ERR_PTR(err);
	return READ_ONCE(inode->i_link);
}

const struct inode_operations coop_symlink_inode_ops = {
	.get_link = coop_get_link,
	.getattr = coop_getattr,
	.setattr = coop_setattr,
	.permission = coop_permission,
	.listxattr = coop_listxattr,
};
