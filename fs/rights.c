// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * rights.c - what storage has permitted users to do with a file, under its lease (lease.h).
 *
 * The permissions of an inode are a small array that is replaced as a whole, so that path walks can
 * read it under RCU.
 */
#include <linux/cred.h>
#include <linux/slab.h>

#include "fs/fs.h"

#define USERS_MAX 8 /* users whose permissions an inode keeps */

struct lease_user {
	kuid_t uid;
	kgid_t gid;
	struct group_info *groups; /* a reference */
	u32 rights;
	u64 asked; /* ticket */
};

struct coop_lease_users {
	struct rcu_head rcu;
	u32 n;
	struct lease_user user[USERS_MAX];
};

static bool same_groups(const struct group_info *a, const struct group_info *b)
{
	return a == b || (a->ngroups == b->ngroups &&
			  !memcmp(a->gid, b->gid, a->ngroups * sizeof(a->gid[0])));
}

static bool same_user(const struct lease_user *u, const struct cred *cred)
{
	return uid_eq(u->uid, cred->fsuid) && gid_eq(u->gid, cred->fsgid) &&
	       same_groups(u->groups, cred->group_info);
}

bool coop_lease_may(const struct inode *inode, const struct cred *cred, u32 rights)
{
	const struct coop_inode *ci = coop_i(inode);
	const u64 begun = coop_lease_since(inode), since = max(begun, READ_ONCE(ci->judged_since));
	const struct coop_lease_users *users;
	bool may = false;
	u32 i;

	if (!begun)
		return false;
	rcu_read_lock();
	users = rcu_dereference(ci->lease_users);
	for (i = 0; users && i < users->n && !may; i++) {
		const struct lease_user *u = &users->user[i];

		may = u->asked > since && (u->rights & rights) == rights && same_user(u, cred);
	}
	rcu_read_unlock();
	return may;
}

static void users_put(struct coop_lease_users *users)
{
	u32 i;

	for (i = 0; users && i < users->n; i++)
		put_group_info(users->user[i].groups);
	kfree(users);
}

static void users_free(struct rcu_head *rcu)
{
	users_put(container_of(rcu, struct coop_lease_users, rcu));
}

/* Copies the other users of 'old' whose rights are still valid. If full, omits the one that was
 * added first. */
static void users_copy(struct coop_lease_users *to, const struct coop_lease_users *old, u64 since,
		       const struct cred *cred)
{
	u32 i;

	for (i = old && old->n == USERS_MAX; old && i < old->n; i++) {
		const struct lease_user *u = &old->user[i];

		if (u->asked <= since)
			continue;
		if (same_user(u, cred)) {
			to->user[0].rights |= u->rights;
			continue;
		}
		to->user[to->n] = *u;
		get_group_info(u->groups);
		to->n++;
	}
}

void coop_lease_allow(struct inode *inode, const struct cred *cred, u32 rights, u64 asked)
{
	struct coop_inode *ci = coop_i(inode);
	struct coop_lease_users *users, *old;
	u64 since = coop_lease_since(inode);

	if (!since || asked <= since || coop_lease_may(inode, cred, rights))
		return;
	users = kzalloc(sizeof(*users), GFP_NOFS | __GFP_NOWARN);
	if (!users)
		return;
	users->n = 1;
	users->user[0] = (struct lease_user){.uid = cred->fsuid,
					     .gid = cred->fsgid,
					     .groups = get_group_info(cred->group_info),
					     .rights = rights,
					     .asked = asked};
	spin_lock(&ci->lock);
	since = max(ci->leased_since, ci->judged_since);
	old = rcu_dereference_protected(ci->lease_users, lockdep_is_held(&ci->lock));
	users_copy(users, old, since, cred);
	rcu_assign_pointer(ci->lease_users, users);
	spin_unlock(&ci->lock);
	if (old)
		call_rcu(&old->rcu, users_free);
}

void coop_lease_free(struct coop_inode *ci)
{
	users_put(rcu_dereference_raw(ci->lease_users));
}
