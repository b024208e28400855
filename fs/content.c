// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * content.c - the data version of a file's pages.
 *
 * Either all clean pages of an inode have the version coop_inode.version, or version is 0 and
 * proves nothing about them: this node may read them, but peers do not get them (fs.h has the
 * states in a table). Version becomes 0 when we learn of another client's change, or when a change
 * of our own does not follow our version. Only settling sets it again, which an open does: it drops
 * the pages and takes storage's version. Our own changes normally keep the version known, because
 * storage's reply names the version before and after the change.
 *
 * Many WRITEs are under way at once, and their replies come in any order, while storage executed
 * them one after another. So a reply that does not follow our version waits in 'pending', with its
 * pages still under writeback (and therefore not served), until the replies before it arrive. Those
 * WRITEs were under way when it came, because storage had executed them. If all of them have been
 * answered and it still does not follow, another client wrote in between, or storage could not
 * tell. A writer may start new WRITEs all the time, so we count those under way in two rounds:
 * those begun before a reply began to wait, and those begun since.
 *
 * Attributes that come while a change of our own is under way, or that were asked for before one
 * ended, do not show whether another client wrote, so we ignore them (coop_content_learn_locked(),
 * attr_learn()). An open and a lock must not rely on such a reply: they ask again.
 *
 * 'mixed' counts bytes without a version that arrive while a settling drops the pages. The settling
 * must not overlook them.
 */
#include <linux/pagemap.h>

#include "fs/fs.h"

#define CATCH_UP_TRIES 4 /* requests, each of which an own change may overtake */

/* Is the version a proof? Otherwise it is a provisional number, given to one reply only. */
static bool proven(u64 version)
{
	return version && !(version >> 63);
}

static void unproved_locked(struct coop_inode *ci)
{
	lockdep_assert_held(&ci->lock);
	coop_content_changes(ci);
	ci->mixed++;
	ci->version = 0;
	ci->n_openers = 0;
	wake_up_all(&ci->quiet); /* waiting readers read without a version now */
}

void coop_content_unproved(struct coop_inode *ci)
{
	spin_lock(&ci->lock);
	unproved_locked(ci);
	spin_unlock(&ci->lock);
}

void coop_content_mixes(struct coop_inode *ci)
{
	spin_lock(&ci->lock);
	if (!ci->version)
		ci->mixed++;
	spin_unlock(&ci->lock);
}

/*
 * Pages without a version, and no change of our own since 'seen': did another client change the
 * file? Provisional versions differ in any case; but if the end has moved, the last page is wrong.
 */
static bool others_changed(const struct coop_inode *ci, const struct coop_st_attr *attr)
{
	if (!ci->vfs.i_mapping->nrpages || attr->version == ci->seen)
		return false;
	return attr->size != ci->seen_size || (proven(attr->version) && proven(ci->seen));
}

void coop_content_learn_locked(struct coop_inode *ci, const struct coop_st_attr *attr, u64 asked)
{
	lockdep_assert_held(&ci->lock);
	/* Storage may have answered in the middle of our own changes: wait for their replies. Only
	 * a version that is still ours shows that there was no other change. */
	if (ci->changes) {
		if (ci->version && ci->version == attr->version)
			ci->judged = asked;
		return;
	}
	ci->judged = asked;
	if (ci->longer || (!ci->version && others_changed(ci, attr)))
		set_bit(COOP_I_STALE, &ci->flags);
	ci->seen = attr->version;
	ci->seen_size = attr->size;
	if (ci->version == attr->version)
		return;
	if (ci->version) {
		unproved_locked(ci);
		set_bit(COOP_I_STALE, &ci->flags);
	}
	ci->size = attr->size;
	if (!ci->vfs.i_mapping->nrpages && ci->vfs.i_state & I_NEW)
		ci->version = attr->version; /* no other task has this inode yet */
}

void coop_size_grows_locked(struct coop_inode *ci, u64 size)
{
	struct inode *inode = &ci->vfs;

	lockdep_assert_held(&ci->lock);
	ci->longer = 0;
	if (size <= i_size_read(inode))
		return;
	if (!filemap_range_has_page(inode->i_mapping, i_size_read(inode), LLONG_MAX)) {
		smp_wmb(); /* after the pages were dropped; pairs with coop_size_readable() */
		i_size_write(inode, size);
		return;
	}
	WRITE_ONCE(ci->longer, size);
	coop_attr_expire(inode);
}

void coop_size_written_locked(struct coop_inode *ci, loff_t end)
{
	const loff_t size = i_size_read(&ci->vfs);

	lockdep_assert_held(&ci->lock);
	if (end <= size)
		return;
	if (ci->longer > size) {
		unproved_locked(ci);
		set_bit(COOP_I_STALE, &ci->flags);
	}
	ci->longer = 0;
	i_size_write(&ci->vfs, end);
}

void coop_content_openers(struct coop_inode *ci, u64 version, const u32 *nodes, u32 n_nodes)
{
	spin_lock(&ci->lock);
	if (version == ci->version) {
		ci->n_openers = min_t(u32, n_nodes, COOP_MAX_HINTS);
		memcpy(ci->openers, nodes, ci->n_openers * sizeof(nodes[0]));
	}
	spin_unlock(&ci->lock);
}

static bool settled(struct coop_inode *ci)
{
	bool yes;

	spin_lock(&ci->lock);
	/* While a change of ours is under way, it may be the reason why the file is longer. */
	yes = ci->version && ci->version == ci->seen && !test_bit(COOP_I_LOST, &ci->flags) &&
	      (ci->changes || ci->longer <= i_size_read(&ci->vfs));
	if (yes) /* it may have been set during the last settling, which has handled it */
		clear_bit(COOP_I_STALE, &ci->flags);
	spin_unlock(&ci->lock);
	return yes;
}

/* judged: 'seen' is as new as the caller needs. If not, drops the pages and proves no version. */
static void settle(struct inode *inode, bool judged)
{
	struct address_space *mapping = inode->i_mapping;
	struct coop_inode *ci = coop_i(inode);
	u64 mixed;
	int err;

	if (judged && settled(ci))
		return;
	/* fsync reports a failed write; it does not keep us from settling. */
	filemap_write_and_wait(mapping);
	if (judged && settled(ci)) /* our own writes led to that version */
		return;
	/* Folios kept for a COMMIT cannot be dropped: commit them now. */
	coop_commit_kept(inode);
	filemap_invalidate_lock(mapping);
	spin_lock(&ci->lock);
	unproved_locked(ci);
	mixed = ci->mixed;
	clear_bit(COOP_I_STALE, &ci->flags);
	spin_unlock(&ci->lock);
	err = invalidate_inode_pages2(mapping);
	spin_lock(&ci->lock);
	/* No page is left from before a loss, unless there was another one meanwhile. */
	if (!err && !test_bit(COOP_I_STALE, &ci->flags))
		clear_bit(COOP_I_LOST, &ci->flags);
	if (err) {
		/* A page was dirtied again, or written through a mapping: try again next time. */
		set_bit(COOP_I_STALE, &ci->flags);
	} else if (judged && ci->mixed == mixed && !ci->changes && ci->seen) {
		coop_content_changes(ci);
		ci->version = ci->seen;
		ci->size = ci->seen_size;
	}
	coop_size_grows_locked(ci, ci->longer);
	if (ci->longer && !ci->changes) /* another task brought a page of the end back */
		set_bit(COOP_I_STALE, &ci->flags);
	spin_unlock(&ci->lock);
	filemap_invalidate_unlock(mapping);
}

int coop_content_settle(struct inode *inode)
{
	settle(inode, true);
	return 0;
}

/*
 * Has a reply to a request since that ticket shown what other clients changed? If not, and we have
 * a version, which that reply may contradict: ask again. coop_revalidate() first waits for our own
 * changes, and if they do not end it gives the version up.
 */
void coop_content_catch_up(struct inode *inode, u64 since)
{
	struct coop_inode *ci = coop_i(inode);
	bool judged, ask;
	u32 tries = 0;

	do {
		spin_lock(&ci->lock);
		judged = ci->judged >= since;
		ask = !judged && ci->version && tries++ < CATCH_UP_TRIES;
		spin_unlock(&ci->lock);
	} while (ask && !coop_revalidate(inode, true));
	settle(inode, judged);
}

/*
 * Storage's bytes may be those of the lock's next holder. Calls that were begun before the loss are
 * void, because they have the old number of losses. Later ones send no dirty page while COOP_I_LOST
 * is set, so the next settling, which drops all pages, first ends their writeback with EIO. It may
 * clear the flag then: from the loss on, an open file that lost a lock makes no page dirty, which
 * write_begin and page_mkwrite check under the lock of the folio, and the settling takes each of
 * these locks.
 */
void coop_content_lost(struct coop_inode *ci)
{
	spin_lock(&ci->lock);
	unproved_locked(ci);
	set_bit(COOP_I_STALE, &ci->flags);
	set_bit(COOP_I_LOST, &ci->flags);
	/* Pairs with smp_load_acquire(): a call with the new number sees the flag. */
	smp_store_release(&ci->losses, ci->losses + 1);
	spin_unlock(&ci->lock);
}

/* ---- our own changes --------------------------------------------------------------- */

u8 coop_change_begin(struct coop_inode *ci)
{
	u8 round;

	spin_lock(&ci->lock);
	if (ci->changes++)
		ci->crowded = true;
	round = ci->round;
	ci->in_round[round]++;
	spin_unlock(&ci->lock);
	return round;
}

/*
 * Our change follows another version than ours: if both are proofs, another client wrote in
 * between. Without a version, storage's last one stands for it, if no other change of ours may have
 * come after that one.
 */
static void led_from_locked(struct coop_inode *ci, u64 before)
{
	const u64 from = ci->version ?: ci->crowded ? 0 : ci->seen;

	lockdep_assert_held(&ci->lock);
	if (before != from && proven(before) && proven(from))
		set_bit(COOP_I_STALE, &ci->flags);
}

/*
 * Is there a pending change that no change under way can precede? If not, the pending ones are
 * checked again when all changes that are under way now have been answered.
 */
static bool hopeless_locked(struct coop_inode *ci)
{
	struct coop_change *p;

	lockdep_assert_held(&ci->lock);
	if (!ci->changes)
		return !list_empty(&ci->pending);
	if (ci->round_waits) {
		if (ci->in_round[!ci->round])
			return false;
		ci->round_waits = false;
		list_for_each_entry(p, &ci->pending, link)
			if (p->waited)
				return true;
	}
	if (list_empty(&ci->pending))
		return false;
	list_for_each_entry(p, &ci->pending, link)
		p->waited = true;
	ci->round_waits = true;
	ci->round = !ci->round; /* no change under way belongs to that round */
	return false;
}

/*
 * Ends a change that is under way; storage's state is that after 'res' or later. Pending changes
 * that have nothing left to wait for go to 'settled'.
 */
static void change_done_locked(struct coop_inode *ci, u8 round, const struct coop_st_body *res,
			       struct list_head *settled)
{
	struct coop_change *p;

	lockdep_assert_held(&ci->lock);
	/* Replies to requests from before now are older than this change. */
	ci->believed = coop_ticket(ci->vfs.i_sb);
	ci->in_round[round]--;
	ci->changes--;
	if (!ci->version && res)
		led_from_locked(ci, res->before);
	if (!ci->changes)
		ci->crowded = false;
	if (ci->version && hopeless_locked(ci)) {
		list_for_each_entry(p, &ci->pending, link)
			led_from_locked(ci, p->known ? p->before : 0);
		unproved_locked(ci);
	}
	if (!ci->changes)
		wake_up_all(&ci->quiet);
	if (!ci->version)
		list_splice_tail_init(&ci->pending, settled);
	ci->seen = ci->version ?: res ? res->attr.version : 0;
	ci->seen_size = ci->version ? ci->size : res ? res->attr.size : 0;
}

/* Takes the pending changes that follow the inode's version, in their order. */
static void follow_locked(struct coop_inode *ci, struct list_head *settled)
{
	struct coop_change *p;
	bool found;

	lockdep_assert_held(&ci->lock);
	do {
		found = false;
		list_for_each_entry(p, &ci->pending, link) {
			if (!p->known || p->before != ci->version)
				continue;
			ci->version = p->after;
			ci->size = p->size;
			list_move_tail(&p->link, settled);
			found = true;
			break;
		}
	} while (found);
}

void coop_change_end(struct inode *inode, struct coop_change *change,
		     const struct coop_st_body *res, struct list_head *settled)
{
	struct coop_inode *ci = coop_i(inode);

	change->known = res && res->before;
	change->waited = false;
	if (res) {
		change->before = res->before;
		change->after = res->attr.version;
		change->size = res->attr.size;
	}
	spin_lock(&ci->lock);
	coop_content_changes(ci);
	list_add_tail(&change->link, &ci->pending);
	if (ci->version)
		follow_locked(ci, settled);
	change_done_locked(ci, change->round, res, settled);
	spin_unlock(&ci->lock);
}

/*
 * Returns the version before the change, if it is ours and no other change is under way; else 0.
 * Sets the inode's version to 0 until the change ends. Another change of ours may be what this one
 * follows, but no later reply would tell that from another client's: the pages become FOREIGN.
 */
static u64 alone_locked(struct coop_inode *ci, const struct coop_st_body *res)
{
	const u64 version = ci->version;
	const bool follows = res && version && res->before == version && ci->changes == 1;

	if (res)
		led_from_locked(ci, res->before);
	unproved_locked(ci);
	return follows ? version : 0;
}

/*
 * Releases pending WRITEs, which have nothing to wait for any more. Call it before taking
 * invalidate_lock, whose holder may wait for their folios. Returns the version before the change,
 * or 0.
 */
static u64 end_alone_begin(struct coop_inode *ci, const struct coop_st_body *res, u64 *mixed)
{
	LIST_HEAD(settled);
	u64 version;

	spin_lock(&ci->lock);
	version = alone_locked(ci, res);
	*mixed = ci->mixed;
	list_splice_tail_init(&ci->pending, &settled);
	spin_unlock(&ci->lock);
	coop_changes_settled(&settled);
	return version;
}

/*
 * i_size is about to move out from 'old' because of our change. follows: our version led to that
 * change, so storage's file ended there, too, and the page of the end stays. Otherwise another
 * client may have written where that page has zeros, so it is dropped. Returns 0, or an error if
 * the pages may not have the version of the reply.
 */
static int end_moves_out(struct inode *inode, loff_t old, bool follows)
{
	struct address_space *mapping = inode->i_mapping;
	struct coop_inode *ci = coop_i(inode);
	const bool wrote = coop_write_before(mapping, old);
	int err;

	if (follows) /* what was written would be newer */
		return wrote ? -EBUSY : 0;
	if (!filemap_range_has_page(mapping, old, LLONG_MAX))
		return 0; /* without the COMMIT */
	err = coop_commit_kept(inode)
		      ?: invalidate_inode_pages2_range(mapping, old >> PAGE_SHIFT, -1);
	if (err) {
		spin_lock(&ci->lock);
		set_bit(COOP_I_STALE, &ci->flags);
		spin_unlock(&ci->lock);
	}
	smp_wmb(); /* after the page was dropped; pairs with coop_size_readable() */
	return err;
}

static void end_alone_held(struct inode *inode, const struct coop_st_body *res, loff_t from,
			   loff_t to, loff_t end, bool truncate, u8 round, u64 version, u64 mixed)
{
	const loff_t old = i_size_read(inode), new = truncate ? res->attr.size : end;
	struct coop_inode *ci = coop_i(inode);
	LIST_HEAD(settled);
	int err = 0;

	lockdep_assert_held_write(&inode->i_mapping->invalidate_lock);
	if (truncate) {
		if (new > old)
			err = end_moves_out(inode, old, version);
		truncate_setsize(inode, new);
	} else if (from <= to) {
		if (new > old)
			from = min(from, old);
		err = invalidate_inode_pages2_range(inode->i_mapping, from >> PAGE_SHIFT,
						    to >> PAGE_SHIFT);
	}
	spin_lock(&ci->lock);
	if (truncate)
		ci->longer = 0;
	else if (new > i_size_read(inode))
		coop_size_grows_locked(ci, new);
	if (version && !err && ci->mixed == mixed && ci->changes == 1) {
		coop_content_changes(ci);
		ci->version = res->attr.version;
		ci->size = res->attr.size;
	}
	change_done_locked(ci, round, res, &settled);
	spin_unlock(&ci->lock);
	coop_changes_settled(&settled);
}

void coop_change_end_alone(struct inode *inode, u8 round, const struct coop_st_body *res,
			   loff_t from, loff_t to, loff_t end, bool truncate)
{
	struct coop_inode *ci = coop_i(inode);
	const bool local = truncate || from <= to;
	LIST_HEAD(settled);
	u64 mixed, version;

	if (res && !local && res->before == res->attr.version) {
		/* The content did not change, so the pages stay valid. */
		spin_lock(&ci->lock);
		change_done_locked(ci, round, res, &settled);
		spin_unlock(&ci->lock);
		coop_changes_settled(&settled);
		return;
	}
	version = end_alone_begin(ci, res, &mixed);
	filemap_invalidate_lock(inode->i_mapping);
	end_alone_held(inode, res, from, to, end, truncate, round, version, mixed);
	filemap_invalidate_unlock(inode->i_mapping);
}

void coop_change_end_dropped(struct inode *inode, u8 round, const struct coop_st_body *res)
{
	const loff_t none = -1;
	u64 mixed, version;

	lockdep_assert_held_write(&inode->i_mapping->invalidate_lock);
	version = end_alone_begin(coop_i(inode), res, &mixed);
	end_alone_held(inode, res, 0, none, 0, res, round, version, mixed);
}
