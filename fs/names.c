// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * names.c - all names of a directory, and their files, as a bundle has told them.
 *
 * A look-up of a name that is not among them needs no storage, nor does one of a file whose inode
 * is in memory. The table holds no inode and no dentry: the VFS frees these as it likes, and then
 * storage is asked. It is replaced or dropped as a whole: with the directory's lease, when we
 * begin to change a name in the directory, and when a path through it has proved stale.
 *
 * The names are true for every user. Who may search the directory is another matter (rights.c).
 *
 * The table is one allocation: records, after an index that is sorted by the hash of the name.
 */
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/stringhash.h>

#include "fs/fs.h"

#define NAMES_OF_ONE (256 << 10) /* most bytes of a directory's table */

struct name_at {
	u32 hash;
	u32 at; /* byte of 'records' */
};

/* A record: file id (zero: unknown), length, name. */
#define RECORD_LEN  sizeof(struct coop_fid)
#define RECORD_NAME (RECORD_LEN + 1)

struct coop_names {
	u64 asked; /* ticket */
	u32 n, used;
	u32 room_n, cost;
	u8 *records;
	struct name_at index[];
};

static atomic64_t *names_bytes(struct coop_inode *ci)
{
	return &coop_sb(ci->vfs.i_sb)->leases.listing_bytes;
}

static u32 name_hash(const void *name, u32 len)
{
	return full_name_hash(NULL, name, len);
}

struct coop_names *coop_names_alloc(u32 n, u32 bytes)
{
	struct coop_names *names;
	const size_t index = sizeof(*names) + (size_t)n * sizeof(names->index[0]);
	const size_t size = index + (size_t)n * RECORD_NAME + bytes;

	if (n > NAMES_OF_ONE || bytes > NAMES_OF_ONE || size > NAMES_OF_ONE)
		return NULL;
	/* Not vmalloc(): it is freed under a spinlock. */
	names = kmalloc(size, GFP_KERNEL_ACCOUNT | __GFP_NOWARN | __GFP_NORETRY);
	if (!names)
		return NULL;
	names->n = 0;
	names->used = 0;
	names->room_n = n;
	names->cost = size;
	names->records = (u8 *)names + index;
	return names;
}

void coop_names_free(struct coop_names *names)
{
	kfree(names);
}

void coop_names_add(struct coop_names *names, const struct coop_st_bytes *name,
		    const struct coop_fid *fid)
{
	const struct coop_fid none = {};
	u8 *record = names->records + names->used;

	if (WARN_ON_ONCE(names->n == names->room_n ||
			 record + RECORD_NAME + name->len > (u8 *)names + names->cost))
		return;
	memcpy(record, fid ?: &none, sizeof(none));
	record[RECORD_LEN] = name->len;
	memcpy(record + RECORD_NAME, name->p, name->len);
	names->index[names->n].hash = name_hash(name->p, name->len);
	names->index[names->n].at = names->used;
	names->n++;
	names->used += RECORD_NAME + name->len;
}

static int by_hash(const void *a, const void *b)
{
	const u32 x = ((const struct name_at *)a)->hash, y = ((const struct name_at *)b)->hash;

	return x < y ? -1 : x > y;
}

void coop_names_drop_locked(struct coop_inode *ci)
{
	lockdep_assert_held(&ci->lock);
	if (!ci->names)
		return;
	atomic64_sub(ci->names->cost, names_bytes(ci));
	coop_names_free(ci->names);
	WRITE_ONCE(ci->names, NULL);
}

void coop_names_forget(struct inode *dir)
{
	struct coop_inode *ci = coop_i(dir);

	if (!READ_ONCE(ci->names))
		return;
	spin_lock(&ci->lock);
	coop_names_drop_locked(ci);
	spin_unlock(&ci->lock);
}

void coop_names_keep(struct inode *dir, struct coop_names *names, u64 asked)
{
	struct coop_inode *ci = coop_i(dir);
	u64 since;

	sort(names->index, names->n, sizeof(names->index[0]), by_hash, NULL);
	names->asked = asked;
	spin_lock(&ci->lock);
	since = coop_lease_since(dir);
	if (since && asked > since && asked > ci->lease_broken && !ci->lease_changes) {
		coop_names_drop_locked(ci);
		if (atomic64_read(names_bytes(ci)) <= COOP_KEPT_OF_ALL) {
			atomic64_add(names->cost, names_bytes(ci));
			WRITE_ONCE(ci->names, names);
			names = NULL;
		}
	}
	spin_unlock(&ci->lock);
	coop_names_free(names);
}

/* The record of that name, or NULL. */
static const u8 *find_record(const struct coop_names *names, const struct qstr *name)
{
	const u32 hash = name_hash(name->name, name->len);
	u32 low = 0, high = names->n;

	while (low < high) {
		const u32 middle = low + (high - low) / 2;

		if (names->index[middle].hash < hash)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < names->n && names->index[low].hash == hash; low++) {
		const u8 *record = names->records + names->index[low].at;

		if (record[RECORD_LEN] == name->len &&
		    !memcmp(record + RECORD_NAME, name->name, name->len))
			return record;
	}
	return NULL;
}

struct inode *coop_names_find(struct inode *dir, const struct qstr *name, const struct cred *who,
			      u64 *asked)
{
	struct inode *inode = ERR_PTR(-EAGAIN);
	struct coop_inode *ci = coop_i(dir);
	const struct coop_names *names;
	struct coop_fid fid = {};
	u64 since, seen = 0;
	bool here = false;
	const u8 *record;

	if (!READ_ONCE(ci->names) || IS_ERR(who) || name->len > COOP_ST_NAME_MAX ||
	    !coop_lease_may(dir, who, COOP_MAY_SEARCH))
		return inode;
	spin_lock(&ci->lock);
	names = ci->names;
	since = coop_lease_since(dir);
	/* The end of a lease drops the names, except when all leases end at once: check. */
	if (names && since && names->asked > since) {
		seen = names->asked;
		record = find_record(names, name);
		here = record;
		if (record)
			memcpy(&fid, record, sizeof(fid));
	}
	spin_unlock(&ci->lock);
	if (seen && !here)
		inode = ERR_PTR(-ENOENT);
	else if (fid.hi || fid.lo)
		inode = coop_ilookup(dir->i_sb, &fid) ?: inode;
	if (inode == ERR_PTR(-EAGAIN))
		return inode;
	*asked = seen;
	coop_count(&coop_sb(dir->i_sb)->stats, COOP_C_LEASE_LOOKUPS, 1);
	return inode;
}
