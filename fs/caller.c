// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * caller.c - the credential with which a request goes to storage.
 *
 * That is the calling task's own credential, unless the task came through an id-mapped mount. Then
 * it is a copy that the mount maps: with user and groups of storage, never installed in any task.
 * Open files and rights under a lease keep that copy and need not know about mounts. A task whose
 * user or group the mount does not map gets EOVERFLOW.
 *
 * The VFS passes the mount's map to most operations, but not to lookup, link, unlink and rmdir. It
 * does pass it to ->permission, which the same task calls on the directory before any of them, in
 * may_lookup(), may_create(), may_delete(), lookup_one_len() and the like. So we note each task's
 * last mount of this file system, and such an operation uses the noted mount. rename(2) looks up
 * its old name after it has walked to the new one, but only if both are on one mount. A note lives
 * as long as its task: a missing note means that the task came through a plain mount, or through no
 * mount at all.
 *
 * Information that storage gives to every user (attributes, the target of a link, names of extended
 * attributes, ACLs, statfs) may be requested without a ->permission before, for example through an
 * open file. The noted mount may then be another one, but the answer does not depend on the user.
 *
 * An overlay calls ->permission as its mounter, but d_revalidate as the task that walks, which the
 * layer may not map. So d_revalidate uses the credential in the note and ignores the task's own: in
 * a plain walk it is the credential of the ->permission just before. If the overlay's upper layer
 * has the directory too, there is no ->permission in the lower layer and no note, and storage may
 * refuse the walking task. We then believe the name. That only means that the name led to the file
 * when a user with search permission looked it up; every later operation is checked.
 *
 * Until the first task comes through an id-mapped mount this file keeps no state. Notes of tasks
 * that have ended keep namespaces alive, so we sweep them every half a minute, and when the number
 * of notes has doubled.
 */
#include <linux/cred.h>
#include <linux/hash.h>
#include <linux/mount.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "fs/fs.h"

#define CALLER_SLOTS  256 /* a power of two */
#define CALLERS_LEAST 64  /* notes before the first sweep because of their number */
#define CALLERS_SWEEP (30 * HZ)

/* A task's note. Only the task itself accesses the fields after 'task', so they need no lock. */
struct caller {
	struct hlist_node link;           /* caller_slot.callers */
	struct pid *task;                 /* a reference: no other task gets this pid */
	struct mnt_idmap *idmap;          /* of its last id-mapped mount; a reference */
	bool noted;                       /* that was its last mount of any kind */
	const struct cred *self, *mapped; /* a credential and what 'idmap' maps it to; references */
};

/* Each walk through any mount locks one slot, unless it is empty. */
struct caller_slot {
	spinlock_t lock;
	struct hlist_head callers;
} ____cacheline_aligned_in_smp;

struct coop_callers {
	atomic_t n;
	int most;                  /* sweep when there are more notes than this */
	struct delayed_work sweep; /* queued while there are notes */
	struct caller_slot slots[CALLER_SLOTS];
};

/* ---- notes -------------------------------------------------------------------------- */

static struct caller_slot *caller_slot(struct coop_callers *all, const struct pid *task)
{
	return &all->slots[hash_ptr(task, ilog2(CALLER_SLOTS))];
}

/* The current task's note, or NULL. */
static struct caller *caller_find(struct coop_callers *all)
{
	const struct pid *task = task_pid(current);
	struct caller_slot *slot = caller_slot(all, task);
	struct caller *c, *found = NULL;

	/* Only the task itself adds its note. */
	if (hlist_empty(&slot->callers))
		return NULL;
	spin_lock(&slot->lock);
	hlist_for_each_entry(c, &slot->callers, link) {
		if (c->task == task) {
			found = c;
			break;
		}
	}
	spin_unlock(&slot->lock);
	return found;
}

static void caller_free(struct caller *c)
{
	if (c->idmap)
		coop_idmap_put(c->idmap);
	if (c->self)
		put_cred(c->self);
	if (c->mapped)
		put_cred(c->mapped);
	put_pid(c->task);
	kfree(c);
}

static bool caller_ended(const struct caller *c)
{
	bool ended;

	rcu_read_lock();
	ended = !pid_task(c->task, PIDTYPE_PID);
	rcu_read_unlock();
	return ended;
}

/* Frees the notes of tasks that have ended, or with 'every' all notes, once they are unused. */
static void callers_sweep(struct coop_callers *all, bool every)
{
	struct hlist_node *next;
	struct caller *c;
	HLIST_HEAD(ended);
	u32 i;

	for (i = 0; i < CALLER_SLOTS; i++) {
		struct caller_slot *slot = &all->slots[i];

		spin_lock(&slot->lock);
		hlist_for_each_entry_safe(c, next, &slot->callers, link) {
			if (!every && !caller_ended(c))
				continue;
			hlist_del(&c->link);
			hlist_add_head(&c->link, &ended);
			atomic_dec(&all->n);
		}
		spin_unlock(&slot->lock);
	}
	hlist_for_each_entry_safe(c, next, &ended, link)
		caller_free(c);
}

static void callers_sweep_work(struct work_struct *work)
{
	struct coop_callers *all = container_of(to_delayed_work(work), struct coop_callers, sweep);

	callers_sweep(all, false);
	/* A task that adds a note after this check queues the sweep itself. */
	if (atomic_read(&all->n))
		schedule_delayed_work(&all->sweep, CALLERS_SWEEP);
}

/* NULL: no memory. */
static struct caller *caller_add(struct coop_callers *all)
{
	struct pid *task = task_pid(current);
	struct caller_slot *slot = caller_slot(all, task);
	struct caller *c = kzalloc(sizeof(*c), GFP_NOFS);

	if (!c)
		return NULL;
	c->task = get_pid(task);
	spin_lock(&slot->lock);
	hlist_add_head(&c->link, &slot->callers);
	spin_unlock(&slot->lock);
	if (atomic_inc_return(&all->n) > READ_ONCE(all->most)) {
		callers_sweep(all, false);
		WRITE_ONCE(all->most, max(CALLERS_LEAST, 2 * atomic_read(&all->n)));
	}
	schedule_delayed_work(&all->sweep, CALLERS_SWEEP);
	return c;
}

static struct coop_callers *callers_get(struct coop_mount *m)
{
	struct coop_callers *all = kvzalloc(sizeof(*all), GFP_NOFS), *first;
	u32 i;

	if (!all)
		return NULL;
	all->most = CALLERS_LEAST;
	INIT_DELAYED_WORK(&all->sweep, callers_sweep_work);
	for (i = 0; i < CALLER_SLOTS; i++)
		spin_lock_init(&all->slots[i].lock);
	/* Release: a task that sees the pointer sees initialised locks. */
	first = cmpxchg_release(&m->callers, NULL, all);
	if (first)
		kvfree(all);
	return first ?: all;
}

void coop_callers_free(struct coop_mount *m)
{
	if (!m->callers)
		return;
	cancel_delayed_work_sync(&m->callers->sweep);
	callers_sweep(m->callers, true);
	kvfree(m->callers);
}

/* ---- mapping ------------------------------------------------------------------------ */

/* Maps the groups and omits those that the mount does not map. Returns a reference; NULL: no
 * memory. */
static struct group_info *map_groups(struct super_block *sb, struct mnt_idmap *idmap,
				     const struct group_info *from)
{
	struct group_info *to = groups_alloc(from->ngroups);
	int i;

	if (!to)
		return NULL;
	to->ngroups = 0;
	for (i = 0; i < from->ngroups; i++) {
		const kgid_t gid = from_vfsgid(idmap, sb->s_user_ns, VFSGIDT_INIT(from->gid[i]));

		if (gid_valid(gid))
			to->gid[to->ngroups++] = gid;
	}
	groups_sort(to);
	return to;
}

/* Returns a reference, or ERR_PTR: -EOVERFLOW, -ENOMEM, -ECHILD without 'wait'. */
static const struct cred *map_current(struct super_block *sb, struct mnt_idmap *idmap, bool wait)
{
	const kuid_t uid = mapped_fsuid(idmap, sb->s_user_ns);
	const kgid_t gid = mapped_fsgid(idmap, sb->s_user_ns);
	struct group_info *groups = NULL;
	struct cred *cred = NULL;
	unsigned int nofs;

	if (!uid_valid(uid) || !gid_valid(gid))
		return ERR_PTR(-EOVERFLOW);
	if (!wait)
		return ERR_PTR(-ECHILD);
	nofs = memalloc_nofs_save(); /* folio locks may be held */
	groups = map_groups(sb, idmap, current_cred()->group_info);
	if (groups)
		cred = prepare_creds();
	memalloc_nofs_restore(nofs);
	if (cred) {
		cred->fsuid = uid;
		cred->fsgid = gid;
		set_groups(cred, groups);
	}
	if (groups)
		put_group_info(groups);
	return cred ?: ERR_PTR(-ENOMEM);
}

static const struct cred *caller_map(struct caller *c, struct super_block *sb,
				     struct mnt_idmap *idmap, bool wait)
{
	struct mnt_idmap *before = c->idmap;
	const struct cred *mapped;

	if (before == idmap && c->self == current_cred())
		return c->mapped;
	mapped = map_current(sb, idmap, wait);
	if (IS_ERR(mapped))
		return mapped;
	if (c->self) {
		put_cred(c->self);
		put_cred(c->mapped);
	}
	c->idmap = coop_idmap_get(idmap);
	c->self = get_current_cred();
	c->mapped = mapped;
	if (before)
		coop_idmap_put(before);
	return mapped;
}

/* ---- the caller's credential -------------------------------------------------------- */

const struct cred *coop_caller(struct super_block *sb, struct mnt_idmap *idmap, bool wait)
{
	struct coop_mount *m = coop_sb(sb);
	struct coop_callers *all = smp_load_acquire(&m->callers); /* with its locks */
	struct caller *c = all ? caller_find(all) : NULL;
	const struct cred *who;

	if (coop_idmap_is_plain(idmap, sb)) {
		if (c)
			c->noted = false;
		return current_cred();
	}
	if (!c && !wait)
		return ERR_PTR(-ECHILD);
	if (!all)
		all = callers_get(m);
	if (!c && all)
		c = caller_add(all);
	if (!c)
		return ERR_PTR(-ENOMEM);
	who = caller_map(c, sb, idmap, wait);
	c->noted = !IS_ERR(who);
	return who;
}

/* The task's note, if its last mount was id-mapped; else NULL. */
static struct caller *caller_noted(struct super_block *sb)
{
	struct coop_callers *all = smp_load_acquire(&coop_sb(sb)->callers); /* with its locks */
	struct caller *c = all ? caller_find(all) : NULL;

	return c && c->noted ? c : NULL;
}

const struct cred *coop_caller_noted(struct super_block *sb, bool wait)
{
	struct caller *c = caller_noted(sb);

	return c ? caller_map(c, sb, c->idmap, wait) : current_cred();
}

const struct cred *coop_caller_last(struct super_block *sb)
{
	const struct caller *c = caller_noted(sb);

	return c ? c->mapped : current_cred();
}

bool coop_caller_unnoted(struct super_block *sb)
{
	return READ_ONCE(coop_sb(sb)->callers) && !caller_noted(sb);
}

const struct cred *coop_caller_any(struct super_block *sb)
{
	const struct cred *who = coop_caller_noted(sb, true);

	return IS_ERR(who) ? current_cred() : who;
}

const struct cred *coop_caller_by(const struct file *file)
{
	const struct vfsmount *mnt = file->f_path.mnt;
	struct super_block *sb = file_inode(file)->i_sb;

	/* On Linux 6.1 an overlay opens by its own path, after a ->permission with the layer's
	 * mount. */
	if (mnt->mnt_sb != sb)
		return coop_caller_noted(sb, true);
	return coop_caller(sb, coop_mnt_idmap(mnt), true);
}

bool coop_mount_maps(const struct inode *inode, struct mnt_idmap *idmap)
{
	return !coop_idmap_is_plain(idmap, inode->i_sb);
}
