// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * lease.c - leases: what we may answer without storage, and how leases are returned.
 *
 * lease.h has the rule. We rely on a lease while the daemon has answered a request that was sent
 * less than COOP_ST_LEASE_TRUST_MS ago. So a mount whose daemon is silent stops relying on leases
 * by itself, before the daemon stops waiting for it.
 *
 * A recall ends our trust in the receiver's own work, before the receiver takes the replies that
 * follow the recall. The answer to a recall may take a round trip, because storage must first learn
 * of files that were opened under the lease (unsaid.c), so a separate work sends it. Another work
 * returns, one by one, leases that we do not need any more: the inode left memory, or there are too
 * many. Eviction never waits for the network.
 */
#include <linux/hash.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "fs/fs.h"

#define LEASES_KEPT 9000 /* the daemon gives 10,000; some are being returned */
#define TRIM_LOOKS  64   /* inodes to examine for one that was not used lately */

/* A lease that is being returned, or has ended. */
struct lease_back {
	struct work_struct work;
	struct list_head link; /* coop_leases.idle */
	struct coop_mount *mount;
	struct inode *inode; /* a reference, NULL: none is known */
	struct coop_fid fid;
};

static struct coop_leases *leases_of(const struct inode *inode)
{
	return &coop_sb(inode->i_sb)->leases;
}

static struct coop_lease_slot *slot_of(struct coop_leases *l, const struct coop_fid *fid)
{
	return &l->slots[hash_64(fid->lo ^ fid->hi, ilog2(COOP_LEASE_SLOTS))];
}

/* ---- queries --------------------------------------------------------------------- */

u64 coop_lease_since(const struct inode *inode)
{
	const struct coop_mount *m = coop_sb(inode->i_sb);
	const u64 since = READ_ONCE(coop_i(inode)->leased_since);

	return since > READ_ONCE(m->leases.floor) && coop_storage_trusted(m->storage) ? since : 0;
}

bool coop_lease_attr(const struct inode *inode)
{
	struct coop_inode *ci = coop_i(inode);

	if (!READ_ONCE(ci->lease_attr) || !coop_lease_since(inode))
		return false;
	if (!READ_ONCE(ci->lease_used))
		WRITE_ONCE(ci->lease_used, true);
	return true;
}

/* ---- beginning and ending -------------------------------------------------------- */

/* We no longer trust the lease; the daemon may still have it. */
static void over_locked(struct coop_inode *ci)
{
	lockdep_assert_held(&ci->lock);
	WRITE_ONCE(ci->leased_since, 0);
	WRITE_ONCE(ci->lease_attr, false);
	coop_listing_drop_locked(ci);
}

/* The daemon no longer has the lease, or soon will not. */
static void unlist_locked(struct coop_leases *l, struct coop_inode *ci)
{
	lockdep_assert_held(&l->lock);
	if (list_empty(&ci->lease_link))
		return;
	list_del_init(&ci->lease_link);
	l->held--;
}

/* Ends the lease, which is also over at storage. */
static void end_lease(struct coop_inode *ci)
{
	struct coop_leases *l = leases_of(&ci->vfs);

	spin_lock(&ci->lock);
	over_locked(ci);
	spin_lock(&l->lock);
	unlist_locked(l, ci);
	spin_unlock(&l->lock);
	spin_unlock(&ci->lock);
}

static struct lease_back *back_alloc(struct coop_mount *m, const struct coop_fid *fid,
				     struct inode *inode)
{
	struct lease_back *b = kzalloc(sizeof(*b), GFP_NOWAIT | __GFP_NOWARN);

	if (!b)
		return NULL;
	b->mount = m;
	b->fid = *fid;
	b->inode = inode;
	return b;
}

static void tell_work(struct work_struct *work)
{
	struct lease_back *b = container_of(work, struct lease_back, work);
	const unsigned int nofs = memalloc_nofs_save();
	struct coop_mount *m = b->mount;

	coop_unsaid_tell_inode(b->inode);
	coop_iput_later(b->inode);
	kfree(b);
	coop_calls_end(m);
	memalloc_nofs_restore(nofs);
}

/* The lease ended without a recall: tells storage of open files. Without memory tell_old_work does
 * so within a second. */
static void tell_later(struct coop_mount *m, struct inode *inode)
{
	struct lease_back *b = back_alloc(m, &coop_i(inode)->fid, inode);

	if (!b) {
		coop_calls_end(m);
		return;
	}
	ihold(inode);
	INIT_WORK(&b->work, tell_work);
	queue_work(m->wq, &b->work);
}

/* Has nothing happened to the file since that ticket? */
static bool unbroken_locked(struct coop_leases *l, const struct coop_inode *ci, u64 asked)
{
	const struct coop_lease_slot *slot = slot_of(l, &ci->fid);

	lockdep_assert_held(&ci->lock);
	lockdep_assert_held(&l->lock);
	/* The daemon may answer requests sent after this one before it sends a recall, so check
	 * every event that may have ended the lease since the request was sent. */
	return !l->down && !l->closed && asked > l->floor && !slot->returning &&
	       asked > slot->broken && asked > ci->lease_broken && !ci->lease_changes &&
	       !test_bit(COOP_I_UNSURE, &ci->flags);
}

u64 coop_lease_within(struct inode *inode, u64 asked)
{
	struct coop_leases *l = leases_of(inode);
	struct coop_inode *ci = coop_i(inode);
	u64 ticket = 0;

	spin_lock(&ci->lock);
	spin_lock(&l->lock);
	if (ci->leased_since > l->floor && unbroken_locked(l, ci, asked))
		ticket = coop_ticket(inode->i_sb);
	spin_unlock(&l->lock);
	spin_unlock(&ci->lock);
	return ticket;
}

void coop_lease_learn(struct inode *inode, const struct coop_st_attr *attr, u64 asked)
{
	const bool told = attr->has & COOP_ST_HAS_LEASE;
	struct coop_leases *l = leases_of(inode);
	struct coop_inode *ci = coop_i(inode);
	const bool unsure = test_bit(COOP_I_UNSURE, &ci->flags);
	struct coop_mount *m = coop_sb(inode->i_sb);
	bool last, believed, many, tell;

	if (!l->wanted)
		return;
	spin_lock(&ci->lock);
	last = asked >= ci->believed && !inode_wrong_type(inode, attr->mode);
	spin_lock(&l->lock);
	/* A lease keeps what we know from being asked again, so it has to be judged. */
	believed = told && last && (!S_ISREG(attr->mode) || ci->judged >= asked) &&
		   unbroken_locked(l, ci, asked);
	/* The lease is over: storage must learn of the files that were opened under it. */
	tell = !told && !list_empty(&ci->lease_link) && !list_empty(&ci->files) && !l->closed;
	if (tell)
		coop_calls_begin(m);
	if (!told && last) {
		unlist_locked(l, ci);
	} else if (told && list_empty(&ci->lease_link) && !l->closed) {
		list_add_tail(&ci->lease_link, &l->list);
		l->held++;
	}
	many = l->held > LEASES_KEPT && !l->closed;
	spin_unlock(&l->lock);
	/* We may be returning the lease: a reply to an earlier request may still belong to it. */
	if (!told)
		WRITE_ONCE(ci->lease_broken, coop_ticket(inode->i_sb));
	if (!told || (last && !believed)) {
		over_locked(ci);
	} else if (believed) {
		if (ci->leased_since <= READ_ONCE(l->floor)) {
			coop_listing_drop_locked(ci); /* it belongs to an earlier lease */
			WRITE_ONCE(ci->leased_since, coop_ticket(inode->i_sb));
		}
		/* Not with an i_size that could not follow storage's size. */
		WRITE_ONCE(ci->lease_attr, ci->longer <= i_size_read(inode));
		WRITE_ONCE(ci->lease_used, true);
	}
	/* With leases there is no time limit besides: an untrusted attribute is asked for again. */
	if (told && last && !unsure) {
		WRITE_ONCE(ci->attr_until, jiffies - 1);
		ci->has_until = jiffies - 1;
	}
	spin_unlock(&ci->lock);
	if (tell)
		tell_later(m, inode);
	if (many)
		queue_work(m->wq, &l->idle_work);
}

/* ---- our own changes ------------------------------------------------------------- */

int coop_lease_change_begin(struct inode *inode, bool names)
{
	struct coop_inode *ci = coop_i(inode);
	int err;

	spin_lock(&ci->lock);
	WRITE_ONCE(ci->lease_changes, ci->lease_changes + 1);
	WRITE_ONCE(ci->lease_attr, false);
	coop_listing_drop_locked(ci);
	if (!names)
		WRITE_ONCE(ci->judged_since, coop_ticket(inode->i_sb));
	spin_unlock(&ci->lock);
	/* A task that opens the file from here on sees lease_attr cleared, or we see its file. */
	err = names ? 0 : coop_unsaid_tell_inode(inode);
	if (err)
		coop_lease_change_end(inode, names, 0);
	return err;
}

/* Is the outcome of the change unknown? */
static bool unknown(int err)
{
	return err == -ERESTARTSYS || err == -EINTR || err == -ETIMEDOUT || err == -ESHUTDOWN ||
	       err == -EIO;
}

void coop_lease_change_end(struct inode *inode, bool names, int err)
{
	struct coop_inode *ci = coop_i(inode);

	spin_lock(&ci->lock);
	WRITE_ONCE(ci->lease_broken, coop_ticket(inode->i_sb));
	WRITE_ONCE(ci->lease_changes, ci->lease_changes - 1); /* after lease_broken is set */
	WRITE_ONCE(ci->lease_attr, false);
	if (!names)
		WRITE_ONCE(ci->judged_since, ci->lease_broken);
	if (unknown(err)) {
		/* The change may happen at any time, and the daemon sends no recall for our own. */
		set_bit(COOP_I_UNSURE, &ci->flags);
		over_locked(ci);
	}
	spin_unlock(&ci->lock);
}

/* ---- returning ------------------------------------------------------------------- */

/* From here until the answer we accept no lease of the files in this slot. */
static void slot_returning_locked(struct coop_mount *m, const struct coop_fid *fid)
{
	struct coop_lease_slot *slot = slot_of(&m->leases, fid);

	lockdep_assert_held(&m->leases.lock);
	slot->broken = coop_ticket(m->sb);
	slot->returning++;
}

static void slot_returned_locked(struct coop_mount *m, const struct coop_fid *fid)
{
	struct coop_lease_slot *slot = slot_of(&m->leases, fid);

	lockdep_assert_held(&m->leases.lock);
	slot->broken = coop_ticket(m->sb);
	slot->returning--;
}

static void slot_returned(struct coop_mount *m, const struct coop_fid *fid)
{
	spin_lock(&m->leases.lock);
	slot_returned_locked(m, fid);
	spin_unlock(&m->leases.lock);
}

static void recall_answered(struct coop_call *call)
{
	struct lease_back *b = call->owner;
	struct coop_mount *m = b->mount;

	slot_returned(m, &b->fid);
	coop_call_put(call);
	if (b->inode)
		coop_iput_later(b->inode);
	kfree(b);
	coop_calls_end(m);
}

static void recall_work(struct work_struct *work)
{
	struct lease_back *b = container_of(work, struct lease_back, work);
	const unsigned int nofs = memalloc_nofs_save();
	struct coop_call *call;

	if (b->inode)
		coop_unsaid_tell_inode(b->inode);
	call = coop_call_alloc_sure(b->mount->storage, COOP_ST_LEASE_RETURN);
	call->arg.fid = b->fid;
	call->owner = b;
	call->done = recall_answered;
	coop_call_submit(call);
	memalloc_nofs_restore(nofs);
}

void coop_leases_renew(struct coop_mount *m)
{
	coop_leases_lost(m);
	coop_leases_resume(m);
}

void coop_lease_recalled(struct coop_mount *m, const struct coop_fid *fid)
{
	struct coop_leases *l = &m->leases;
	struct lease_back *b;
	struct inode *inode;
	bool closed;

	coop_count(&m->stats, COOP_C_LEASE_RECALLS, 1);
	spin_lock(&l->lock);
	closed = l->closed;
	if (!closed) {
		slot_returning_locked(m, fid);
		coop_calls_begin(m);
	}
	spin_unlock(&l->lock);
	if (closed)
		return; /* all leases have been returned */
	inode = coop_ilookup(m->sb, fid);
	if (inode)
		end_lease(coop_i(inode));
	b = back_alloc(m, fid, inode);
	if (b) {
		INIT_WORK(&b->work, recall_work);
		queue_work(m->wq, &b->work);
		return;
	}
	coop_leases_renew(m); /* no memory to note this recall */
	slot_returned(m, fid);
	if (inode)
		coop_iput_later(inode);
	coop_calls_end(m);
}

/* Picks a lease that was not used since the last look, to be returned; false: none to return. */
static bool trim_one(struct coop_mount *m)
{
	struct coop_leases *l = &m->leases;
	struct coop_inode *ci = NULL;
	struct lease_back *b;
	u32 looks;

	spin_lock(&l->lock);
	for (looks = 0; !ci && looks < TRIM_LOOKS && l->held > LEASES_KEPT; looks++) {
		ci = list_first_entry(&l->list, struct coop_inode, lease_link);
		list_move_tail(&ci->lease_link, &l->list);
		if ((READ_ONCE(ci->lease_used) && looks < TRIM_LOOKS - 1) || !igrab(&ci->vfs)) {
			WRITE_ONCE(ci->lease_used, false);
			ci = NULL;
		}
	}
	spin_unlock(&l->lock);
	if (!ci)
		return false;
	b = kzalloc(sizeof(*b), GFP_NOFS);
	if (b) {
		b->mount = m;
		b->fid = ci->fid;
		spin_lock(&l->lock);
		list_add_tail(&b->link, &l->idle);
		spin_unlock(&l->lock);
	}
	coop_iput_later(&ci->vfs);
	return b;
}

/* Returns a lease as if it were recalled, because the file may have been looked up again since. */
static void return_idle(struct coop_mount *m, const struct coop_fid *fid)
{
	struct coop_call *call;
	struct inode *inode;
	bool closed;

	spin_lock(&m->leases.lock);
	closed = m->leases.closed;
	if (!closed) {
		slot_returning_locked(m, fid);
		coop_calls_begin(m);
	}
	spin_unlock(&m->leases.lock);
	if (closed)
		return;
	inode = coop_ilookup(m->sb, fid);
	if (inode) {
		end_lease(coop_i(inode));
		coop_unsaid_tell_inode(inode);
		coop_iput_later(inode);
	}
	call = coop_call_alloc_sure(m->storage, COOP_ST_LEASE_RETURN);
	call->arg.fid = *fid;
	coop_call_run(call);
	coop_call_put(call);
	slot_returned(m, fid);
	coop_calls_end(m);
}

static struct lease_back *next_idle(struct coop_leases *l)
{
	struct lease_back *b;

	spin_lock(&l->lock);
	b = list_first_entry_or_null(&l->idle, struct lease_back, link);
	if (b)
		list_del(&b->link);
	spin_unlock(&l->lock);
	return b;
}

static void idle_work(struct work_struct *work)
{
	struct coop_mount *m = container_of(work, struct coop_mount, leases.idle_work);
	const unsigned int nofs = memalloc_nofs_save();
	struct lease_back *b;

	do {
		while ((b = next_idle(&m->leases))) {
			return_idle(m, &b->fid);
			kfree(b);
		}
	} while (!READ_ONCE(m->leases.closed) && trim_one(m));
	memalloc_nofs_restore(nofs);
}

void coop_lease_evict(struct inode *inode)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_leases *l = &m->leases;
	struct coop_inode *ci = coop_i(inode);
	struct lease_back *b = NULL;
	bool listed;

	spin_lock(&ci->lock);
	over_locked(ci);
	spin_unlock(&ci->lock);
	listed = !list_empty_careful(&ci->lease_link);
	if (!listed && !ci->lease_broken)
		return;
	/* Without memory we do not return it; the daemon keeps it until a recall. */
	if (listed)
		b = back_alloc(m, &ci->fid, NULL);
	spin_lock(&l->lock);
	/* A new inode of the file must not believe what was asked before our own change. */
	slot_of(l, &ci->fid)->broken = coop_ticket(m->sb);
	unlist_locked(l, ci);
	if (b && !l->closed) {
		list_add_tail(&b->link, &l->idle);
		queue_work(m->wq, &l->idle_work);
		b = NULL;
	}
	spin_unlock(&l->lock);
	kfree(b);
}

/* ---- all leases ------------------------------------------------------------------ */

static void end_all_locked(struct coop_mount *m)
{
	lockdep_assert_held(&m->leases.lock);
	m->leases.down = true;
	WRITE_ONCE(m->leases.floor, coop_ticket(m->sb));
}

void coop_leases_lost(struct coop_mount *m)
{
	spin_lock(&m->leases.lock);
	end_all_locked(m);
	spin_unlock(&m->leases.lock);
}

static void all_returned(struct coop_call *call)
{
	struct coop_mount *m = call->owner;
	struct coop_leases *l = &m->leases;

	spin_lock(&l->lock);
	if (!--l->resuming && !call->error) {
		WRITE_ONCE(l->floor, coop_ticket(m->sb));
		l->down = false;
	}
	spin_unlock(&l->lock);
	coop_call_put(call);
	coop_calls_end(m);
}

static void send_return_all(struct coop_mount *m)
{
	struct coop_call *call = coop_call_alloc_sure(m->storage, COOP_ST_LEASE_RETURN);

	call->owner = m;
	call->done = all_returned;
	coop_call_submit(call);
}

static void resume_work(struct work_struct *work)
{
	struct coop_mount *m = container_of(work, struct coop_mount, leases.resume_work);
	struct coop_leases *l = &m->leases;
	const unsigned int nofs = memalloc_nofs_save();
	bool closed;

	spin_lock(&l->lock);
	closed = l->closed;
	if (!closed) {
		coop_calls_begin(m);
		end_all_locked(m);
		l->resuming++;
	}
	spin_unlock(&l->lock);
	if (!closed) {
		coop_unsaid_tell_all(m);
		send_return_all(m);
	}
	memalloc_nofs_restore(nofs);
}

void coop_leases_resume(struct coop_mount *m)
{
	if (m->leases.wanted)
		queue_work(m->wq, &m->leases.resume_work);
}

void coop_leases_init(struct coop_mount *m, bool wanted)
{
	struct coop_leases *l = &m->leases;

	l->wanted = wanted;
	spin_lock_init(&l->lock);
	INIT_LIST_HEAD(&l->list);
	INIT_LIST_HEAD(&l->idle);
	INIT_WORK(&l->resume_work, resume_work);
	INIT_WORK(&l->idle_work, idle_work);
	coop_unsaid_init(m);
}

void coop_leases_close(struct coop_mount *m)
{
	struct coop_leases *l = &m->leases;
	bool give_back;

	spin_lock(&l->lock);
	give_back = l->held && coop_storage_connected(m->storage);
	end_all_locked(m);
	l->closed = true;
	if (give_back) {
		coop_calls_begin(m);
		l->resuming++;
	}
	spin_unlock(&l->lock);
	if (give_back)
		send_return_all(m);
}

void coop_leases_stop(struct coop_mount *m)
{
	cancel_work_sync(&m->leases.resume_work);
	cancel_work_sync(&m->leases.idle_work);
	coop_unsaid_stop(m);
	idle_work(&m->leases.idle_work); /* frees the list; nothing is sent any more */
}
