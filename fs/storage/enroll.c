// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * enroll.c - telling the daemon this node's address on the fabric, and that it has none.
 *
 * The handshake of a connection registers the node (session.c). While the connection stands, a
 * change of the address goes to the daemon with JOIN, and its loss, of a port or of the device,
 * with LEAVE. The session, its open files and its leases stay. A daemon that does not know LEAVE
 * removes an address only with the connection, so that ends then.
 *
 * The daemon executes requests side by side, so one at a time is under way here. 'self_seq' counts
 * the changes and 'told_seq' is the one that the daemon was told last; while they differ, the end
 * of one request starts the next. If the connection is lost in between, the next handshake tells
 * all.
 */
#include <linux/sched/mm.h>

#include "fs/storage/impl.h"

static bool knows_leave(const struct coop_storage *s)
{
	return READ_ONCE(s->version) >= coop_st_op_since(COOP_ST_LEAVE);
}

u16 coop_enroll_form_locked(struct coop_storage *s, struct coop_st_body *body)
{
	lockdep_assert_held(&s->lock);
	s->told_seq = s->self_seq;
	if (!s->has_self)
		return COOP_ST_LEAVE;
	body->addr = s->self;
	body->flags = COOP_ST_JOIN_NAMED | (s->leaf ? COOP_ST_JOIN_LEAF : 0);
	body->count = s->self_mbps;
	return READ_ONCE(s->version) >= coop_st_op_since(COOP_ST_JOIN) ? COOP_ST_JOIN
								       : COOP_ST_REGISTER;
}

static void enroll_ended(struct coop_storage *s, const struct coop_call *call)
{
	if (call->op != COOP_ST_LEAVE && call->error) {
		pr_warn_ratelimited("coopfs: storage: the daemon did not register this node: %pe\n",
				    ERR_PTR(call->error));
	} else if (call->op != COOP_ST_LEAVE) {
		WRITE_ONCE(s->node_id, call->res.node_id);
	} else if (call->error) {
		coop_storage_lost(s, "it did not let this node leave the fabric");
	} else {
		WRITE_ONCE(s->node_id, 0);
		s->ops->left(s->host);
	}
}

/* Runs in the receiver, so pushes of the daemon from before its reply have been handled. */
static void enroll_done(struct coop_call *call)
{
	struct coop_storage *s = call->storage;
	bool current_one;

	spin_lock_bh(&s->lock);
	current_one = s->enrolling == call;
	if (current_one)
		s->enrolling = NULL;
	else
		s->told_seq = s->self_seq - 1; /* queued for an earlier connection: tell it again */
	spin_unlock_bh(&s->lock);
	if (current_one)
		enroll_ended(s, call);
	coop_enroll_kick(s);
}

/* Is there something to tell, and nothing under way? */
static bool enroll_due_locked(const struct coop_storage *s)
{
	lockdep_assert_held(&s->lock);
	return s->state == COOP_STORAGE_UP && !s->enrolling && s->told_seq != s->self_seq;
}

void coop_enroll_kick(struct coop_storage *s)
{
	/* Under the lock, so that no work is queued after close. */
	spin_lock_bh(&s->lock);
	if (enroll_due_locked(s))
		queue_work(s->wq, &s->enroll_work);
	spin_unlock_bh(&s->lock);
}

void coop_enroll_work(struct work_struct *work)
{
	struct coop_storage *s = container_of(work, struct coop_storage, enroll_work);
	const unsigned int nofs = memalloc_nofs_save();
	/* Its reply has no string, so the operation may be set later. */
	struct coop_call *call = coop_call_alloc(s, COOP_ST_LEAVE);
	bool due, leaves = false;

	spin_lock_bh(&s->lock);
	due = enroll_due_locked(s);
	if (due && call) {
		call->op = coop_enroll_form_locked(s, &call->arg);
		call->wire_op = call->op;
		call->internal = true;
		call->prompt = true;
		call->done = enroll_done;
		leaves = call->op == COOP_ST_LEAVE;
		if (!leaves || knows_leave(s))
			s->enrolling = call;
	}
	spin_unlock_bh(&s->lock);
	if (due && !call)
		coop_storage_lost(s, "no memory to register");
	else if (due && leaves && !knows_leave(s))
		coop_storage_lost(s, "this node left the fabric");
	else if (due)
		coop_call_submit(call);
	if (call)
		coop_call_put(call);
	memalloc_nofs_restore(nofs);
}

void coop_storage_register(struct coop_storage *s, const struct coop_addr *self, u32 mbps)
{
	spin_lock_bh(&s->lock);
	if (self ? !s->has_self || memcmp(&s->self, self, sizeof(*self)) : s->has_self) {
		s->has_self = self;
		if (self)
			s->self = *self;
		s->self_mbps = mbps;
		s->self_seq++;
	}
	spin_unlock_bh(&s->lock);
	coop_enroll_kick(s);
}
