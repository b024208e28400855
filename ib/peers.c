// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * peers.c - the other nodes, as storage and the administrator name them, and the
 * data behind /proc.
 *
 * Storage names nodes by number. The node keeps the map from numbers to
 * addresses, which outlives engines and devices. It adds each member to the
 * engine when the member joins, and all members to a new engine.
 *
 * The receiver of storage's pushes neither takes the node's lock nor waits for memory: all calls
 * wait for that receiver, and the lock's holder may wait for a device. It only adds to the list of
 * news, under a spinlock. A work takes the news, and so does a fetch, under the lock which that has
 * anyway: whoever was named in a reply behind the push is known. News that find no memory or no
 * room are lost. A member that is not known, or has gone, costs a request.
 */
#include <linux/slab.h>

#include "ib/node.h"
#include "rpc/base/addr.h"

#define NEWS_MOST    (2 * COOP_PEERS_MAX) /* every member leaves and joins */
#define NEWS_AT_ONCE 64                   /* for which the work holds the lock */

struct coop_member {
	struct coop_addr addr;
	struct list_head link; /* node->news, until it is taken */
	struct hlist_node by_number, by_addr;
	u32 node_id;
	u32 engine_id; /* COOP_NONE: the engine has no room for it */
	bool leaves;   /* news that the member of this number has left */
};

static u32 tell_engine(struct coop_node *node, struct coop_engine *engine,
		       const struct coop_addr *addr, u64 now)
{
	s64 id = coop_engine_peer_add(engine, addr, COOP_PEER_BY_DAEMON, now);

	if (id > 0)
		return (u32)id;
	if (id == -ENOSPC && !node->table_full) {
		node->table_full = true;
		pr_warn("coopfs: the table of %u peers is full: further peers are not asked for "
			"pages\n",
			COOP_PEERS_MAX);
	}
	return COOP_NONE;
}

/* Members choose their addresses; without the salt they could put all into one bucket. */
static u32 member_key(const struct coop_node *node, const struct coop_addr *addr)
{
	return (u32)hash_64(coop_addr_hash(addr) ^ node->member_salt, 32);
}

/* Likewise: the daemon chooses the numbers. */
static u32 number_key(const struct coop_node *node, u32 node_id)
{
	return (u32)hash_64(node_id ^ node->member_salt, 32);
}

static struct coop_member *member_of(struct coop_node *node, u32 node_id)
{
	struct coop_member *m;

	hash_for_each_possible(node->by_number, m, by_number, number_key(node, node_id))
		if (m->node_id == node_id)
			return m;
	return NULL;
}

static struct coop_member *member_at(struct coop_node *node, const struct coop_addr *addr)
{
	struct coop_member *m;

	hash_for_each_possible(node->by_addr, m, by_addr, member_key(node, addr))
		if (coop_addr_same(&m->addr, addr))
			return m;
	return NULL;
}

static void member_free(struct coop_node *node, struct coop_member *m)
{
	hash_del(&m->by_number);
	hash_del(&m->by_addr);
	node->n_members--;
	kfree(m);
}

static void forget(struct coop_node *node, struct coop_member *m)
{
	if (node->engine)
		(void)coop_engine_peer_del(node->engine, &m->addr, COOP_PEER_BY_DAEMON);
	member_free(node, m);
}

static void forget_number(struct coop_node *node, u32 node_id)
{
	struct coop_member *m = member_of(node, node_id);

	if (m)
		forget(node, m);
}

static void forget_all(struct coop_node *node)
{
	struct coop_member *m;
	struct hlist_node *next;
	u32 i;

	hash_for_each_safe(node->by_number, i, next, m, by_number) forget(node, m);
}

static void join(struct coop_node *node, struct coop_member *m)
{
	struct coop_member *other;

	forget_number(node, m->node_id);
	/*
	 * The node came back under a new number. The leave of the old number may still come, and
	 * must not remove the address.
	 */
	other = member_at(node, &m->addr);
	if (other)
		member_free(node, other);
	/* More than any daemon has: bounds the memory that a lying daemon can use. */
	if (node->n_members == COOP_PEERS_MAX) {
		/* A number that is no member any more may have had this address. */
		if (node->engine)
			(void)coop_engine_peer_del(node->engine, &m->addr, COOP_PEER_BY_DAEMON);
		kfree(m);
		return;
	}
	hash_add(node->by_number, &m->by_number, number_key(node, m->node_id));
	hash_add(node->by_addr, &m->by_addr, member_key(node, &m->addr));
	node->n_members++;
	if (node->engine)
		m->engine_id = tell_engine(node, node->engine, &m->addr, coop_now_us());
}

/* ---- news ------------------------------------------------------------------------ */

/* The oldest news; NULL: none. *all: the members of before are to be forgotten first. */
static struct coop_member *news_first(struct coop_node *node, bool *all)
{
	struct coop_member *m;

	spin_lock(&node->news_lock);
	*all = node->news_of_all;
	node->news_of_all = false;
	m = list_first_entry_or_null(&node->news, struct coop_member, link);
	if (m) {
		list_del(&m->link);
		node->n_news--;
	}
	spin_unlock(&node->news_lock);
	return m;
}

/* Takes at most so many. True: there may be more. */
static bool news_take(struct coop_node *node, u32 most)
{
	struct coop_member *m;
	bool all;

	lockdep_assert_held(&node->lock);
	for (; most; most--) {
		if (list_empty_careful(&node->news) && !READ_ONCE(node->news_of_all))
			return false;
		m = news_first(node, &all);
		if (all)
			forget_all(node);
		if (m && m->leaves) {
			forget_number(node, m->node_id);
			kfree(m);
		} else if (m) {
			join(node, m);
		}
	}
	return true;
}

void coop_peers_work(struct work_struct *work)
{
	struct coop_node *node = container_of(work, struct coop_node, members);
	bool more;

	do {
		mutex_lock(&node->lock);
		more = news_take(node, NEWS_AT_ONCE);
		mutex_unlock(&node->lock);
		cond_resched();
	} while (more);
}

/* addr: NULL: it leaves. */
static void news_add(struct coop_node *node, u32 node_id, const struct coop_addr *addr)
{
	struct coop_member *m = kzalloc(sizeof(*m), GFP_NOWAIT | __GFP_NOWARN);
	bool room;

	if (!m)
		return;
	m->node_id = node_id;
	m->engine_id = COOP_NONE;
	if (addr)
		m->addr = *addr;
	else
		m->leaves = true;
	spin_lock(&node->news_lock);
	room = node->n_news < NEWS_MOST;
	if (room) {
		node->n_news++;
		list_add_tail(&m->link, &node->news);
	}
	spin_unlock(&node->news_lock);
	if (room)
		queue_work(coop_ib_wq, &node->members);
	else
		kfree(m);
}

static void news_free(struct list_head *news)
{
	struct coop_member *m, *next;

	list_for_each_entry_safe(m, next, news, link)
		kfree(m);
}

void coop_node_join(struct coop_node *node, u32 node_id, const struct coop_addr *addr)
{
	news_add(node, node_id, addr);
}

void coop_node_leave(struct coop_node *node, u32 node_id)
{
	news_add(node, node_id, NULL);
}

void coop_node_forget_all(struct coop_node *node)
{
	LIST_HEAD(old);

	spin_lock(&node->news_lock);
	list_splice_init(&node->news, &old);
	node->n_news = 0;
	node->news_of_all = true;
	spin_unlock(&node->news_lock);
	news_free(&old);
	queue_work(coop_ib_wq, &node->members);
}

bool coop_node_address(struct coop_node *node, u32 node_id, struct coop_addr *addr)
{
	const struct coop_member *m;

	mutex_lock(&node->lock);
	(void)news_take(node, NEWS_MOST);
	m = member_of(node, node_id);
	if (m)
		*addr = m->addr;
	mutex_unlock(&node->lock);
	return m;
}

int coop_node_add_by_hand(struct coop_node *node, const struct coop_addr *addr)
{
	s64 id;

	mutex_lock(&node->lock);
	id = coop_engine_peer_add(node->engine, addr, COOP_PEER_BY_HAND, coop_now_us());
	mutex_unlock(&node->lock);
	return id > 0 ? 0 : (int)id;
}

void coop_peers_carry(struct coop_node *node, struct coop_engine *engine,
		      const struct coop_engine *old, u64 now)
{
	struct coop_peer_info info;
	struct coop_member *m;
	u32 cursor = 0, i;

	lockdep_assert_held(&node->lock);
	while (old && coop_engine_peer_next(old, &cursor, &info))
		if (info.origin & COOP_PEER_BY_HAND)
			(void)coop_engine_peer_add(engine, &info.addr, COOP_PEER_BY_HAND, now);
	hash_for_each(node->by_number, i, m, by_number) m->engine_id =
		tell_engine(node, engine, &m->addr, now);
}

static void name_peer(struct coop_node *node, u32 node_id, struct coop_fetch_req *req)
{
	const struct coop_member *m = node_id ? member_of(node, node_id) : NULL;
	u32 i;

	if (!m || m->engine_id == COOP_NONE || req->n_hints == COOP_MAX_HINTS)
		return;
	for (i = 0; i < req->n_hints; i++)
		if (req->hints[i] == m->engine_id)
			return;
	req->hints[req->n_hints++] = m->engine_id;
}

/*
 * The only node to ask. Those with no request in flight give up their places. The engine need not
 * remember them: the host of lines judges whether a silent node lives.
 */
static void name_source(struct coop_node *node, const struct coop_addr *addr,
			struct coop_fetch_req *req)
{
	struct coop_engine *engine = node->engine;
	struct coop_peer_info info;
	u64 now = coop_now_us();
	u32 cursor = 0;
	s64 id;

	id = coop_engine_peer_add(engine, addr, COOP_PEER_BY_DAEMON, now);
	while (id == -ENOSPC && coop_engine_peer_next(engine, &cursor, &info)) {
		if (info.in_flight)
			continue;
		(void)coop_engine_peer_del(engine, &info.addr, COOP_PEER_BY_DAEMON);
		id = coop_engine_peer_add(engine, addr, COOP_PEER_BY_DAEMON, now);
	}
	if (id > 0)
		req->hints[req->n_hints++] = (u32)id;
}

void coop_peers_name(struct coop_node *node, const struct coop_node_fetch *f,
		     struct coop_fetch_req *req)
{
	u32 i;

	lockdep_assert_held(&node->lock);
	if (f->from) {
		name_source(node, f->from, req);
		req->budget_us = f->budget_us;
		return;
	}
	(void)news_take(node, NEWS_MOST);
	for (i = 0; i < COOP_PARENTS; i++)
		name_peer(node, f->parents[i], req);
	req->n_parents = req->n_hints;
	if (req->n_parents) {
		req->level = f->level;
		req->load = f->load;
		req->relay = f->relay;
		req->budget_us = f->budget_us;
	}
	for (i = 0; i < f->n_openers && i < COOP_MAX_HINTS; i++)
		name_peer(node, f->openers[i], req);
}

void coop_peers_free(struct coop_node *node)
{
	struct coop_member *m;
	struct hlist_node *next;
	u32 i;

	news_free(&node->news);
	hash_for_each_safe(node->by_number, i, next, m, by_number) kfree(m);
}

/* ---- for /proc ---------------------------------------------------------------------------------
 */

bool coop_node_peer_next(struct coop_node *node, u32 *cursor, struct coop_peer_info *info)
{
	bool any;

	mutex_lock(&node->lock);
	any = coop_engine_peer_next(node->engine, cursor, info);
	mutex_unlock(&node->lock);
	return any;
}

bool coop_node_peer_at(struct coop_node *node, const struct coop_addr *addr,
		       struct coop_peer_info *info)
{
	bool any;

	mutex_lock(&node->lock);
	any = coop_engine_peer_at(node->engine, addr, info);
	mutex_unlock(&node->lock);
	return any;
}

bool coop_node_request_next(struct coop_node *node, u32 *cursor, struct coop_request_info *info)
{
	bool any;

	mutex_lock(&node->lock);
	any = coop_engine_request_next(node->engine, cursor, coop_now_us(), info);
	mutex_unlock(&node->lock);
	return any;
}

void coop_node_engine_stats(struct coop_node *node, struct coop_engine_stats *stats)
{
	const u64 *past = (const u64 *)&node->past;
	u64 *to = (u64 *)stats;
	size_t i;

	mutex_lock(&node->lock);
	coop_engine_stats(node->engine, stats);
	for (i = 0; i < sizeof(*stats) / sizeof(u64); i++)
		to[i] += past[i];
	mutex_unlock(&node->lock);
}

void coop_node_reset_stats(struct coop_node *node)
{
	mutex_lock(&node->lock);
	coop_engine_stats_reset(node->engine);
	memset(&node->past, 0, sizeof(node->past));
	mutex_unlock(&node->lock);
}
