// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * uncommitted.c - a hash table of directories in two orders of use; see uncommitted.h.
 */
#include "rpc/storage/uncommitted.h"

#define NONE (~0u)

size_t coop_uncommitted_size(u32 n)
{
	return n * (sizeof(struct coop_uncommitted_dir) + sizeof(u32));
}

void coop_uncommitted_init(struct coop_uncommitted *t, void *memory, u32 n)
{
	u32 i;

	memset(t, 0, sizeof(*t));
	t->dirs = (struct coop_uncommitted_dir *)memory;
	t->buckets = (u32 *)(t->dirs + n);
	t->n = n;
	for (i = 0; i < n; i++) {
		t->buckets[i] = NONE;
		t->dirs[i].next = i + 1 < n ? i + 1 : NONE;
	}
	t->order[0].oldest = t->order[0].newest = NONE;
	t->order[1].oldest = t->order[1].newest = NONE;
}

/* File ids are parts of a SHA-256. */
static u32 *bucket_of(struct coop_uncommitted *t, const struct coop_fid *dir)
{
	return &t->buckets[(u32)dir->lo & (t->n - 1)];
}

static u32 find(struct coop_uncommitted *t, const struct coop_fid *dir)
{
	u32 i = *bucket_of(t, dir);

	while (i != NONE && (t->dirs[i].dir.hi != dir->hi || t->dirs[i].dir.lo != dir->lo))
		i = t->dirs[i].next;
	return i;
}

static void order_add(struct coop_uncommitted *t, u32 i)
{
	struct coop_uncommitted_dir *d = &t->dirs[i];
	const u32 which = d->changed != 0;

	d->newer = NONE;
	d->older = t->order[which].newest;
	if (d->older != NONE)
		t->dirs[d->older].newer = i;
	else
		t->order[which].oldest = i;
	t->order[which].newest = i;
}

/* Call it before 'changed' changes between 0 and another value. */
static void order_remove(struct coop_uncommitted *t, u32 i)
{
	struct coop_uncommitted_dir *d = &t->dirs[i];
	const u32 which = d->changed != 0;

	if (d->older != NONE)
		t->dirs[d->older].newer = d->newer;
	else
		t->order[which].oldest = d->newer;
	if (d->newer != NONE)
		t->dirs[d->newer].older = d->older;
	else
		t->order[which].newest = d->older;
}

static void drop(struct coop_uncommitted *t, u32 i)
{
	u32 *at = bucket_of(t, &t->dirs[i].dir);

	order_remove(t, i);
	while (*at != i)
		at = &t->dirs[*at].next;
	*at = t->dirs[i].next;
	t->dirs[i].next = t->free;
	t->free = i;
}

/* The verifier under which a change is made now. */
static u64 verifier_of(const struct coop_uncommitted_dir *d, u64 run)
{
	return d->own && d->run == run ? d->own : run;
}

static void make_room(struct coop_uncommitted *t, u64 run)
{
	const u32 clean = t->order[0].oldest, dirty = t->order[1].oldest;
	const struct coop_uncommitted_dir *d;

	if (t->free != NONE)
		return;
	if (clean != NONE) {
		drop(t, clean);
		return;
	}
	d = &t->dirs[dirty];
	if (!t->doubt) {
		t->doubt = true;
		t->doubt_told = false;
		/* Its own verifier says nothing about the others. */
		t->doubted = d->oldest == verifier_of(d, run) ? run : d->oldest;
	}
	if (t->doubt_at < d->changed)
		t->doubt_at = d->changed;
	drop(t, dirty);
}

/* Makes an entry, which is in no order yet. */
static u32 make(struct coop_uncommitted *t, const struct coop_fid *dir, u64 run)
{
	u32 *bucket = bucket_of(t, dir), i;

	make_room(t, run);
	i = t->free;
	t->free = t->dirs[i].next;
	memset(&t->dirs[i], 0, sizeof(t->dirs[i]));
	t->dirs[i].dir = *dir;
	t->dirs[i].next = *bucket;
	*bucket = i;
	return i;
}

void coop_uncommitted_add(struct coop_uncommitted *t, const struct coop_fid *dir, u64 run, u64 own)
{
	struct coop_uncommitted_dir *d;
	u32 i;

	if (!run)
		return;
	i = find(t, dir);
	if (i == NONE) {
		const bool doubt = t->doubt;
		const u64 doubted = t->doubted;

		i = make(t, dir, run);
		d = &t->dirs[i];
		d->oldest = doubt ? doubted : own ? own : run;
	} else {
		d = &t->dirs[i];
		order_remove(t, i);
		if (!d->changed)
			d->oldest = own ? own : verifier_of(d, run);
	}
	d->changed = ++t->changes;
	d->told = false;
	order_add(t, i);
}

void coop_uncommitted_remove(struct coop_uncommitted *t, const struct coop_fid *dir)
{
	const u32 i = find(t, dir);

	if (i != NONE)
		drop(t, i);
}

bool coop_uncommitted_any(const struct coop_uncommitted *t)
{
	return t->doubt || t->order[1].oldest != NONE;
}

u64 coop_uncommitted_now(const struct coop_uncommitted *t)
{
	return t->changes;
}

/* Keep a directory without uncommitted changes only for what else is known of it. */
static void settle(struct coop_uncommitted *t, u32 i, u64 covers, u64 run, u64 own)
{
	struct coop_uncommitted_dir *d = &t->dirs[i];

	order_remove(t, i);
	if (d->changed <= covers)
		d->changed = 0;
	d->own = own;
	d->run = run;
	order_add(t, i);
	if (!d->changed && own == run && !t->doubt)
		drop(t, i);
}

bool coop_uncommitted_done(struct coop_uncommitted *t, const struct coop_fid *dir, u64 covers,
			   u64 run, u64 verifier)
{
	u32 i = find(t, dir);
	bool lost = false;

	if (!run)
		return false;
	if (i == NONE)
		lost = t->doubt && t->doubted != verifier;
	else if (t->dirs[i].changed)
		lost = t->dirs[i].oldest != verifier;
	if (i == NONE && (verifier != run || t->doubt)) {
		i = make(t, dir, run);
		order_add(t, i);
	}
	if (i != NONE)
		settle(t, i, covers, run, verifier);
	return lost;
}

void coop_uncommitted_failed(struct coop_uncommitted *t, const struct coop_fid *dir, u64 covers)
{
	const u32 i = find(t, dir);

	if (i != NONE)
		settle(t, i, covers, 0, 0);
}

bool coop_uncommitted_done_all(struct coop_uncommitted *t, u64 covers, u64 run)
{
	u32 i, newer;
	bool lost = false;

	for (i = t->order[1].oldest; i != NONE; i = newer) {
		struct coop_uncommitted_dir *d = &t->dirs[i];

		newer = d->newer;
		if (d->changed > covers)
			continue;
		if (d->oldest == run) {
			drop(t, i);
		} else if (d->oldest != verifier_of(d, run) && !d->told) {
			d->told = true;
			lost = true;
		}
	}
	if (t->doubt && t->doubt_at <= covers) {
		if (t->doubted == run) {
			t->doubt = false;
		} else if (!t->doubt_told) {
			t->doubt_told = true;
			lost = true;
		}
	}
	return lost;
}
