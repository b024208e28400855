// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * unsaid.c - files opened under a lease that storage does not know of yet.
 *
 * Such an open file already has its open id. We tell storage with an OPEN under that id when
 * a request names the file, when the lease is recalled, after a lost connection, and when the
 * file has been open for a second: if the daemon restarts and another client removes the file,
 * an open file that the daemon did not know is lost. Until then a close costs nothing.
 *
 *   UNSAID    coop_leases.unsaid    a close needs no request
 *   TELLING   coop_leases.telling   the call holds the file, its inode and the mount
 *   SAID      coop_mount.files      as any other: opened again after a restart, closed there
 *   REFUSED   none                  storage refused it: reads fail with that error
 *
 * A temporary error leads back to UNSAID, under a new id, because storage may have executed an
 * OPEN that was given up; the connection closes it then.
 */
#include <linux/slab.h>

#include "fs/fs.h"

#define UNSAID_MOST HZ

static void set_locked(struct coop_file *f, enum coop_said said, struct list_head *to)
{
	lockdep_assert_held(&coop_sb(f->inode->i_sb)->files_lock);
	/* Release: a task that sees SAID uses open_id, which must be the final one. */
	smp_store_release(&f->said, said);
	list_del_init(&f->opened);
	if (to)
		list_add_tail(&f->opened, to);
}

void coop_unsaid_add(struct coop_file *f, struct inode *inode)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);

	f->inode = inode;
	f->since = jiffies;
	spin_lock(&m->files_lock);
	set_locked(f, COOP_UNSAID, &m->leases.unsaid);
	spin_unlock(&m->files_lock);
	spin_lock(&ci->lock);
	list_add(&f->link, &ci->files);
	spin_unlock(&ci->lock);
	queue_delayed_work(m->wq, &m->leases.tell_old_work, UNSAID_MOST);
}

/* ---- telling --------------------------------------------------------------------- */

static bool may_pass(int err)
{
	return err == -ETIMEDOUT || err == -EINTR || err == -ERESTARTSYS || err == -EIO ||
	       err == -ENFILE || err == -EMFILE || err == -ENOMEM;
}

static void again_locked(struct coop_file *f, int err)
{
	struct coop_mount *m = coop_sb(f->inode->i_sb);

	f->open_id = coop_storage_open_id(m->storage);
	f->since = jiffies + 1; /* so that the present caller does not try again */
	f->say_error = err;
	set_locked(f, COOP_UNSAID, &m->leases.unsaid);
}

static void tell(struct coop_file *f);

static void told(struct coop_call *call)
{
	struct coop_file *f = call->owner;
	struct inode *inode = f->inode;
	struct coop_mount *m = coop_sb(inode->i_sb);
	const u64 open_id = f->open_id;
	const int err = call->error;
	bool forgotten;

	spin_lock(&m->files_lock);
	forgotten = !err && f->reopening != m->reopenings;
	if (forgotten || may_pass(err)) {
		again_locked(f, err);
	} else {
		WRITE_ONCE(f->error, err);
		set_locked(f, err ? COOP_REFUSED : COOP_SAID, err ? NULL : &m->files);
	}
	spin_unlock(&m->files_lock);
	if (forgotten) {
		coop_close_send_now(inode, open_id); /* the restarted daemon may have it open */
		tell(f);
	} else if (may_pass(err)) {
		queue_delayed_work(m->wq, &m->leases.tell_old_work, UNSAID_MOST);
	}
	wake_up_all(&m->leases.told);
	coop_call_put(call);
	coop_file_put(f);
	coop_iput_later(inode);
	coop_calls_end(m);
}

/* Sends the OPEN of an UNSAID file. Waits only for memory. */
static void tell(struct coop_file *f)
{
	struct coop_mount *m = coop_sb(f->inode->i_sb);
	struct coop_inode *ci = coop_i(f->inode);
	struct coop_call *call;
	bool first;

	if (READ_ONCE(f->said) != COOP_UNSAID)
		return;
	call = coop_call_alloc(m->storage, COOP_ST_OPEN);
	spin_lock(&m->files_lock);
	first = f->said == COOP_UNSAID;
	if (first && !call)
		again_locked(f, -ENOMEM);
	if (first && call) {
		f->say_error = 0;
		f->reopening = m->reopenings;
		set_locked(f, COOP_TELLING, &m->leases.telling);
	}
	spin_unlock(&m->files_lock);
	if (!call)
		return;
	if (first) {
		coop_call_cred(call, f->cred);
		call->arg.fh.p = ci->fh;
		call->arg.fh.len = ci->fh_len;
		call->arg.open_id = f->open_id;
		call->arg.flags = f->flags;
		call->lease = false; /* the attributes are not used */
		call->done = told;
		call->owner = coop_file_get(f);
		ihold(f->inode);
		coop_calls_begin(m);
		coop_call_submit(call);
	} else {
		coop_call_put(call);
	}
}

int coop_file_say(struct coop_file *f)
{
	struct coop_mount *m = coop_sb(f->inode->i_sb);

	for (;;) {
		/* Pairs with the release above. */
		switch (smp_load_acquire(&f->said)) {
		case COOP_SAID:
			return 0;
		case COOP_REFUSED:
			return READ_ONCE(f->error);
		case COOP_UNSAID:
		case COOP_TELLING:
			break;
		}
		tell(f);
		if (wait_event_killable(m->leases.told, READ_ONCE(f->said) != COOP_TELLING))
			return -ERESTARTSYS;
		if (READ_ONCE(f->said) == COOP_UNSAID && READ_ONCE(f->say_error))
			return READ_ONCE(f->say_error);
	}
}

/* ---- all files of an inode or a mount -------------------------------------------- */

static bool telling_inode(struct coop_inode *ci)
{
	struct coop_file *f;
	bool any = false;

	spin_lock(&ci->lock);
	list_for_each_entry(f, &ci->files, link)
		any |= READ_ONCE(f->said) == COOP_TELLING;
	spin_unlock(&ci->lock);
	return any;
}

/* An UNSAID file of the inode that was not tried since 'begun'; a reference. */
static struct coop_file *unsaid_of(struct coop_inode *ci, unsigned long begun)
{
	struct coop_file *f, *found = NULL;

	spin_lock(&ci->lock);
	list_for_each_entry(f, &ci->files, link) {
		if (READ_ONCE(f->said) == COOP_UNSAID && !time_after(READ_ONCE(f->since), begun) &&
		    !READ_ONCE(f->say_error) && refcount_inc_not_zero(&f->refs)) {
			found = f;
			break;
		}
	}
	spin_unlock(&ci->lock);
	return found;
}

int coop_unsaid_tell_inode(struct inode *inode)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	const unsigned long begun = jiffies;
	struct coop_file *f;

	while ((f = unsaid_of(ci, begun))) {
		tell(f);
		coop_file_put(f);
	}
	return wait_event_killable(m->leases.told, !telling_inode(ci));
}

/*
 * The first UNSAID file that was opened by 'until', with a reference to it and to its inode; umount
 * waits until the caller has put them.
 */
static struct coop_file *first_unsaid(struct coop_mount *m, unsigned long until)
{
	struct coop_file *f, *found = NULL;

	spin_lock(&m->files_lock);
	list_for_each_entry(f, &m->leases.unsaid, opened) {
		if (time_after(f->since, until))
			break;
		/* A task that closes it holds the inode until the file is off this list. */
		if (refcount_inc_not_zero(&f->refs)) {
			ihold(f->inode);
			coop_calls_begin(m);
			found = f;
			break;
		}
	}
	spin_unlock(&m->files_lock);
	return found;
}

static void tell_until(struct coop_mount *m, unsigned long until)
{
	struct coop_file *f;

	while ((f = first_unsaid(m, until))) {
		struct inode *inode = f->inode;

		tell(f);
		coop_file_put(f);
		coop_iput_later(inode);
		coop_calls_end(m);
	}
}

static bool telling_any(struct coop_mount *m)
{
	bool any;

	spin_lock(&m->files_lock);
	any = !list_empty(&m->leases.telling);
	spin_unlock(&m->files_lock);
	return any;
}

void coop_unsaid_tell_all(struct coop_mount *m)
{
	tell_until(m, jiffies);
	wait_event_idle(m->leases.told, !telling_any(m));
}

static void tell_old_work(struct work_struct *work)
{
	struct coop_mount *m =
		container_of(to_delayed_work(work), struct coop_mount, leases.tell_old_work);
	bool more;

	tell_until(m, jiffies - UNSAID_MOST);
	spin_lock(&m->files_lock);
	more = !list_empty(&m->leases.unsaid);
	spin_unlock(&m->files_lock);
	if (more)
		queue_delayed_work(m->wq, &m->leases.tell_old_work, UNSAID_MOST / 2);
}

void coop_unsaid_init(struct coop_mount *m)
{
	struct coop_leases *l = &m->leases;

	INIT_LIST_HEAD(&l->unsaid);
	INIT_LIST_HEAD(&l->telling);
	init_waitqueue_head(&l->told);
	INIT_DELAYED_WORK(&l->tell_old_work, tell_old_work);
}

void coop_unsaid_stop(struct coop_mount *m)
{
	cancel_delayed_work_sync(&m->leases.tell_old_work);
}
