// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * unstable.c - changes that storage has acknowledged but not yet written to its disk.
 *
 * The reply to a WRITE says that the bytes are in the page cache of storage's machine. If
 * that machine crashes, they are lost, and the verifier in a COMMIT's reply differs from
 * that in the WRITE's reply (rpc/storage/STORAGE.md, "Stable storage"). So we keep the
 * folios of a WRITE, with a reference each, until a COMMIT has covered them. If the
 * verifier differs, we make them dirty again, in the ranges that were written, and write
 * them as at first. Writers notice only the delay.
 *
 * Changes that were not kept are reported as lost, once for each open file: direct writes
 * and truncations, whose bytes we do not have; WRITEs without memory for their record;
 * folios that were dropped from the cache since.
 *
 * A WRITE may act as a COMMIT. If storage confirms that, its folios are not kept; if
 * storage could not do it, the reply is that of an ordinary WRITE.
 *
 * An inode has one COMMIT at a time (COOP_I_COMMITTING). An error goes to the mapping
 * before its changes are forgotten, so a task that finds nothing left to commit finds the
 * error there.
 *
 * Kept folios cannot be reclaimed. They count as writeback, so they throttle writers. The
 * flusher starts a COMMIT when it visits their inode, and an inode with many kept folios
 * starts one at once.
 */
#include <linux/backing-dev.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/writeback.h>

#include "fs/fs.h"

#define KEPT_MANY  2048 /* folios of an inode that start a COMMIT */
#define MOST_TRIES 64   /* COMMITs in a row, if the verifier changes each time */

/* The bytes of one WRITE, adjacent, from one or more folios. */
struct coop_kept {
	struct list_head link; /* coop_inode.kept */
	u64 number;            /* coop_inode.unstable when it was kept */
	u64 verifier;
	loff_t pos;
	u32 bytes, n;
	struct folio *folio[];
};

/* ---- records ------------------------------------------------------------------------- */

static void kept_account(struct inode *inode, const struct coop_kept *k, int sign)
{
	u32 i;

	for (i = 0; i < k->n; i++)
		node_stat_mod_folio(k->folio[i], NR_WRITEBACK, sign);
	wb_stat_mod(&inode_to_bdi(inode)->wb, WB_WRITEBACK, sign * (long)k->n);
}

static void kept_free(struct inode *inode, struct coop_kept *k)
{
	u32 i;

	kept_account(inode, k, -1);
	for (i = 0; i < k->n; i++)
		folio_put(k->folio[i]);
	kfree(k);
}

static void kept_free_all(struct inode *inode, struct list_head *list)
{
	struct coop_kept *k, *next;

	list_for_each_entry_safe(k, next, list, link)
		kept_free(inode, k);
}

/* Moves a record from the inode's list to another. */
static void kept_take_locked(struct coop_inode *ci, struct coop_kept *k, struct list_head *to)
{
	lockdep_assert_held(&ci->lock);
	list_move_tail(&k->link, to);
	ci->n_kept -= k->n;
}

static struct coop_kept *kept_alloc(u32 n, gfp_t gfp)
{
	struct coop_kept *k;

	return kmalloc(struct_size(k, folio, n), gfp | __GFP_NOWARN);
}

/* The flusher may wait for memory, but not for what becomes free by the end of WRITEs only. */
struct coop_kept *coop_kept_room(u32 n)
{
	return kept_alloc(n, GFP_NOFS | __GFP_NORETRY);
}

void coop_kept_room_free(struct coop_kept *room)
{
	kfree(room);
}

static void kept_fill(struct coop_kept *k, const struct bio_vec *bvec, u32 n, loff_t pos, u32 bytes)
{
	u32 i;

	k->pos = pos;
	k->bytes = bytes;
	k->n = n;
	for (i = 0; i < n; i++) {
		k->folio[i] = page_folio(bvec[i].bv_page);
		folio_get(k->folio[i]);
	}
}

static bool owes(struct coop_inode *ci)
{
	bool any;

	spin_lock(&ci->lock);
	any = ci->unstable != ci->covered;
	spin_unlock(&ci->lock);
	return any;
}

/* COMMITs and stable WRITEs may end in another order than they were sent: never move back. */
static void covered_to_locked(struct coop_inode *ci, u64 number)
{
	lockdep_assert_held(&ci->lock);
	if (ci->loose <= number)
		ci->loose = 0;
	ci->covered = max(ci->covered, number);
}

static void loose_locked(struct coop_inode *ci, u64 verifier)
{
	lockdep_assert_held(&ci->lock);
	ci->verifier = verifier;
	ci->loose = ++ci->unstable;
}

void coop_unstable_add(struct inode *inode, u64 verifier, bool wrote)
{
	struct coop_inode *ci = coop_i(inode);
	bool lost;

	spin_lock(&ci->lock);
	/* Storage crashed, or could not write: earlier acknowledged changes may be lost. */
	lost = ci->loose && ci->verifier != verifier;
	loose_locked(ci, verifier);
	if (wrote)
		set_bit(COOP_I_WROTE, &ci->flags);
	spin_unlock(&ci->lock);
	if (lost)
		mapping_set_error(inode->i_mapping, -EIO);
	__mark_inode_dirty(inode, I_DIRTY_DATASYNC);
}

void coop_unstable_attributes(struct inode *inode, u64 verifier)
{
	struct coop_inode *ci = coop_i(inode);
	bool open;

	spin_lock(&ci->lock);
	open = !list_empty(&ci->files);
	spin_unlock(&ci->lock);
	if (open)
		coop_unstable_add(inode, verifier, false);
	else
		set_bit(COOP_I_LEFT, &ci->flags);
}

void coop_unstable_keep(struct inode *inode, u64 verifier, struct coop_kept *room,
			const struct bio_vec *bvec, u32 n, loff_t pos, u32 bytes)
{
	/* The end of a WRITE waits for no memory, which others may get only by its end. */
	struct coop_kept *k = room ?: kept_alloc(n, GFP_NOWAIT);
	struct coop_inode *ci = coop_i(inode);
	bool many;

	if (!k) {
		coop_unstable_add(inode, verifier, true);
		return;
	}
	kept_fill(k, bvec, n, pos, bytes);
	kept_account(inode, k, 1);
	k->verifier = verifier;
	spin_lock(&ci->lock);
	k->number = ++ci->unstable;
	list_add_tail(&k->link, &ci->kept);
	ci->n_kept += n;
	many = ci->n_kept >= KEPT_MANY;
	set_bit(COOP_I_WROTE, &ci->flags);
	spin_unlock(&ci->lock);
	__mark_inode_dirty(inode, I_DIRTY_DATASYNC);
	if (many)
		coop_commit_start(inode);
}

bool coop_unstable_coverable(struct inode *inode, u64 *number)
{
	struct coop_inode *ci = coop_i(inode);
	bool yes;

	spin_lock(&ci->lock);
	yes = !ci->changes && !test_bit(COOP_I_WROTE, &ci->flags);
	*number = ci->unstable;
	spin_unlock(&ci->lock);
	return yes;
}

bool coop_unstable_covered(struct inode *inode, u64 verifier, u64 number)
{
	struct coop_inode *ci = coop_i(inode);
	bool good;

	spin_lock(&ci->lock);
	good = !ci->loose || ci->verifier == verifier;
	if (good)
		covered_to_locked(ci, number);
	spin_unlock(&ci->lock);
	return good;
}

void coop_unstable_cut(struct inode *inode, loff_t size)
{
	struct coop_inode *ci = coop_i(inode);
	struct coop_kept *k, *next;
	LIST_HEAD(gone);

	spin_lock(&ci->lock);
	list_for_each_entry_safe(k, next, &ci->kept, link) {
		if (k->pos >= size)
			kept_take_locked(ci, k, &gone);
		else
			k->bytes = min_t(loff_t, k->bytes, size - k->pos);
	}
	spin_unlock(&ci->lock);
	kept_free_all(inode, &gone);
}

void coop_unstable_forget(struct inode *inode)
{
	struct coop_inode *ci = coop_i(inode);
	LIST_HEAD(gone);

	spin_lock(&ci->lock);
	if (list_empty(&ci->files)) {
		if (ci->loose)
			set_bit(COOP_I_LEFT, &ci->flags);
		covered_to_locked(ci, ci->unstable);
		ci->n_kept = 0;
		list_splice_init(&ci->kept, &gone);
		clear_bit(COOP_I_WROTE, &ci->flags);
	}
	spin_unlock(&ci->lock);
	kept_free_all(inode, &gone);
}

/* ---- COMMIT --------------------------------------------------------------------------- */

/* Did storage itself report that it could not write, so that the bytes are lost there? After other
 * errors we ask again. */
static bool answered(int err)
{
	return err == -EIO || err == -ENOSPC || err == -EDQUOT || err == -EROFS;
}

/* The changes that one COMMIT covers. */
struct coop_covered {
	u64 number; /* changes up to this one were answered before it was sent */
	u64 loose, verifier;
};

/* The covered changes are stable, lost, or dirty again. */
static void covered_ended(struct coop_inode *ci, const struct coop_covered *c)
{
	spin_lock(&ci->lock);
	ci->again = false;
	covered_to_locked(ci, c->number);
	if (ci->unstable == c->number)
		clear_bit(COOP_I_WROTE, &ci->flags);
	spin_unlock(&ci->lock);
}

/* Splits the covered records: 'stable', or 'again' if their verifier differs. */
static void covered_take(struct coop_inode *ci, const struct coop_covered *c, u64 verifier,
			 struct list_head *stable, struct list_head *again)
{
	struct coop_kept *k, *next;

	spin_lock(&ci->lock);
	list_for_each_entry_safe(k, next, &ci->kept, link)
		if (k->number <= c->number)
			kept_take_locked(ci, k, k->verifier == verifier ? stable : again);
	ci->again = !list_empty(again);
	spin_unlock(&ci->lock);
}

static void covered_lost(struct inode *inode, const struct coop_covered *c, int err)
{
	struct coop_inode *ci = coop_i(inode);
	LIST_HEAD(gone);

	mapping_set_error(inode->i_mapping, err);
	covered_take(ci, c, 0, &gone, &gone);
	covered_ended(ci, c);
	kept_free_all(inode, &gone);
}

/* Makes a part of a kept folio dirty again. False: a lock holder may have written there since, or
 * the folio is gone. */
static bool folio_again(struct inode *inode, const struct coop_kept *k, u32 i, size_t from,
			size_t len)
{
	struct coop_inode *ci = coop_i(inode);
	bool again;

	set_bit(COOP_I_AGAIN, &ci->flags);
	/* Either hand_over() sees the bit, or we see its 'handed'. */
	smp_mb__after_atomic();
	again = k->number > READ_ONCE(ci->handed) &&
		coop_write_again(inode, k->folio[i], from, len);
	clear_and_wake_up_bit(COOP_I_AGAIN, &ci->flags);
	return again;
}

/* Makes the folios of a record dirty again, or reports the loss. */
static void kept_again(struct inode *inode, const struct coop_kept *k)
{
	loff_t end = k->pos + k->bytes, at = k->pos;
	u32 i;

	coop_count(&coop_sb(inode->i_sb)->stats, COOP_C_STORAGE_WRITTEN_AGAIN, 1);
	for (i = 0; i < k->n && at < end; i++) {
		const loff_t next = min(end, round_up(at + 1, (loff_t)PAGE_SIZE));

		if (!folio_again(inode, k, i, at & ~PAGE_MASK, next - at))
			mapping_set_error(inode->i_mapping, -EIO);
		at = next;
	}
}

/* Storage answered: 0, or -EAGAIN if some of it had to be written again. */
static int covered_answered(struct inode *inode, const struct coop_covered *c, u64 verifier)
{
	struct coop_inode *ci = coop_i(inode);
	LIST_HEAD(stable);
	LIST_HEAD(again);
	struct coop_kept *k;
	int err = 0;

	covered_take(ci, c, verifier, &stable, &again);
	if (c->loose && c->verifier != verifier)
		mapping_set_error(inode->i_mapping, -EIO);
	if (!list_empty(&again)) {
		list_for_each_entry(k, &again, link)
			kept_again(inode, k);
		/* Errors go to the mapping. */
		filemap_fdatawrite(inode->i_mapping);
		filemap_fdatawait_keep_errors(inode->i_mapping);
		err = -EAGAIN;
	}
	covered_ended(ci, c);
	kept_free_all(inode, &stable);
	kept_free_all(inode, &again);
	return err;
}

/* Are all open files unusable, because they could not be opened again or lost a lock? Then we
 * cannot ask what became of their writes. */
static bool cut_off(struct coop_inode *ci)
{
	struct coop_file *f;
	bool cut;

	spin_lock(&ci->lock);
	cut = !list_empty(&ci->files);
	list_for_each_entry(f, &ci->files, link)
		cut = cut && (READ_ONCE(f->error) || READ_ONCE(f->lost));
	spin_unlock(&ci->lock);
	return cut;
}

/*
 * May closed files have left uncommitted changes: attributes, or bytes if closes do not commit? An
 * fsync(2) makes these stable; we cannot know whether they were lost before.
 */
static bool unknown_left(struct inode *inode)
{
	return !coop_sb(inode->i_sb)->opt.commit_on_close ||
	       test_bit(COOP_I_LEFT, &coop_i(inode)->flags);
}

static int commit_once(struct inode *inode)
{
	struct coop_inode *ci = coop_i(inode);
	struct coop_covered c;
	struct coop_file *file;
	struct coop_call *call;
	bool left;
	int err;

	if (!owes(ci) && !unknown_left(inode))
		return 0;
	spin_lock(&ci->lock);
	c = (struct coop_covered){ci->unstable, ci->loose, ci->verifier};
	spin_unlock(&ci->lock);
	file = coop_file_find(inode, 0); /* any open file, also one with O_APPEND */
	if (!file) {
		if (!cut_off(ci))
			return 0; /* its close has committed */
		covered_lost(inode, &c, -EIO);
		return -EIO;
	}
	err = coop_file_say(file);
	if (err) {
		coop_file_put(file);
		return err;
	}
	left = test_and_clear_bit(COOP_I_LEFT,
				  &ci->flags); /* changes left from here on are not covered */
	call = coop_call_alloc_sure(coop_sb(inode->i_sb)->storage, COOP_ST_COMMIT);
	call->arg.fh.p = ci->fh;
	call->arg.fh.len = ci->fh_len;
	call->arg.open_id = file->open_id;
	err = coop_call_run(call);
	if (err && left)
		set_bit(COOP_I_LEFT, &ci->flags);
	if (!err)
		err = covered_answered(inode, &c, call->res.verifier);
	else if (answered(err))
		covered_lost(inode, &c, err);
	coop_call_put(call);
	coop_file_put(file);
	return err;
}

int coop_commit(struct inode *inode)
{
	struct coop_inode *ci = coop_i(inode);
	u32 tries = MOST_TRIES;
	int err;

	if (!owes(ci) && !unknown_left(inode))
		return 0;
	if (wait_on_bit_lock(&ci->flags, COOP_I_COMMITTING, TASK_KILLABLE))
		return -ERESTARTSYS;
	do
		err = commit_once(inode);
	while (err == -EAGAIN && --tries);
	if (err == -EAGAIN)
		err = -EIO;
	clear_and_wake_up_bit(COOP_I_COMMITTING, &ci->flags);
	return err;
}

/* After this, no change that was answered before becomes dirty again. */
static void hand_over(struct inode *inode)
{
	struct coop_inode *ci = coop_i(inode);
	struct coop_kept *k;
	LIST_HEAD(gone);
	bool lost = false;

	spin_lock(&ci->lock);
	k = list_first_entry_or_null(&ci->kept, struct coop_kept, link);
	if (k) {
		lost = ci->loose && ci->verifier != k->verifier;
		loose_locked(ci, k->verifier);
		ci->n_kept = 0;
		list_splice_init(&ci->kept, &gone);
	}
	WRITE_ONCE(ci->handed, ci->unstable);
	spin_unlock(&ci->lock);
	if (lost)
		mapping_set_error(inode->i_mapping, -EIO);
	kept_free_all(inode, &gone);
	/* Pairs with the barrier of folio_again(). */
	smp_mb();
	wait_on_bit(&ci->flags, COOP_I_AGAIN, TASK_UNINTERRUPTIBLE);
}

/*
 * If records stayed when the next owner of a lock writes there, a crash of storage would make us
 * write the old bytes over the new ones. A COMMIT leaves no record. If it fails (the caller is
 * killed, storage is away), we drop the records, and report the bytes as lost if storage loses
 * them. Another task's COMMIT may have taken records: the pages that it has made dirty are written
 * here, while the lock is held.
 */
void coop_unstable_hand_over(struct inode *inode)
{
	if (!coop_commit_kept(inode))
		return;
	hand_over(inode);
	filemap_write_and_wait(inode->i_mapping); /* fsync reports errors */
	hand_over(inode);
}

/* ---- background COMMITs ---------------------------------------------------------------- */

struct coop_commit_later {
	struct work_struct work;
	struct inode *inode; /* a reference */
};

static void commit_work(struct work_struct *work)
{
	struct coop_commit_later *l = container_of(work, struct coop_commit_later, work);
	struct inode *inode = l->inode;
	struct coop_mount *m = coop_sb(inode->i_sb);

	kfree(l);
	clear_bit(COOP_I_COMMIT_QUEUED, &coop_i(inode)->flags);
	/* After an error the next fsync tries again. */
	coop_commit(inode);
	coop_iput_later(inode);
	coop_calls_end(m);
}

void coop_commit_start(struct inode *inode)
{
	struct coop_inode *ci = coop_i(inode);
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_commit_later *l;

	if (test_bit(COOP_I_COMMITTING, &ci->flags) ||
	    test_and_set_bit(COOP_I_COMMIT_QUEUED, &ci->flags))
		return;
	l = kmalloc(sizeof(*l), GFP_NOWAIT | __GFP_NOWARN); /* the end of a WRITE may call */
	if (!l) {
		clear_bit(COOP_I_COMMIT_QUEUED, &ci->flags);
		return;
	}
	INIT_WORK(&l->work, commit_work);
	ihold(inode);
	l->inode = inode;
	coop_calls_begin(m);
	queue_work(m->direct_wq, &l->work);
}

int coop_write_inode(struct inode *inode, struct writeback_control *wbc)
{
	struct coop_inode *ci = coop_i(inode);
	int err = 0;

	if (!S_ISREG(inode->i_mode))
		return 0;
	/* Only a sync waits; otherwise the inode stays dirty while changes need a COMMIT. */
	if (wbc->sync_mode == WB_SYNC_ALL)
		err = coop_commit(inode);
	else if (READ_ONCE(ci->n_kept))
		coop_commit_start(inode);
	if (err || (wbc->sync_mode != WB_SYNC_ALL && owes(ci) && !list_empty(&ci->files)))
		__mark_inode_dirty(inode, I_DIRTY_DATASYNC);
	return err;
}
