// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * dir.c - names: looking them up, how long they are valid, making and removing them.
 *
 * A dentry that was looked up under a lease of its directory is valid as long as the lease
 * (lease.h), for users that storage has let search there. Any other is valid for a short time,
 * because directories carry no proof of their content. d_time holds either, see entry_until().
 * After that we look the name up again and drop the dentry if the name now means another file. If a
 * path proves stale (-ESTALE), the VFS walks it again and revalidates every component. An open must
 * open the file that the name means now: without a lease we ask storage about the last name of the
 * path together with the open, and if the name means another file, the VFS walks again as well
 * (-EOPENSTALE).
 *
 * Storage always creates exclusively. So we know whether the file is new, and its creator may use
 * it whatever its mode is. If another client was faster, the VFS opens the existing file.
 */
#include <linux/namei.h>
#include <linux/slab.h>

#include "fs/fs.h"

#define ENTRY_LIFETIME (1 * HZ)

/* In d_time: the other bits are a ticket. Without it they are jiffies until which it is valid. */
#define BY_LEASE 1UL

/* since: ticket; the lease covers replies to requests after it. 0: no lease. */
static void entry_until(struct dentry *dentry, u64 asked, u64 since)
{
	const bool strict = coop_sb(dentry->d_sb)->opt.strict;

	if (since && asked > since)
		WRITE_ONCE(dentry->d_time, asked << 1 | BY_LEASE);
	else
		WRITE_ONCE(dentry->d_time, (jiffies + (strict ? 0 : ENTRY_LIFETIME)) << 1);
}

/* The name was seen at storage. The caller keeps the parent from changing. */
static void entry_seen(const struct inode *dir, struct dentry *dentry, u64 asked)
{
	const struct coop_inode *ci = coop_i(dir);
	const u64 since = coop_lease_since(dir);
	const bool changes = READ_ONCE(ci->lease_changes);

	/* The reply may be older than our own changes, which cause no recall. */
	entry_until(dentry, asked, since && !changes ? max(since, READ_ONCE(ci->lease_broken)) : 0);
}

/* The same after our own change of the name. */
static void entry_ours(const struct inode *dir, struct dentry *dentry, u64 asked)
{
	entry_until(dentry, asked, coop_lease_since(dir));
}

void coop_entry_seen(struct dentry *dentry, u64 asked)
{
	struct dentry *parent = dget_parent(dentry);

	entry_seen(d_inode(parent), dentry, asked);
	dput(parent);
}

static bool young(const struct dentry *dentry)
{
	const unsigned long until = READ_ONCE(dentry->d_time);

	return !(until & BY_LEASE) && time_after(until, 2 * jiffies);
}

bool coop_name_leased(struct dentry *dentry, const struct cred *who)
{
	const unsigned long seen = READ_ONCE(dentry->d_time);
	const struct inode *dir;
	bool leased = false;
	u64 since;

	if (!(seen & BY_LEASE))
		return false;
	rcu_read_lock(); /* the parent may change at any time */
	dir = d_inode_rcu(READ_ONCE(dentry->d_parent));
	if (dir) {
		since = coop_lease_since(dir);
		leased = since && seen >> 1 > since && coop_lease_may(dir, who, COOP_MAY_SEARCH);
	}
	rcu_read_unlock();
	return leased;
}

static bool answered_by_lease(struct dentry *dentry)
{
	if (!coop_name_leased(dentry, coop_caller_last(dentry->d_sb)))
		return false;
	coop_count(&coop_sb(dentry->d_sb)->stats, COOP_C_LEASE_LOOKUPS, 1);
	return true;
}

/* The slab does not zero d_time: start with a dentry that is not valid. */
static int coop_d_init(struct dentry *dentry)
{
	dentry->d_time = 2 * jiffies;
	return 0;
}

/*
 * Allocates a call about a directory, or about a name in it. ERR_PTR: no memory, or the error in
 * 'who'.
 */
static struct coop_call *call_in(const struct cred *who, struct inode *dir, u16 op,
				 const struct qstr *name)
{
	struct coop_call *call;

	if (IS_ERR(who))
		return ERR_CAST(who);
	call = coop_call_alloc(coop_sb(dir->i_sb)->storage, op);
	if (!call)
		return ERR_PTR(-ENOMEM);
	coop_call_cred(call, who);
	call->arg.fh.p = coop_i(dir)->fh;
	call->arg.fh.len = coop_i(dir)->fh_len;
	if (name) {
		call->arg.name.p = name->name;
		call->arg.name.len = name->len;
	}
	return call;
}

/* ---- looking up ----------------------------------------------------------------- */

/* shared: set if others use the directory. */
static struct inode *ask_name(const struct cred *who, struct inode *dir, const struct qstr *name,
			      u64 asked, bool *shared)
{
	struct coop_call *call;
	struct inode *inode;
	int err;

	if (name->len > COOP_ST_NAME_MAX)
		return ERR_PTR(-ENAMETOOLONG);
	call = call_in(who, dir, COOP_ST_LOOKUP, name);
	if (IS_ERR(call))
		return ERR_CAST(call);
	err = coop_call_run(call);
	inode = err ? ERR_PTR(err)
		    : coop_iget(dir->i_sb, &call->res.attr, call->res.fh.p, call->res.fh.len,
				asked);
	if (!err || err == -ENOENT)
		coop_lease_allow(dir, who, COOP_MAY_SEARCH, asked);
	*shared = call->shared_dir;
	coop_call_put(call);
	return inode;
}

/* The file of that name: known with all names, or from storage. asked: set to a ticket. */
static struct inode *find_name(const struct cred *who, struct inode *dir, const struct qstr *name,
			       unsigned int flags, u64 *asked, bool *shared)
{
	struct inode *inode = ERR_PTR(-EAGAIN);

	*shared = false;
	if (flags & LOOKUP_REVAL) /* a path was stale */
		coop_names_forget(dir);
	else
		inode = coop_names_find(dir, name, who, asked);
	if (inode != ERR_PTR(-EAGAIN))
		return inode;
	*asked = coop_ticket(dir->i_sb);
	return ask_name(who, dir, name, *asked, shared);
}

/* Others use the directory, too: is it time for its bundle? Not for a task that changes names. */
static void dir_is_shared(struct dentry *dir, const struct cred *who, unsigned int flags)
{
	if (!(flags & (LOOKUP_CREATE | LOOKUP_EXCL | LOOKUP_RENAME_TARGET)))
		coop_bundle_noticed(dir, who);
}

static struct dentry *coop_lookup(struct inode *dir, struct dentry *dentry, unsigned int flags)
{
	/* Else the caller holds i_rwsem for writing, to change names. */
	const bool walks = d_in_lookup(dentry);
	const struct cred *who = coop_caller_noted(dir->i_sb, true);
	struct dentry *alias;
	struct inode *inode;
	bool shared;
	u64 asked;

	inode = find_name(who, dir, &dentry->d_name, flags, &asked, &shared);
	if (inode == ERR_PTR(-ESTALE))
		return ERR_PTR(coop_gone_error(dir, -ESTALE));

	set_bit(COOP_I_LOOKUP, &coop_i(dir)->flags);
	if (inode == ERR_PTR(-ENOENT))
		inode = NULL;
	entry_seen(dir, dentry, asked);
	alias = d_splice_alias(inode, dentry);
	if (!IS_ERR_OR_NULL(alias))
		entry_seen(dir, alias, asked);
	if (!IS_ERR(alias) && flags & LOOKUP_OPEN)
		WRITE_ONCE((alias ?: dentry)->d_fsdata, current);
	if (shared && walks && !IS_ERR(alias)) {
		d_lookup_done(dentry); /* others may wait for the name */
		/* i_rwsem of the directory keeps the parent in its place */
		dir_is_shared(dentry->d_parent, who, flags);
	}
	return alias;
}

/*
 * Must we ask storage even if the dentry is young? Yes for a name to be created, which may be free
 * by now, and for a name to be opened that did not exist or is not a regular file. For a regular
 * file coop_open() asks.
 */
static bool must_ask(const struct dentry *dentry, unsigned int flags)
{
	const struct inode *inode = d_inode_rcu(dentry);

	if (flags & (LOOKUP_REVAL | LOOKUP_EXCL))
		return true;
	if (!(flags & LOOKUP_OPEN))
		return false;
	return inode ? !S_ISREG(inode->i_mode) : !(flags & LOOKUP_CREATE);
}

static int coop_d_revalidate(struct dentry *dentry, unsigned int flags)
{
	struct inode *inode, *now, *dir;
	const struct cred *who;
	struct name_snapshot name;
	struct dentry *parent;
	bool same, shared;
	u64 asked;

	if ((!(flags & LOOKUP_REVAL) && answered_by_lease(dentry)) ||
	    (!must_ask(dentry, flags) && young(dentry))) {
		/* An earlier open, usually a creation, left a mark that it did not use. */
		if (flags & LOOKUP_OPEN && READ_ONCE(dentry->d_fsdata) == current)
			WRITE_ONCE(dentry->d_fsdata, NULL);
		return 1;
	}
	if (flags & LOOKUP_RCU)
		return -ECHILD;
	inode = d_inode(dentry);
	if (!inode)
		return 0; /* the VFS looks it up again */
	parent = dget_parent(dentry);
	dir = d_inode(parent);
	set_bit(COOP_I_LOOKUP, &coop_i(dir)->flags);
	/* A rename may be under way, and the sender reads the name later: take a copy. */
	take_dentry_name_snapshot(&name, dentry);
	who = coop_caller_last(dir->i_sb);
	now = find_name(who, dir, &name.name, flags, &asked, &shared);
	release_dentry_name_snapshot(&name);
	/* A caller that changes names holds i_rwsem. */
	if (shared && (!IS_ERR(now) || now == ERR_PTR(-ENOENT)) && !inode_is_locked(dir))
		dir_is_shared(parent, who, flags);
	dput(parent);
	/* An overlay may cause this (caller.c); each operation on the file is checked anyway. */
	if (now == ERR_PTR(-EACCES) && coop_caller_unnoted(dentry->d_sb))
		return 1;
	if (IS_ERR(now))
		return PTR_ERR(now) == -ENOENT || PTR_ERR(now) == -ESTALE ? 0 : PTR_ERR(now);
	same = now == inode;
	iput(now);
	if (same)
		coop_entry_seen(dentry, asked);
	if (same && flags & LOOKUP_OPEN)
		WRITE_ONCE(dentry->d_fsdata, current);
	return same;
}

void coop_name_check_begin(struct coop_name_check *c, struct dentry *dentry, const struct cred *who)
{
	struct coop_call *call;

	c->call = NULL;
	/* Nothing to ask if the walk of this open has just asked, or there is no valid name. */
	if (READ_ONCE(dentry->d_fsdata) == current) {
		WRITE_ONCE(dentry->d_fsdata, NULL);
		if (young(dentry))
			return;
	}
	if (d_unhashed(dentry) || IS_ROOT(dentry) || coop_name_leased(dentry, who))
		return;
	c->who = who;
	c->dentry = dentry;
	c->parent = dget_parent(dentry);
	take_dentry_name_snapshot(&c->name, dentry);
	c->asked = coop_ticket(dentry->d_sb);
	call = call_in(who, d_inode(c->parent), COOP_ST_LOOKUP, &c->name.name);
	if (!IS_ERR(call)) {
		call->lease = false; /* the open's reply brings the file's lease */
		c->call = call;
		coop_call_queue(call);
		return;
	}
	release_dentry_name_snapshot(&c->name);
	dput(c->parent);
}

int coop_name_check_end(struct coop_name_check *c, const struct inode *inode)
{
	const struct coop_fid *fid;
	int err;

	if (!c->call)
		return 0;
	coop_storage_push(c->call->storage); /* in case nothing was sent after it */
	err = coop_call_wait(c->call);
	fid = &c->call->res.attr.fid;
	if (!err && fid->hi == coop_i(inode)->fid.hi && fid->lo == coop_i(inode)->fid.lo) {
		coop_entry_seen(c->dentry, c->asked);
		coop_lease_allow(d_inode(c->parent), c->who, COOP_MAY_SEARCH, c->asked);
	} else if (!err || err == -ENOENT || err == -ESTALE) {
		/* A retry through /proc/PID/fd then opens the file itself, without a name. */
		d_drop(c->dentry);
		err = -EOPENSTALE;
	} else if (err == -EACCES) {
		/*
		 * The task got here without search permission (/proc/PID/fd, a bind mount), or
		 * with permissions that have changed: the next walk asks for them again.
		 */
		coop_attr_expire(d_inode(c->parent));
		err = 0;
	}
	coop_call_put(c->call);
	release_dentry_name_snapshot(&c->name);
	dput(c->parent);
	return err;
}

const struct dentry_operations coop_dentry_ops = {
	.d_revalidate = coop_d_revalidate,
	.d_init = coop_d_init,
};

/* ---- creating --------------------------------------------------------------------- */

/*
 * Runs a call that changes names of the directory, and so its attributes. to: a second directory
 * that it changes; victim: the inode that loses its name; NULL: none.
 */
static int change_names(struct inode *dir, struct coop_call *call, struct inode *to,
			struct inode *victim)
{
	int err;

	err = victim ? coop_lease_change_begin(victim, false) : 0;
	if (err)
		return err; /* nothing was sent, and no other change has begun */
	coop_lease_change_begin(dir, true);
	if (to)
		coop_lease_change_begin(to, true);
	err = coop_call_run(call);
	coop_dirs_changed(call, dir, to, victim, err);
	if (to)
		coop_lease_change_end(to, true, err);
	coop_lease_change_end(dir, true, err);
	coop_attr_expire(dir);
	if (to)
		coop_attr_expire(to);
	if (victim)
		coop_lease_change_end(victim, false, err);
	return err;
}

/* Runs a call that makes a name, and gives the dentry its inode. */
static int make_name(struct inode *dir, struct dentry *dentry, struct coop_call *call)
{
	const u64 asked = coop_ticket(dir->i_sb);
	struct dentry *alias;
	struct inode *inode;
	int err;

	err = change_names(dir, call, NULL, NULL);
	d_drop(dentry);
	if (err)
		return coop_gone_error(dir, err);
	inode = coop_iget(dir->i_sb, &call->res.attr, call->res.fh.p, call->res.fh.len, asked);
	if (IS_ERR(inode))
		return PTR_ERR(inode);
	entry_ours(dir, dentry, asked);
	/* The directory may already be known under an earlier name. */
	alias = d_splice_alias(inode, dentry);
	if (!IS_ERR_OR_NULL(alias))
		dput(alias);
	return PTR_ERR_OR_ZERO(alias);
}

/* The same; puts the call, which may be an ERR_PTR. */
static int make(struct inode *dir, struct dentry *dentry, struct coop_call *call)
{
	int err;

	if (IS_ERR(call))
		return PTR_ERR(call);
	err = make_name(dir, dentry, call);
	coop_call_put(call);
	return err;
}

static int coop_mkdir(struct mnt_idmap *idmap, struct inode *dir, struct dentry *dentry,
		      umode_t mode)
{
	struct coop_call *call =
		call_in(coop_caller(dir->i_sb, idmap, true), dir, COOP_ST_MKDIR, &dentry->d_name);

	if (!IS_ERR(call))
		call->arg.mode = coop_st_mode(mode & S_IALLUGO, current_umask());
	return make(dir, dentry, call);
}

/* Storage refuses devices that its export does not permit. */
static int coop_mknod(struct mnt_idmap *idmap, struct inode *dir, struct dentry *dentry,
		      umode_t mode, dev_t dev)
{
	struct coop_call *call =
		call_in(coop_caller(dir->i_sb, idmap, true), dir, COOP_ST_MKNOD, &dentry->d_name);

	if (!IS_ERR(call)) {
		call->arg.mode = coop_st_mode(mode, current_umask());
		call->arg.rdev = (u64)MAJOR(dev) << 32 | MINOR(dev);
	}
	return make(dir, dentry, call);
}

static int coop_symlink(struct mnt_idmap *idmap, struct inode *dir, struct dentry *dentry,
			const char *target)
{
	struct coop_call *call;

	if (strlen(target) > COOP_ST_TEXT_MAX)
		return -ENAMETOOLONG;
	call = call_in(coop_caller(dir->i_sb, idmap, true), dir, COOP_ST_SYMLINK, &dentry->d_name);
	if (!IS_ERR(call)) {
		call->arg.text.p = target;
		call->arg.text.len = strlen(target);
	}
	return make(dir, dentry, call);
}

static int coop_link(struct dentry *old, struct inode *dir, struct dentry *dentry)
{
	struct coop_inode *ci = coop_i(d_inode(old));
	struct coop_call *call =
		call_in(coop_caller_noted(dir->i_sb, true), dir, COOP_ST_LINK, &dentry->d_name);

	if (!IS_ERR(call)) {
		call->arg.fh2.p = ci->fh;
		call->arg.fh2.len = ci->fh_len;
	}
	return make(dir, dentry, call);
}

static int coop_create(struct mnt_idmap *idmap, struct inode *dir, struct dentry *dentry,
		       umode_t mode, bool excl)
{
	struct coop_storage *storage = coop_sb(dir->i_sb)->storage;
	struct coop_call *call =
		call_in(coop_caller(dir->i_sb, idmap, true), dir, COOP_ST_CREATE, &dentry->d_name);
	int err;

	if (IS_ERR(call))
		return PTR_ERR(call);
	call->arg.open_id = coop_storage_open_id(storage);
	call->arg.flags = COOP_ST_O_READ | COOP_ST_O_EXCL;
	call->arg.mode = coop_st_mode(mode & S_IALLUGO, current_umask());
	err = make_name(dir, dentry, call);
	if (!call->error) /* storage opened it, even if we failed afterwards */
		coop_close_send(dir, call->arg.open_id);
	coop_call_put(call);
	return err;
}

/* ---- create and open ---------------------------------------------------------------- */

/* Creates a file without a name; its dentry cannot be looked up. */
static int make_nameless(struct inode *dir, struct dentry *dentry, struct coop_call *call)
{
	const u64 asked = coop_ticket(dir->i_sb);
	struct inode *inode;
	int err;

	err = coop_call_run(call);
	if (err)
		return coop_gone_error(dir, err);
	inode = coop_iget(dir->i_sb, &call->res.attr, call->res.fh.p, call->res.fh.len, asked);
	if (IS_ERR(inode))
		return PTR_ERR(inode);
	d_instantiate(dentry, inode);
	return 0;
}

/* 0 and an open file; -EEXIST: another client was faster. op: CREATE or TMPFILE. */
static int create_open(const struct cred *who, struct inode *dir, struct dentry *dentry,
		       struct file *file, unsigned int open_flags, umode_t mode, u16 op)
{
	const bool named = op == COOP_ST_CREATE;
	const u32 excl = named || open_flags & O_EXCL ? COOP_ST_O_EXCL : 0;
	struct coop_mount *m = coop_sb(dir->i_sb);
	struct coop_call *call;
	struct coop_file *f;
	struct inode *inode;
	int err;

	if (IS_ERR(who))
		return PTR_ERR(who);
	f = coop_file_alloc(m, coop_file_flags(open_flags), who);
	if (!f)
		return -ENOMEM;
	/* A partial write reads the page first. The creator has every right to its new file. */
	f->flags |= COOP_ST_O_READ;
	call = call_in(who, dir, op, named ? &dentry->d_name : NULL);
	if (IS_ERR(call)) {
		coop_file_free(f);
		return PTR_ERR(call);
	}
	call->arg.open_id = f->open_id;
	call->arg.flags = f->flags | excl;
	call->arg.mode = coop_st_mode(mode & S_IALLUGO, current_umask());
	err = named ? make_name(dir, dentry, call) : make_nameless(dir, dentry, call);
	inode = err ? NULL : d_inode(dentry);
	if (!err && !inode)
		err = -ESTALE;
	if (err) {
		if (!call->error) /* storage opened it, but we have no inode for it */
			coop_close_send(dir, f->open_id);
		goto out;
	}
	if (!coop_file_attach(f, inode))
		err = coop_file_open_anew(f, inode);
	if (!err)
		coop_unstable_add(inode, call->res.verifier, false);
out:
	coop_call_put(call);
	if (err) {
		coop_file_free(f);
		return err;
	}
	file->f_mode |= FMODE_CREATED;
	file->private_data = f;
	return 0;
}

/* For finish_open(): create_open() has set the open file. */
static int opened(struct inode *inode, struct file *file)
{
	file->f_mode |= FMODE_CAN_ODIRECT;
	return 0;
}

static int coop_atomic_open(struct inode *dir, struct dentry *dentry, struct file *file,
			    unsigned int open_flags, umode_t mode)
{
	struct dentry *found = NULL;
	int err;

	if (dentry->d_name.len > COOP_ST_NAME_MAX)
		return -ENAMETOOLONG;
	if (d_in_lookup(dentry) && (open_flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL)) {
		found = coop_lookup(dir, dentry,
				    LOOKUP_OPEN | (open_flags & O_CREAT ? LOOKUP_CREATE : 0));
		if (IS_ERR(found))
			return PTR_ERR(found);
		if (found)
			dentry = found;
	}
	if (!(open_flags & O_CREAT) || d_really_is_positive(dentry))
		return finish_no_open(file, found);
	err = create_open(coop_caller(dir->i_sb, coop_mnt_idmap(file->f_path.mnt), true), dir,
			  dentry, file, open_flags, mode, COOP_ST_CREATE);
	/* Another client was faster: the VFS walks again and opens the existing file. */
	if (err == -EEXIST && !(open_flags & O_EXCL))
		err = -ESTALE;
	if (!err) {
		err = finish_open(file, dentry, opened);
		if (err && !(file->f_mode & FMODE_OPENED))
			coop_file_put(file->private_data);
	}
	dput(found);
	return err;
}

static int coop_tmpfile(struct mnt_idmap *idmap, struct inode *dir, struct file *file, umode_t mode)
{
	struct dentry *dentry = file->f_path.dentry;
	int err;

	err = create_open(coop_caller(dir->i_sb, idmap, true), dir, dentry, file, file->f_flags,
			  mode, COOP_ST_TMPFILE);
	if (err)
		return err;
	err = finish_open(file, dentry, opened);
	if (err && !(file->f_mode & FMODE_OPENED))
		coop_file_put(file->private_data);
	return err;
}

/* ---- removing and moving -------------------------------------------------------------- */

static int remove_name(struct inode *dir, struct dentry *dentry, u16 op)
{
	struct inode *inode = d_inode(dentry);
	struct coop_call *call =
		call_in(coop_caller_noted(dir->i_sb, true), dir, op, &dentry->d_name);
	const u64 asked = coop_ticket(dir->i_sb);
	int err;

	if (IS_ERR(call))
		return PTR_ERR(call);
	err = change_names(dir, call, NULL, inode);
	coop_call_put(call);
	if (err) {
		if (err == -ENOENT || err == -ESTALE)
			d_drop(dentry);
		return err;
	}
	coop_attr_unlinked(inode, op == COOP_ST_RMDIR);
	coop_attr_expire(inode);
	entry_ours(dir, dentry, asked); /* the VFS may keep it as a negative dentry */
	return 0;
}

static int coop_unlink(struct inode *dir, struct dentry *dentry)
{
	return remove_name(dir, dentry, COOP_ST_UNLINK);
}

static int coop_rmdir(struct inode *dir, struct dentry *dentry)
{
	return remove_name(dir, dentry, COOP_ST_RMDIR);
}

static int coop_rename(struct mnt_idmap *idmap, struct inode *from, struct dentry *old,
		       struct inode *to, struct dentry *new, unsigned int flags)
{
	struct inode *target = d_inode(new);
	const u64 asked = coop_ticket(from->i_sb);
	struct coop_call *call;
	int err;

	if (flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE))
		return -EINVAL;
	call = call_in(coop_caller(from->i_sb, idmap, true), from, COOP_ST_RENAME, &old->d_name);
	if (IS_ERR(call))
		return PTR_ERR(call);
	call->arg.fh2.p = coop_i(to)->fh;
	call->arg.fh2.len = coop_i(to)->fh_len;
	call->arg.name2.p = new->d_name.name;
	call->arg.name2.len = new->d_name.len;
	if (flags & RENAME_NOREPLACE)
		call->arg.flags |= COOP_ST_R_NOREPLACE;
	if (flags & RENAME_EXCHANGE)
		call->arg.flags |= COOP_ST_R_EXCHANGE;
	err = change_names(from, call, to, flags & RENAME_EXCHANGE ? NULL : target);
	coop_call_put(call);
	if (err)
		return err;
	if (target) {
		if (!(flags & RENAME_EXCHANGE))
			coop_attr_unlinked(target, S_ISDIR(target->i_mode));
		coop_attr_expire(target);
	}
	coop_attr_expire(d_inode(old));
	/* The VFS moves the dentries after this returns. */
	entry_ours(to, old, asked);
	entry_ours(flags & RENAME_EXCHANGE ? from : to, new, asked);
	return 0;
}

const struct inode_operations coop_dir_inode_ops = {
	.lookup = coop_lookup,
	.create = coop_create,
	.atomic_open = coop_atomic_open,
	.tmpfile = coop_tmpfile,
	.link = coop_link,
	.unlink = coop_unlink,
	.symlink = coop_symlink,
	.mkdir = coop_mkdir,
	.mknod = coop_mknod,
	.rmdir = coop_rmdir,
	.rename = coop_rename,
	.permission = coop_permission,
	.getattr = coop_getattr,
	.setattr = coop_setattr,
	.listxattr = coop_listxattr,
	.get_inode_acl = coop_get_acl,
	.set_acl = coop_set_acl,
};
