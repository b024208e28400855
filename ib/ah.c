// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ah.c - the cache of address handles; see ah.h.
 *
 * Entries are found, changed and freed under the node's lock. The work of an entry
 * is the only one that runs without, and 'making' keeps the entry alive for it.
 */
#include "ib/ah.h"

#include <linux/jhash.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "ib/node.h"

#define AH_HOP_LIMIT 64
#define AH_RETRY_US  1000000  /* an address that did not resolve is tried again */
#define AH_RENEW_US  60000000 /* and one that did is looked at again */

struct workqueue_struct *coop_ib_wq;

static u32 bucket_of(const u8 *gid, u16 lid, u8 sl)
{
	return jhash(gid, 16, (u32)lid << 8 | sl) % COOP_AH_BUCKETS;
}

/* No send and no work needs it. */
static void end(struct coop_ah *ah)
{
	list_del(&ah->link);
	if (ah->ib)
		rdma_destroy_ah(ah->ib, RDMA_DESTROY_AH_SLEEPABLE);
	if (ah->renewed)
		rdma_destroy_ah(ah->renewed, RDMA_DESTROY_AH_SLEEPABLE);
	kfree(ah);
}

static void retire(struct coop_rnic *r, struct coop_ah *ah)
{
	hlist_del_init(&ah->hash);
	r->ah.n--;
	if (ah->users || ah->making)
		list_move_tail(&ah->link, &r->ah.retired);
	else
		end(ah);
}

static bool make_room(struct coop_rnic *r)
{
	struct coop_ah *ah;

	if (r->ah.n < COOP_AH_MAX)
		return true;
	list_for_each_entry(ah, &r->ah.all, link) {
		if (!ah->users && !ah->making) {
			retire(r, ah);
			return true;
		}
	}
	return false;
}

static void fill(const struct coop_rnic *r, const struct coop_ah *ah, struct rdma_ah_attr *attr)
{
	const struct coop_port *port = &r->port;
	bool by_gid = memchr_inv(ah->gid, 0, sizeof(ah->gid)) != NULL;
	union ib_gid gid;

	memset(attr, 0, sizeof(*attr));
	attr->type = rdma_ah_find_type(port->dev, port->num);
	rdma_ah_set_port_num(attr, port->num);
	rdma_ah_set_sl(attr, ah->sl);
	rdma_ah_set_dlid(attr, ah->lid);
	/* Who has a GID is reached by it, also on InfiniBand: only then do completions name ours.
	 */
	if (port->roce || by_gid) {
		memcpy(gid.raw, ah->gid, sizeof(gid.raw));
		rdma_ah_set_grh(attr, &gid, 0, (u8)port->gid_index, AH_HOP_LIMIT, 0);
	}
}

static void make(struct work_struct *work)
{
	struct coop_ah *ah = container_of(work, struct coop_ah, work);
	struct coop_rnic *r = ah->rnic;
	struct coop_node *node = r->node;
	struct rdma_ah_attr attr;
	struct ib_ah *ib, *old = NULL;
	unsigned int flags;
	u64 now;

	mutex_lock(&node->lock);
	fill(r, ah, &attr);
	mutex_unlock(&node->lock);

	ib = rdma_create_user_ah(r->pd, &attr, NULL);
	coop_count(node->stats, IS_ERR(ib) ? COOP_C_AH_FAILED : COOP_C_AH_CREATED, 1);
	if (IS_ERR(ib))
		ib = NULL;

	flags = memalloc_noio_save();
	mutex_lock(&node->lock);
	now = coop_now_us();
	ah->making = false;
	ah->made_us = now;
	if (!ah->users) {
		old = ah->ib;
		ah->ib = ib;
	} else if (ib) { /* the one that sends are under way with may be out of date */
		old = ah->renewed;
		ah->renewed = ib;
	}
	if (old)
		rdma_destroy_ah(old, RDMA_DESTROY_AH_SLEEPABLE);
	if (!r->closing) {
		coop_ctrl_resume(r, ah, now);
		if (hlist_unhashed(&ah->hash) && !ah->users)
			end(ah);
		coop_pump_drain(node, now);
		coop_node_kick(node); /* a serve may have begun, whose sends nobody watches */
	}
	mutex_unlock(&node->lock);
	memalloc_noio_restore(flags);
}

/* RoCE knows no LIDs; whatever stands there must not make two entries of one. */
static u16 lid_of(const struct coop_rnic *r, const struct coop_addr *to)
{
	return r->port.roce ? 0 : to->lid;
}

static struct coop_ah *find(struct coop_rnic *r, const struct coop_addr *to)
{
	u16 lid = lid_of(r, to);
	struct coop_ah *ah;

	hlist_for_each_entry(ah, &r->ah.bucket[bucket_of(to->gid, lid, to->sl)], hash)
		if (ah->lid == lid && ah->sl == to->sl && !memcmp(ah->gid, to->gid, 16))
			return ah;
	return NULL;
}

static struct coop_ah *create(struct coop_rnic *r, const struct coop_addr *to)
{
	struct coop_ah *ah;

	if (!make_room(r))
		return NULL;
	ah = kzalloc(sizeof(*ah), GFP_NOIO | __GFP_NOWARN);
	if (!ah)
		return NULL;
	ah->rnic = r;
	memcpy(ah->gid, to->gid, sizeof(ah->gid));
	ah->lid = lid_of(r, to);
	ah->sl = to->sl;
	INIT_WORK(&ah->work, make);
	hlist_add_head(&ah->hash, &r->ah.bucket[bucket_of(ah->gid, ah->lid, ah->sl)]);
	list_add_tail(&ah->link, &r->ah.all);
	r->ah.n++;
	return ah;
}

void coop_ah_cache_init(struct coop_ah_cache *c)
{
	u32 i;

	for (i = 0; i < COOP_AH_BUCKETS; i++)
		INIT_HLIST_HEAD(&c->bucket[i]);
	INIT_LIST_HEAD(&c->all);
	INIT_LIST_HEAD(&c->retired);
}

struct coop_ah *coop_ah_get(struct coop_rnic *r, const struct coop_addr *to, u64 now)
{
	struct coop_ah *ah;

	lockdep_assert_held(&r->node->lock);
	if (r->closing)
		return NULL;
	ah = find(r, to);
	if (!ah)
		ah = create(r, to);
	if (!ah)
		return NULL;
	list_move_tail(&ah->link, &r->ah.all);
	if (ah->making)
		return ah;
	if (!ah->made_us || now - ah->made_us > (ah->ib ? AH_RENEW_US : AH_RETRY_US)) {
		ah->making = true;
		queue_work(coop_ib_wq, &ah->work);
		return ah;
	}
	return ah->ib ? ah : NULL;
}

bool coop_ah_ready(struct coop_rnic *r, const struct coop_addr *to)
{
	struct coop_ah *ah = find(r, to);

	return ah && ah->ib;
}

void coop_ah_hold(struct coop_ah *ah)
{
	ah->users++;
}

void coop_ah_put(struct coop_rnic *r, struct coop_ah *ah)
{
	lockdep_assert_held(&r->node->lock);
	if (!ah || --ah->users)
		return;
	if (ah->renewed) {
		rdma_destroy_ah(ah->ib, RDMA_DESTROY_AH_SLEEPABLE);
		ah->ib = ah->renewed;
		ah->renewed = NULL;
	}
	if (hlist_unhashed(&ah->hash) && !ah->making)
		end(ah);
}

void coop_ah_retire_all(struct coop_rnic *r)
{
	struct coop_ah *ah, *next;

	lockdep_assert_held(&r->node->lock);
	list_for_each_entry_safe(ah, next, &r->ah.all, link)
		retire(r, ah);
}

void coop_ah_cache_destroy(struct coop_rnic *r)
{
	struct coop_ah *ah, *next;

	list_splice_init(&r->ah.retired, &r->ah.all);
	list_for_each_entry(ah, &r->ah.all, link)
		cancel_work_sync(&ah->work);
	list_for_each_entry_safe(ah, next, &r->ah.all, link)
		end(ah);
}

int coop_ah_init(void)
{
	coop_ib_wq = alloc_workqueue("coopfs_ib", WQ_UNBOUND, 0);
	return coop_ib_wq ? 0 : -ENOMEM;
}

void coop_ah_exit(void)
{
	destroy_workqueue(coop_ib_wq);
}
