// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * export.c - files by handle: open_by_handle_at(2), and knfsd, which exports a mount
 * to NFS clients.
 *
 * A handle is storage's own, in words: its length in the first byte, zeros at the end. It is
 * valid as long as the file exists, over restarts of this node and of the daemon, and on
 * another mount. A handle comes from outside, so we trust nothing in it: storage checks it by a
 * MAC.
 */
#include <linux/exportfs.h>

#include "fs/fs.h"

/* A type that the kernel does not use (enum fid_type), below 0xff. */
#define FH_TYPE 0xc0

static u32 words_of(u32 length)
{
	return DIV_ROUND_UP(1 + length, sizeof(u32));
}

static int coop_encode_fh(struct inode *inode, __u32 *fh, int *room, struct inode *parent)
{
	const struct coop_inode *ci = coop_i(inode);
	const int words = words_of(ci->fh_len);
	u8 *bytes = (u8 *)fh;

	if (*room < words) {
		*room = words;
		return FILEID_INVALID;
	}
	*room = words;
	memset(fh, 0, words * sizeof(*fh));
	bytes[0] = ci->fh_len;
	memcpy(bytes + 1, ci->fh, ci->fh_len);
	return FH_TYPE;
}

/* Runs op, LOOKUP of name or GETATTR, on 'fh' and returns a dentry of the file in the reply. */
static struct dentry *ask(struct super_block *sb, u16 op, const u8 *fh, u32 fh_len,
			  const char *name)
{
	const u64 asked = coop_ticket(sb);
	struct coop_call *call = coop_call_alloc(coop_sb(sb)->storage, op);
	struct inode *inode;
	int err;

	if (!call)
		return ERR_PTR(-ENOMEM);
	/* A handle belongs to no mount: the mount that opens it checks the rights. */
	coop_call_cred(call, coop_caller_any(sb));
	call->arg.fh.p = fh;
	call->arg.fh.len = fh_len;
	if (name) {
		call->arg.name.p = name;
		call->arg.name.len = strlen(name);
	}
	err = coop_call_run(call);
	if (err)
		inode = ERR_PTR(err);
	else if (name)
		inode = coop_iget(sb, &call->res.attr, call->res.fh.p, call->res.fh.len, asked);
	else
		inode = coop_iget(sb, &call->res.attr, fh, fh_len, asked);
	coop_call_put(call);
	return d_obtain_alias(inode);
}

static struct dentry *coop_fh_to_dentry(struct super_block *sb, struct fid *fid, int words,
					int type)
{
	const u8 *bytes = (const u8 *)fid->raw;

	if (type != FH_TYPE || words < 1 || !bytes[0] || bytes[0] > COOP_ST_FH_MAX ||
	    words < words_of(bytes[0]))
		return ERR_PTR(-ESTALE);
	return ask(sb, COOP_ST_GETATTR, bytes + 1, bytes[0], NULL);
}

static struct dentry *coop_get_parent(struct dentry *child)
{
	const struct coop_inode *ci = coop_i(d_inode(child));

	return ask(child->d_sb, COOP_ST_LOOKUP, ci->fh, ci->fh_len, "..");
}

const struct export_operations coop_export_ops = {
	.encode_fh = coop_encode_fh,
	.fh_to_dentry = coop_fh_to_dentry,
	.get_parent = coop_get_parent,
	/* Attributes before and after a change are not atomic with it: other nodes change files
	 * too. */
	.flags = EXPORT_OP_NOWCC | EXPORT_OP_NOSUBTREECHK | EXPORT_OP_CLOSE_BEFORE_UNLINK |
		 EXPORT_OP_REMOTE_FS | EXPORT_OP_NOATOMIC_ATTR,
};
