// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * xattr.c - extended attributes, and the ACLs that storage keeps in them.
 *
 * Storage keeps and checks them, as the calling user; this node has no copy except the
 * VFS's cached ACLs. A file's attributes say what it does not have (enum coop_st_has),
 * so a write need not ask for a capability to remove, nor a path walk for an ACL. New
 * attributes drop the cached ACLs, which are then read again.
 *
 * A change of an extended attribute moves the change time at storage and so the data
 * version: it is a change like chmod, and the pages get the new version.
 */
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/posix_acl_xattr.h>
#include <linux/slab.h>
#include <linux/xattr.h>

#include "fs/fs.h"

#define XATTR_PAGES DIV_ROUND_UP(COOP_ST_XATTR_MAX, PAGE_SIZE)

/* ---- transfer of values ----------------------------------------------------------- */

/* Pages for a value, because the caller's buffer may be any memory. */
struct xattr_pages {
	u32 n;
	struct bio_vec bvec[XATTR_PAGES];
};

static void pages_free(struct xattr_pages *p)
{
	u32 i;

	if (!p)
		return;
	for (i = 0; i < p->n; i++)
		__free_page(p->bvec[i].bv_page);
	kfree(p);
}

static struct xattr_pages *pages_alloc(size_t size)
{
	struct xattr_pages *p = kzalloc(sizeof(*p), GFP_NOFS);

	for (; p && size; p->n++) {
		struct bio_vec *v = &p->bvec[p->n];

		v->bv_page = alloc_page(GFP_NOFS);
		if (!v->bv_page) {
			pages_free(p);
			return NULL;
		}
		v->bv_len = min_t(size_t, size, PAGE_SIZE);
		size -= v->bv_len;
	}
	return p;
}

static void pages_to(const struct xattr_pages *p, void *to, size_t len)
{
	u32 i;

	for (i = 0; i < p->n && len; i++) {
		const size_t n = min_t(size_t, len, p->bvec[i].bv_len);

		memcpy_from_page(to, p->bvec[i].bv_page, 0, n);
		to += n;
		len -= n;
	}
}

static void pages_from(struct xattr_pages *p, const void *from)
{
	u32 i;

	for (i = 0; i < p->n; i++) {
		memcpy_to_page(p->bvec[i].bv_page, 0, from, p->bvec[i].bv_len);
		from += p->bvec[i].bv_len;
	}
}

static struct coop_call *xattr_call(struct inode *inode, const struct cred *who, u16 op,
				    const char *name, struct xattr_pages *pages, size_t size)
{
	struct coop_call *call = coop_call_alloc(coop_sb(inode->i_sb)->storage, op);

	if (!call)
		return NULL;
	coop_call_cred(call, who);
	call->arg.fh.p = coop_i(inode)->fh;
	call->arg.fh.len = coop_i(inode)->fh_len;
	if (name) {
		call->arg.name.p = name;
		call->arg.name.len = strlen(name);
	}
	call->bvec = pages->bvec;
	call->n_bvec = pages->n;
	call->data_max = size;
	return call;
}

/*
 * GETXATTR and LISTXATTR. Returns the bytes read, or with size 0 the bytes there are. GETXATTR
 * needs a right only for user attributes, and the VFS has called ->permission for those.
 */
static ssize_t xattr_read(struct inode *inode, u16 op, const char *name, void *buf, size_t size)
{
	const size_t room = min_t(size_t, size, COOP_ST_XATTR_MAX);
	struct xattr_pages *pages = pages_alloc(room);
	const struct cred *who = coop_caller_any(inode->i_sb);
	struct coop_call *call = pages ? xattr_call(inode, who, op, name, pages, room) : NULL;
	ssize_t len = -ENOMEM;

	if (call) {
		call->arg.count = room;
		len = coop_call_run(call);
		if (!len && (call->res.size > COOP_ST_XATTR_MAX ||
			     call->data_len != (room ? call->res.size : 0)))
			len = -EIO;
		if (!len) {
			len = call->res.size;
			pages_to(pages, buf, call->data_len);
		}
		coop_call_put(call);
	}
	pages_free(pages);
	return len;
}

/* ---- changes ----------------------------------------------------------------------- */

static int xattr_change(struct inode *inode, struct coop_call *call)
{
	const bool regular = S_ISREG(inode->i_mode);
	struct coop_inode *ci = coop_i(inode);
	const loff_t none = -1;
	u8 round = 0;
	int err;

	err = coop_lease_change_begin(inode, false);
	if (err)
		return err;
	if (regular)
		round = coop_change_begin(ci);
	err = coop_call_run(call);
	coop_dir_attributes(call, inode, err);
	coop_lease_change_end(inode, false, err);
	if (regular) {
		coop_change_end_alone(inode, round, err ? NULL : &call->res, 0, none, 0, false);
		if (!err)
			coop_unstable_add(inode, call->res.verifier, false);
	}
	if (!err && !coop_attr_ours(inode, &call->res.attr))
		coop_attr_expire(inode);
	forget_all_cached_acls(inode);
	return err;
}

/* value NULL: removes the attribute. */
static int xattr_set(struct inode *inode, struct mnt_idmap *idmap, const char *name,
		     const void *value, size_t size, int flags)
{
	const bool capability = !value && !strcmp(name, XATTR_NAME_CAPS);
	const struct cred *who = coop_caller(inode->i_sb, idmap, true);
	struct xattr_pages *pages;
	struct coop_call *call;
	int err = 0;

	if (capability && IS_ERR(who))
		who = current_cred(); /* see below */
	if (IS_ERR(who))
		return PTR_ERR(who);
	if (size > COOP_ST_XATTR_MAX)
		return -E2BIG;
	if (S_ISREG(inode->i_mode)) /* dirty pages move the change time, so write them first */
		err = filemap_write_and_wait(inode->i_mapping);
	if (err)
		return err;
	pages = pages_alloc(size);
	call = pages ? xattr_call(inode, who, value ? COOP_ST_SETXATTR : COOP_ST_REMOVEXATTR, name,
				  pages, size)
		     : NULL;
	err = -ENOMEM;
	if (call) {
		if (value)
			pages_from(pages, value);
		if (flags & XATTR_CREATE)
			call->arg.flags |= COOP_ST_X_CREATE;
		if (flags & XATTR_REPLACE)
			call->arg.flags |= COOP_ST_X_REPLACE;
		/*
		 * The VFS has checked the right, or removes the capability because of a write,
		 * which needs no right. So act as user 0.
		 */
		if (capability)
			memset(&call->arg.cred, 0, sizeof(call->arg.cred));
		err = xattr_change(inode, call);
		coop_call_put(call);
	}
	pages_free(pages);
	return err;
}

int coop_setattr_prepare(struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr)
{
	struct iattr kill = {.ia_valid = ATTR_FORCE | ATTR_KILL_PRIV};
	const bool kills = attr->ia_valid & ATTR_KILL_PRIV;
	int err;

	attr->ia_valid &= ~ATTR_KILL_PRIV;
	err = setattr_prepare(idmap, dentry, attr);
	/* With a new owner or size storage removes the capability, once it permits the change. */
	if (err || !kills || attr->ia_valid & (ATTR_UID | ATTR_GID | ATTR_SIZE))
		return err;
	/*
	 * Because of a write, which needs no right. If storage refuses that even to user 0
	 * (root_squash), its own kernel removes the capability with the WRITE; see
	 * coop_xattr_get().
	 */
	err = setattr_prepare(idmap, dentry, &kill);
	return err == -EPERM ? 0 : err;
}

/* ---- handlers for the VFS ----------------------------------------------------------- */

/* Do valid attributes say that the file has none of these? */
static bool xattr_without(struct inode *inode, u32 has)
{
	struct coop_inode *ci = coop_i(inode);
	bool without;

	spin_lock(&ci->lock);
	without =
		!(ci->has & has) && (time_before(jiffies, ci->has_until) || coop_lease_attr(inode));
	spin_unlock(&ci->lock);
	return without;
}

static int coop_xattr_get(const struct xattr_handler *handler, struct dentry *dentry,
			  struct inode *inode, const char *name, void *buf, size_t size)
{
	const char *full = xattr_full_name(handler, name);
	int err = 0;

	if (!strcmp(full, XATTR_NAME_CAPS)) {
		if (xattr_without(inode, COOP_ST_HAS_CAPABILITY))
			return -ENODATA;
		/* WRITEs of dirty pages may remove it, and no program may start with it before. */
		if (S_ISREG(inode->i_mode))
			err = filemap_write_and_wait(inode->i_mapping);
	}
	return err ?: xattr_read(inode, COOP_ST_GETXATTR, full, buf, size);
}

static int coop_xattr_set(const struct xattr_handler *handler, struct mnt_idmap *idmap,
			  struct dentry *dentry, struct inode *inode, const char *name,
			  const void *value, size_t size, int flags)
{
	return xattr_set(inode, idmap, xattr_full_name(handler, name), value, size, flags);
}

static const struct xattr_handler xattr_user = {
	.prefix = XATTR_USER_PREFIX,
	.get = coop_xattr_get,
	.set = coop_xattr_set,
};

static const struct xattr_handler xattr_trusted = {
	.prefix = XATTR_TRUSTED_PREFIX,
	.get = coop_xattr_get,
	.set = coop_xattr_set,
};

static const struct xattr_handler xattr_security = {
	.prefix = XATTR_SECURITY_PREFIX,
	.get = coop_xattr_get,
	.set = coop_xattr_set,
};

/* Not of storage, and not listed: `coopfs tree` reads it. */
static int coop_forest_get(const struct xattr_handler *handler, struct dentry *dentry,
			   struct inode *inode, const char *name, void *buf, size_t size)
{
	char *text;
	int n;

	if (!S_ISREG(inode->i_mode))
		return -ENODATA;
	text = kmalloc(PAGE_SIZE, GFP_KERNEL);
	if (!text)
		return -ENOMEM;
	n = coop_roles_text(inode, text);
	if (size && size < n)
		n = -ERANGE;
	else if (size)
		memcpy(buf, text, n);
	kfree(text);
	return n;
}

static const struct xattr_handler xattr_forest = {
	.name = "coopfs.forest",
	.get = coop_forest_get,
};

COOP_XATTR_TABLE coop_xattr_handlers[] = {
	/* clang-format off */
	COOP_ACL_XATTR_HANDLERS
		/* clang-format on */
		& xattr_user,
	&xattr_trusted,
	&xattr_security,
	&xattr_forest,
	NULL,
};

/* Removes trusted attributes, which storage lists for user 0: a mount may map any user to user 0.
 * Returns the remaining bytes. */
static size_t without_trusted(char *list, size_t len)
{
	size_t at = 0, to = 0;

	while (at < len) {
		const size_t n = min(strnlen(list + at, len - at) + 1, len - at);

		if (strncmp(list + at, XATTR_TRUSTED_PREFIX, min(n, XATTR_TRUSTED_PREFIX_LEN))) {
			memmove(list + to, list + at, n);
			to += n;
		}
		at += n;
	}
	return to;
}

ssize_t coop_listxattr(struct dentry *dentry, char *list, size_t size)
{
	const ssize_t len = xattr_read(d_inode(dentry), COOP_ST_LISTXATTR, NULL, list, size);

	return len > 0 && size && !capable(CAP_SYS_ADMIN) ? without_trusted(list, len) : len;
}

/* ---- ACLs ---------------------------------------------------------------------------- */

struct posix_acl *coop_get_acl(struct inode *inode, int type, bool rcu)
{
	const bool access = type == ACL_TYPE_ACCESS;
	const char *name = access ? XATTR_NAME_POSIX_ACL_ACCESS : XATTR_NAME_POSIX_ACL_DEFAULT;
	struct posix_acl *acl;
	size_t room = PAGE_SIZE;
	ssize_t len;
	void *buf;

	if (rcu)
		return ERR_PTR(-ECHILD);
	if (xattr_without(inode, access ? COOP_ST_HAS_ACL : COOP_ST_HAS_DEFAULT_ACL))
		return NULL;
	do {
		buf = kvmalloc(room, GFP_NOFS);
		if (!buf)
			return ERR_PTR(-ENOMEM);
		len = xattr_read(inode, COOP_ST_GETXATTR, name, buf, room);
		acl = len > 0 ? posix_acl_from_xattr(&init_user_ns, buf, len) : ERR_PTR(len);
		kvfree(buf);
		room *= XATTR_PAGES;
	} while (len == -ERANGE && room <= COOP_ST_XATTR_MAX);
	if (!len || len == -ENODATA || len == -EOPNOTSUPP)
		return NULL;
	return acl;
}

int coop_set_acl(struct mnt_idmap *idmap, struct coop_acl_owner *owner, struct posix_acl *acl,
		 int type)
{
	struct inode *inode = coop_acl_inode(owner);
	const char *name = type == ACL_TYPE_ACCESS ? XATTR_NAME_POSIX_ACL_ACCESS
						   : XATTR_NAME_POSIX_ACL_DEFAULT;
	void *buf = NULL;
	int len = 0, err;

	if (acl) {
		len = posix_acl_xattr_size(acl->a_count);
		buf = kvmalloc(len, GFP_KERNEL);
		if (!buf)
			return -ENOMEM;
		len = posix_acl_to_xattr(&init_user_ns, acl, buf, len);
	}
	err = len < 0 ? len : xattr_set(inode, idmap, name, buf, len, 0);
	kvfree(buf);
	return !acl && err == -ENODATA ? 0 : err;
}
