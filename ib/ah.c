// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ah.c - the cache of address handles; see ah.h.
 *
 * The node's lock protects lookup, change and free of entries. Only the works of
 * an entry run without it; 'making' keeps the entry alive for them.
 */
#include "ib/ah.h"

#include <linux/jhash.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "ib/node.h"

#define AH_HOP_LIMIT  64
#define AH_SPENT_PART 16
#define AH_RETRY_US   1000000  /* try an address again that did not resolve */
#define AH_RENEW_US   60000000 /* resolve an address again that did */
#define AH_SECOND_MS  20       /* a resolution with a known neighbour takes no longer */

struct workqueue_struct *coop_ib_wq;

/* Salted: a peer chooses its addresses. */
static u32 bucket_of(const struct coop_rnic *r, const u8 *gid, u16 lid, u32 flow)
{
	return jhash(gid, 16, (lid | flow << 16) ^ (u32)r->node->member_salt) % COOP_AH_BUCKETS;
}

/* No send and no work needs the entry, which is not hashed. */
static void spend(struct coop_rnic *r, struct coop_ah *ah)
{
	list_move_tail(&ah->link, &r->ah.spent);
	queue_work(r->node->paths, &r->ah.reap);
}

static void destroy(struct ib_ah *ib)
{
	if (ib)
		rdma_destroy_ah(ib, RDMA_DESTROY_AH_SLEEPABLE);
}

static u32 free_all(struct list_head *list)
{
	struct coop_ah *ah, *next;
	u32 n = 0;

	list_for_each_entry_safe(ah, next, list, link) {
		destroy(ah->ib);
		kfree(ah);
		n++;
	}
	return n;
}

static void reap(struct work_struct *work)
{
	struct coop_rnic *r = container_of(work, struct coop_rnic, ah.reap);
	LIST_HEAD(mine);
	u32 n;

	mutex_lock(&r->node->lock);
	list_splice_init(&r->ah.spent, &mine);
	mutex_unlock(&r->node->lock);
	n = free_all(&mine);
	mutex_lock(&r->node->lock);
	r->ah.n_exist -= n;
	mutex_unlock(&r->node->lock);
}

static void retire(struct coop_rnic *r, struct coop_ah *ah)
{
	hlist_del_init(&ah->hash);
	r->ah.n--;
	if (ah->users || ah->making)
		list_move_tail(&ah->link, &r->ah.retired);
	else
		spend(r, ah);
}

/* For so many more handles. */
static bool has_room(const struct coop_rnic *r, u32 handles)
{
	return r->ah.n_exist + r->ah.n_making + handles <= r->ah.most;
}

/*
 * For an entry, which both works may make a handle for. A device with a single handle has room for
 * one of them. Some of the entries that may exist are left to those that wait to be freed.
 */
static bool make_room(struct coop_rnic *r)
{
	struct coop_ah_cache *c = &r->ah;
	struct coop_ah *ah;

	if (c->n >= c->most - max(c->most / AH_SPENT_PART, 1u)) {
		list_for_each_entry(ah, &c->all, link) {
			if (!ah->users && !ah->making) {
				retire(r, ah);
				break;
			}
		}
	}
	return has_room(r, 2) || !c->n_exist;
}

/*
 * Whether datagrams have a GRH, which has the label. Use the GID where there is one, also on
 * InfiniBand: only with a GRH do the peer's completions name our GID.
 */
static bool has_label(const struct coop_rnic *r, const u8 gid[16])
{
	return r->port.roce || memchr_inv(gid, 0, 16);
}

static void fill(const struct coop_rnic *r, const struct coop_ah *ah, struct rdma_ah_attr *attr)
{
	const struct coop_port *port = &r->port;
	union ib_gid gid;

	memset(attr, 0, sizeof(*attr));
	attr->type = rdma_ah_find_type(port->dev, port->num);
	rdma_ah_set_port_num(attr, port->num);
	rdma_ah_set_sl(attr, ah->sl);
	rdma_ah_set_dlid(attr, ah->lid);
	if (has_label(r, ah->gid)) {
		memcpy(gid.raw, ah->gid, sizeof(gid.raw));
		rdma_ah_set_grh(attr, &gid, coop_flow_label(port->gid.raw, ah->gid, ah->flow),
				(u8)port->gid_index, AH_HOP_LIMIT, (u8)r->node->cfg.tclass);
	}
}

static void make_first(struct work_struct *work);
static void make_second(struct work_struct *work);

/* For such an address, hashed. */
static struct coop_ah *create(struct coop_rnic *r, const u8 gid[16], u16 lid, u8 sl, u32 flow)
{
	struct coop_ah *ah;

	if (!make_room(r))
		return NULL;
	/* Readers wait for the lock. A stranger's datagram asks for an entry, too. */
	ah = kzalloc(sizeof(*ah),
		     GFP_NOWAIT | __GFP_NOWARN | (coop_node_gfp(r->node) & __GFP_ACCOUNT));
	if (!ah)
		return NULL;
	ah->rnic = r;
	memcpy(ah->gid, gid, sizeof(ah->gid));
	ah->lid = lid;
	ah->sl = sl;
	ah->flow = (u8)flow;
	INIT_WORK(&ah->first, make_first);
	INIT_DELAYED_WORK(&ah->second, make_second);
	hlist_add_head(&ah->hash, &r->ah.bucket[bucket_of(r, ah->gid, ah->lid, flow)]);
	list_add_tail(&ah->link, &r->ah.all);
	r->ah.n++;
	r->ah.n_exist++;
	return ah;
}

/*
 * Takes the result of the works; ib is NULL if the address did not resolve. Returns a handle to
 * destroy without the lock, or NULL.
 */
static struct ib_ah *made(struct coop_ah *ah, struct ib_ah *ib, u64 now)
{
	struct coop_rnic *r = ah->rnic;
	struct ib_ah *old = ib;
	struct coop_ah *other;

	ah->wanted = false;
	ah->made_us = now;
	coop_count(r->node->stats, ib ? COOP_C_AH_CREATED : COOP_C_AH_FAILED, 1);
	if (!ah->users) {
		old = ah->ib;
		ah->ib = ib;
	} else if (ib && !hlist_unhashed(&ah->hash)) {
		/* Posted sends still use the old one, which may be out of date. */
		retire(r, ah);
		other = create(r, ah->gid, ah->lid, ah->sl, ah->flow);
		if (other) {
			other->ib = ib;
			other->made_us = now;
			old = NULL;
		}
	}
	coop_ctrl_resume(r, ah, now);
	coop_pump_drain(r->node, now);
	coop_node_kick(r->node); /* a serve may have begun: the pump must watch its sends */
	return old;
}

static void make(struct coop_ah *ah, bool first)
{
	struct coop_rnic *r = ah->rnic;
	struct coop_node *node = r->node;
	struct rdma_ah_attr attr;
	struct ib_ah *ib = NULL, *old = NULL;
	struct mem_cgroup *outer;
	unsigned int flags;
	bool wanted;

	mutex_lock(&node->lock);
	wanted = ah->wanted && !r->closing;
	fill(r, ah, &attr);
	/* Two are counted for the entry; one that is renewed has its old handle, too. */
	if (wanted && first && has_room(r, ah->ib ? 1 : 0)) {
		ah->making++;
		queue_delayed_work(node->paths, &ah->second, msecs_to_jiffies(AH_SECOND_MS));
	}
	mutex_unlock(&node->lock);

	if (wanted)
		ib = rdma_create_user_ah(r->pd, &attr, NULL);
	if (IS_ERR(ib))
		ib = NULL;

	flags = memalloc_noio_save();
	outer = set_active_memcg(node->cfg.memcg);
	mutex_lock(&node->lock);
	if (first && ib && cancel_delayed_work(&ah->second))
		ah->making--;
	if (ah->wanted && (ib || ah->making == 1) && !r->closing)
		old = made(ah, ib, coop_now_us());
	else
		old = ib; /* the other work was faster */
	if (old) {
		mutex_unlock(&node->lock);
		/* 'making' keeps the entry in a list, so coop_ah_cache_destroy() waits for us. */
		destroy(old);
		mutex_lock(&node->lock);
	}
	/* After made(), in which an entry that is not pinned may be spent. */
	if (!--ah->making)
		r->ah.n_making--;
	if (!r->closing && hlist_unhashed(&ah->hash) && !ah->users && !ah->making)
		spend(r, ah);
	mutex_unlock(&node->lock);
	set_active_memcg(outer);
	memalloc_noio_restore(flags);
}

static void make_first(struct work_struct *work)
{
	make(container_of(work, struct coop_ah, first), true);
}

static void make_second(struct work_struct *work)
{
	make(container_of(to_delayed_work(work), struct coop_ah, second), false);
}

/* RoCE has no LIDs: ignore the field, so that an address has only one entry. */
static u16 lid_of(const struct coop_rnic *r, const struct coop_addr *to)
{
	return r->port.roce ? 0 : to->lid;
}

static struct coop_ah *find(struct coop_rnic *r, const struct coop_addr *to, u32 flow)
{
	u16 lid = lid_of(r, to);
	struct coop_ah *ah;

	hlist_for_each_entry(ah, &r->ah.bucket[bucket_of(r, to->gid, lid, flow)], hash)
		if (ah->lid == lid && ah->sl == to->sl && ah->flow == flow &&
		    !memcmp(ah->gid, to->gid, 16))
			return ah;
	return NULL;
}

struct coop_ah *coop_ah_find(struct coop_rnic *r, const struct coop_addr *to)
{
	return find(r, to, 0);
}

struct coop_ah *coop_ah_line(struct coop_rnic *r, const struct coop_addr *from)
{
	u16 lid = lid_of(r, from);
	struct coop_ah *ah;

	hlist_for_each_entry(ah, &r->ah.bucket[bucket_of(r, from->gid, lid, 0)], hash)
		if (ah->lid == lid && ah->n_recv && !memcmp(ah->gid, from->gid, 16))
			return ah;
	return NULL;
}

void coop_ah_cache_init(struct coop_rnic *r)
{
	struct coop_ah_cache *c = &r->ah;
	const int most = r->port.dev->attrs.max_ah;
	u32 i;

	c->most = most > 0 ? min_t(u32, most, COOP_AH_MAX) : COOP_AH_MAX;
	for (i = 0; i < COOP_AH_BUCKETS; i++)
		INIT_HLIST_HEAD(&c->bucket[i]);
	INIT_LIST_HEAD(&c->all);
	INIT_LIST_HEAD(&c->retired);
	INIT_LIST_HEAD(&c->spent);
	INIT_WORK(&c->reap, reap);
}

static struct coop_ah *use(struct coop_rnic *r, struct coop_ah *ah, u64 now)
{
	list_move_tail(&ah->link, &r->ah.all);
	/* To be renewed, it needs room for its new handle beside the old one. */
	if (!ah->making && (!ah->ib || has_room(r, 1)) &&
	    (!ah->made_us || now - ah->made_us > (ah->ib ? AH_RENEW_US : AH_RETRY_US))) {
		ah->wanted = true;
		ah->making = 1;
		r->ah.n_making++;
		queue_work(r->node->paths, &ah->first);
	}
	return ah->ib || ah->wanted ? ah : NULL;
}

static struct coop_ah *get(struct coop_rnic *r, const struct coop_addr *to, u32 flow, u64 now)
{
	struct coop_ah *ah;

	lockdep_assert_held(&r->node->lock);
	if (r->closing)
		return NULL;
	ah = find(r, to, flow);
	if (!ah)
		ah = create(r, to->gid, lid_of(r, to), to->sl, flow);
	return ah ? use(r, ah, now) : NULL;
}

struct coop_ah *coop_ah_get(struct coop_rnic *r, const struct coop_addr *to, u64 now)
{
	return get(r, to, 0, now);
}

struct coop_ah *coop_ah_of_data(struct coop_rnic *r, const struct coop_addr *to, u32 own_qpn,
				u64 now)
{
	const u32 flow = has_label(r, to->gid) ? coop_flow_of(own_qpn, to->qpn) : 0;
	struct coop_ah *ah = find(r, to, flow);

	lockdep_assert_held(&r->node->lock);
	if (ah && ah->ib && !r->closing)
		return use(r, ah, now);
	ah = get(r, to, 0, now);
	if (flow && ah && ah->ib) { /* else it would only be asked for twice */
		coop_ah_hold(ah);   /* a new entry takes the place of another one */
		(void)get(r, to, flow, now);
		coop_ah_put(r, ah);
	}
	return ah;
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
	if (hlist_unhashed(&ah->hash) && !ah->making)
		spend(r, ah);
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
	struct coop_ah *ah;

	list_splice_init(&r->ah.retired, &r->ah.all);
	list_for_each_entry(ah, &r->ah.all, link) {
		cancel_work_sync(&ah->first);
		cancel_delayed_work_sync(&ah->second);
	}
	cancel_work_sync(&r->ah.reap);
	free_all(&r->ah.all);
	free_all(&r->ah.spent);
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
