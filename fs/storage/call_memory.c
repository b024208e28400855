// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * call_memory.c - the memory of calls.
 *
 * A call takes about 3 KiB. WRITE and COMMIT, which free memory, have a reserve for each
 * connection: a mount whose daemon is away does not keep another one from writing back.
 */
#include <linux/cred.h>
#include <linux/slab.h>

#include "fs/storage/impl.h"

/* Operations whose reply attributes go to coop_attr_learn(). */
static bool brings_lease(u16 op)
{
	switch (op) {
	case COOP_ST_LOOKUP:
	case COOP_ST_GETATTR:
	case COOP_ST_OPEN:
	case COOP_ST_READDIR:
	case COOP_ST_MKDIR:
	case COOP_ST_MKNOD:
	case COOP_ST_SYMLINK:
	case COOP_ST_LINK:
	case COOP_ST_BUNDLE:
		return true;
	default:
		return false;
	}
}

static void call_init(struct coop_call *call, struct coop_storage *s, u16 op)
{
	call->op = op;
	call->wire_op = op;
	call->storage = s;
	call->lease = s->leases && brings_lease(op);
	refcount_set(&call->refs, 1);
	init_completion(&call->finished);
	INIT_LIST_HEAD(&call->link);
}

static struct coop_call *call_alloc(struct coop_storage *s, u16 op, gfp_t gfp)
{
	const u64 reply = coop_st_reply_fields(op);
	u32 string = 0; /* a reply has at most one string */
	struct coop_call *call;

	call = kzalloc(sizeof(*call), gfp);
	if (!call)
		return NULL;
	if (reply & COOP_ST_TEXT)
		string = COOP_ST_TEXT_MAX;
	else if (reply & COOP_ST_FH)
		string = COOP_ST_FH_MAX;
	if (string) {
		call->reply = kmalloc(string, gfp);
		if (!call->reply) {
			kfree(call);
			return NULL;
		}
	}
	call_init(call, s, op);
	return call;
}

struct coop_call *coop_call_alloc(struct coop_storage *s, u16 op)
{
	return call_alloc(s, op, GFP_NOFS);
}

struct coop_call *coop_call_alloc_now(struct coop_storage *s, u16 op)
{
	return call_alloc(s, op, GFP_NOWAIT | __GFP_NOWARN);
}

struct coop_call *coop_call_alloc_sure(struct coop_storage *s, u16 op)
{
	struct coop_call *call = mempool_alloc(s->sure, GFP_NOFS);

	WARN_ON_ONCE(coop_st_reply_fields(op) & (COOP_ST_TEXT | COOP_ST_FH));
	memset(call, 0, sizeof(*call));
	call->pooled = true;
	call_init(call, s, op);
	return call;
}

void coop_call_put(struct coop_call *call)
{
	if (!refcount_dec_and_test(&call->refs))
		return;
	if (call->orphan)
		coop_call_put(call->orphan);
	kfree(call->reply);
	if (call->pooled)
		mempool_free(call, call->storage->sure);
	else
		kfree(call);
}

void coop_call_cred(struct coop_call *call, const struct cred *cred)
{
	struct coop_st_cred *c = &call->arg.cred;
	const struct group_info *groups = cred->group_info;
	u32 i;

	c->uid = from_kuid(&init_user_ns, cred->fsuid);
	c->gid = from_kgid(&init_user_ns, cred->fsgid);
	c->n_groups = min_t(u32, groups->ngroups, COOP_ST_GROUPS_MAX);
	for (i = 0; i < c->n_groups; i++)
		c->groups[i] = from_kgid(&init_user_ns, groups->gid[i]);
}
