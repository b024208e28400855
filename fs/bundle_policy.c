// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * bundle_policy.c - when a mount asks for a bundle, and of what.
 *
 * The rules are those of the user-space client (userland/client/bundle_policy.hpp). The second
 * reply that says that others use a directory is the reason to ask for its bundle. When bundles of
 * three directories in one, or one level further below, were of use, that one is asked for with all
 * that is below it: part after part, each when a directory is looked in that the earlier parts did
 * not have. Parts that do not have that directory either end this. A directory is asked for again
 * only some time later, and the time doubles.
 *
 * The inode of a directory keeps its state from its first notice on, and forgets it when it leaves
 * memory. Only a task that fetches a bundle calls these functions, and there is one of those.
 */
#include <linux/dcache.h>
#include <linux/slab.h>

#include "fs/fs.h"

#define NOTICES_WANTED  2  /* replies about one directory */
#define CHILDREN_WANTED 3  /* bundles below one directory */
#define LEVELS          2  /* above a bundle that count it */
#define MISSES_MOST     3  /* parts in a row without what was wanted */
#define DEPTH_MOST      64 /* looked at above a directory */
#define PAUSE           HZ
#define PAUSE_MOST      (64 * HZ)

struct bundle_turn {
	unsigned long not_before; /* jiffies, if there is a pause */
	unsigned long pause;      /* jiffies; 0: none yet */
};

struct coop_bundled {
	struct bundle_turn plain, subtree;
	u32 notices, children;
	bool begun; /* its subtree: more parts are to come */
	u32 part;   /* the next one */
	u32 misses;
};

static struct coop_bundled *state_of(const struct dentry *dir)
{
	return coop_i(d_inode(dir))->bundled;
}

/* The same, made if there is none yet; NULL: no memory. */
static struct coop_bundled *state_for(const struct dentry *dir)
{
	struct coop_inode *ci = coop_i(d_inode(dir));

	if (!ci->bundled)
		ci->bundled = kzalloc(sizeof(*ci->bundled), GFP_KERNEL | __GFP_NOWARN);
	return ci->bundled;
}

static bool turn_now(const struct bundle_turn *t)
{
	return !t->pause || time_after_eq(jiffies, t->not_before);
}

static void turn_wait(struct bundle_turn *t)
{
	const bool rare = !t->pause || time_after(jiffies, t->not_before + PAUSE_MOST);

	t->pause = rare ? PAUSE : min_t(unsigned long, 2 * t->pause, PAUSE_MOST);
	t->not_before = jiffies + t->pause;
}

/* Goes one up. The argument's reference moves to the result; NULL: it was the root. */
static struct dentry *dir_above(struct dentry *at)
{
	struct dentry *parent = IS_ROOT(at) ? NULL : dget_parent(at);

	dput(at);
	return parent;
}

static bool take_part(struct dentry *at, struct coop_bundle_want *want)
{
	want->dir = at;
	want->subtree = true;
	want->part = state_of(at)->part;
	return true;
}

/* Is the directory in a subtree whose parts are being fetched? *now: its next one is due. */
static bool in_subtree(struct dentry *dir, struct coop_bundle_want *want, bool *now)
{
	struct dentry *at = dget(dir);
	u32 i;

	for (i = 0; at && i < DEPTH_MOST; i++, at = dir_above(at)) {
		const struct coop_bundled *s = state_of(at);

		if (!s || !s->begun)
			continue;
		*now = turn_now(&s->subtree) && take_part(at, want);
		if (!*now)
			dput(at);
		return true;
	}
	dput(at);
	return false;
}

/* Begins with the subtree of a directory above. */
static bool begin_subtree(struct dentry *dir, struct coop_bundle_want *want)
{
	struct dentry *at = dir_above(dget(dir));
	u32 i;

	for (i = 0; at && i < LEVELS; i++, at = dir_above(at)) {
		struct coop_bundled *s = state_of(at);

		if (!s || s->children < CHILDREN_WANTED || !turn_now(&s->subtree))
			continue;
		s->begun = true;
		s->part = 0;
		s->misses = 0;
		return take_part(at, want);
	}
	dput(at);
	return false;
}

bool coop_bundle_wanted(struct dentry *dir, struct coop_bundle_want *want)
{
	struct coop_bundled *d = state_for(dir);
	bool now;

	if (!d)
		return false;
	want->sought = coop_i(d_inode(dir))->fid;
	d->notices++;
	if (in_subtree(dir, want, &now))
		return now;
	if (d->notices < NOTICES_WANTED)
		return false;
	if (begin_subtree(dir, want))
		return true;
	if (!turn_now(&d->plain))
		return false;
	want->dir = dget(dir);
	want->subtree = false;
	want->part = 0;
	return true;
}

void coop_bundle_came(const struct coop_bundle_want *want, bool used, bool more, bool had)
{
	struct coop_bundled *d = state_of(want->dir);
	struct dentry *at;
	u32 i;

	d->notices = 0;
	if (want->subtree) {
		d->children = 0;
		d->misses = had ? 0 : d->misses + 1;
		d->begun = used && more && d->misses < MISSES_MOST;
		d->part = want->part + 1;
	}
	if (!d->begun || !want->subtree) /* else the next part may follow at once */
		turn_wait(want->subtree ? &d->subtree : &d->plain);
	if (!used || want->part)
		return;
	at = dir_above(dget(want->dir));
	for (i = 0; at && i < LEVELS; i++, at = dir_above(at)) {
		struct coop_bundled *s = state_for(at);

		if (s)
			s->children++;
	}
	dput(at);
}
