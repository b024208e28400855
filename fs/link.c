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

static const char *coop_get_link(struct dentry *dentry, struct inode *inode,
				 struct delayed_call *done)
{
	struct coop_inode *ci = coop_i(inode);
	const struct coop_st_bytes *text;
	struct coop_call *call;
	char *target;
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
	text = &call->res.text;
	/* A target that contains a NUL is not a path. */
	if (!err && (!text->len || text->len >= PATH_MAX || memchr(text->p, 0, text->len)))
		err = -EIO;
	target = err ? ERR_PTR(err) : kmemdup_nul(text->p, text->len, GFP_KERNEL);
	coop_call_put(call);
	if (IS_ERR_OR_NULL(target))
		return target ?: ERR_PTR(-ENOMEM);
	/* Release: a task that sees the pointer sees the text. */
	if (cmpxchg_release(&inode->i_link, NULL, target))
		kfree(target); /* another task was faster */
	return READ_ONCE(inode->i_link);
}

const struct inode_operations coop_symlink_inode_ops = {
	.get_link = coop_get_link,
	.getattr = coop_getattr,
	.setattr = coop_setattr,
	.permission = coop_permission,
	.listxattr = coop_listxattr,
};
