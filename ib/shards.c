// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * shards.c - a mount's engines: several nodes behind one address, so that several processors share
 * the work of one mount.
 *
 * A node (ib.h) has one lock, and one worker carries all that its device completes. So a mount may
 * have several, its shards, each with queue pairs, completion queues and a vector of its own. The
 * pages of a file's chunk go through one of them, chosen by file and chunk. Other nodes and storage
 * know the address of the first only; what they send there for another shard (coop_wire_shard())
 * goes into that shard's mailbox. A shard sends requests and answers from its own queue pair. What
 * its receiver must see come from the address, it hands to the first.
 *
 * All are on the port of the first. The first follows devices and ports by itself; whenever its
 * address changes, the others look where it is and follow.
 *
 * Locks: a shard's attach_lock, then the first one's lock, in which the other learns the address.
 * The locks of two shards are never held at once; the locks of mailboxes are inside of all.
 */
#include <linux/hash.h>
#include <linux/slab.h>

#include "ib/node.h"
#include "ib/trace.h"
#include "rpc/base/addr.h"

#define CHUNK_PAGES  (SZ_1M >> PAGE_SHIFT) /* neighbouring pages go through one shard */
#define CURSOR_SHARD 24                    /* /proc: bits of a cursor below the shard's number */

static struct coop_node *first(const struct coop_shards *s)
{
	return s->node[0];
}

/* ---- between shards ------------------------------------------------------------- */

static void lost(struct coop_node *node, bool incoming)
{
	trace_coopfs_ctrl_drop(node->rnic, incoming, COOP_DROP_NO_BUFFER);
	coop_count(node->stats, COOP_C_CTRL_DROPPED, 1);
}

bool coop_shards_route(struct coop_node *node, const struct coop_addr *from, const void *buf,
		       u32 len)
{
	struct coop_node *to;
	u32 shard;

	if (!node->shards || node->shard)
		return false;
	shard = coop_wire_shard(buf, len, node->shards->n);
	/* Pairs with the release in create_all(): the mount is still being made. */
	to = shard ? smp_load_acquire(&node->shards->node[shard]) : NULL;
	if (!to || !READ_ONCE(to->rnic)) /* the first serves for it */
		return false;
	if (coop_mail_put(&to->mail, from, buf, len))
		coop_node_kick(to);
	else
		lost(node, true);
	return true;
}

/* Others may answer the queue pair that a QUERY or PING came from, and want to know it. */
static bool goes_by_the_first(const struct coop_tx *tx)
{
	const u8 command = coop_wire_command(tx->buf, tx->len);

	return !(command & COOP_CMD_ANSWER) && command != COOP_CMD_REQUEST;
}

bool coop_shards_relay(struct coop_node *node, const struct coop_tx *tx)
{
	struct coop_node *to;

	if (!node->shard || !goes_by_the_first(tx))
		return false;
	to = first(node->shards);
	if (coop_mail_put(&node->shards->out, &tx->addr, tx->buf, tx->len))
		coop_node_kick(to);
	else
		lost(node, false);
	return true;
}

void coop_shards_moved(struct coop_node *node)
{
	struct coop_node *other;
	u32 i;

	for (i = 1; node->shards && i < node->shards->n; i++) {
		other = smp_load_acquire(&node->shards->node[i]); /* as above */
		if (other)
			mod_delayed_work(coop_ib_wq, &other->refresh, 0);
	}
}

bool coop_shards_port(struct coop_node *node, struct coop_port *port)
{
	struct coop_node *at = first(node->shards);
	bool any;

	mutex_lock(&at->lock);
	any = at->rnic && !at->rnic->closing;
	if (any)
		*port = at->rnic->port;
	mutex_unlock(&at->lock);
	return any;
}

bool coop_shards_address_of(struct coop_node *node, struct coop_addr *self)
{
	return coop_node_self(first(node->shards), self);
}

/* ---- all of them ---------------------------------------------------------------- */

static u32 share(u32 of, u32 n)
{
	return DIV_ROUND_UP(of, n);
}

/* Backwards: the first, which the others look at, goes last. */
static void destroy_all(struct coop_shards *s)
{
	u32 i;

	if (first(s)) { /* it announces nothing any more */
		mutex_lock(&first(s)->attach_lock);
		first(s)->leaving = true;
		mutex_unlock(&first(s)->attach_lock);
	}
	for (i = s->n; i-- > 0;)
		if (s->node[i])
			coop_node_stop(s->node[i]);
	/* None has a device, so none looks at another: the refreshes see that it leaves. */
	for (i = s->n; i-- > 0;)
		if (s->node[i])
			coop_node_end(s->node[i]);
	coop_mail_destroy(&s->out);
	kfree(s);
}

static int create_all(struct coop_shards *s, const struct coop_node_cfg *cfg,
		      struct coop_stats *stats, const struct coop_node_ops *ops, void *host,
		      char *why, size_t why_size)
{
	struct coop_node *node;
	u32 i;

	for (i = 0; i < s->n; i++) {
		node = coop_node_create_shard(cfg, s->n > 1 ? s : NULL, i, stats, ops, host, why,
					      why_size);
		if (IS_ERR(node))
			return PTR_ERR(node);
		/* Pairs with the acquires of those who look while the rest is being made. */
		smp_store_release(&s->node[i], node);
	}
	return 0;
}

struct coop_shards *coop_shards_create(const struct coop_node_cfg *cfg, u32 n,
				       struct coop_stats *stats, const struct coop_node_ops *ops,
				       void *host, char *why, size_t why_size)
{
	struct coop_shards *s = kzalloc(sizeof(*s), GFP_KERNEL);
	struct coop_node_cfg *one = kmemdup(cfg, sizeof(*cfg), GFP_KERNEL);
	int err = -ENOMEM;
	u32 most;

	snprintf(why, why_size, "out of memory");
	if (!s || !one)
		goto out;
	/* A fetch that waits leaves a slot to one that must not, so each has two. */
	most = min3(cfg->num_srpc / 2, cfg->num_rrpc, (u32)COOP_SHARDS);
	if (cfg->serve_mbps)
		most = min(most, cfg->serve_mbps);
	s->n = clamp_t(u32, n, 1, max(most, 1u));
	one->num_srpc = share(cfg->num_srpc, s->n);
	one->num_rrpc = share(cfg->num_rrpc, s->n);
	one->serve_mbps = share(cfg->serve_mbps, s->n);
	err = s->n > 1 ? coop_mail_create(&s->out) : 0;
	if (!err)
		err = create_all(s, one, stats, ops, host, why, why_size);
out:
	kfree_sensitive(one);
	if (!err)
		return s;
	if (s)
		destroy_all(s);
	return ERR_PTR(err);
}

void coop_shards_destroy(struct coop_shards *s)
{
	destroy_all(s);
}

static struct coop_node *node_for(struct coop_shards *s, const struct coop_node_fetch *f)
{
	const u64 chunk = f->fid.hi ^ f->fid.lo ^ f->index / CHUNK_PAGES;
	struct coop_node *node = s->node[s->n > 1 ? hash_64(chunk, 32) % s->n : 0];

	return READ_ONCE(node->up) ? node : first(s);
}

int coop_shards_fetch(struct coop_node_fetch *f, struct coop_shards *s)
{
	return coop_node_fetch(f, node_for(s, f));
}

void coop_shards_cancel(struct coop_shards *s)
{
	u32 i;

	for (i = 0; i < s->n; i++)
		coop_node_cancel(s->node[i]);
}

void coop_shards_settled(struct coop_shards *s)
{
	u32 i;

	for (i = 0; i < s->n; i++)
		coop_node_settled(s->node[i]);
}

void coop_shards_rekey(struct coop_shards *s, const u8 key[16])
{
	u32 i;

	for (i = 0; i < s->n; i++)
		coop_node_rekey(s->node[i], key);
}

void coop_shards_join(struct coop_shards *s, u32 node_id, const struct coop_addr *addr)
{
	u32 i;

	for (i = 0; i < s->n; i++)
		coop_node_join(s->node[i], node_id, addr);
}

void coop_shards_leave(struct coop_shards *s, u32 node_id)
{
	u32 i;

	for (i = 0; i < s->n; i++)
		coop_node_leave(s->node[i], node_id);
}

void coop_shards_forget_all(struct coop_shards *s)
{
	u32 i;

	for (i = 0; i < s->n; i++)
		coop_node_forget_all(s->node[i]);
}

int coop_shards_add_by_hand(struct coop_shards *s, const struct coop_addr *addr)
{
	int err, all = 0;
	u32 i;

	for (i = 0; i < s->n; i++) {
		err = coop_node_add_by_hand(s->node[i], addr);
		all = all ?: err;
	}
	return all;
}

void coop_shards_tune(struct coop_shards *s, u32 peer_timeout_ms, u32 serve_mbps)
{
	u32 i;

	for (i = 0; i < s->n; i++)
		coop_node_tune(s->node[i], peer_timeout_ms, share(serve_mbps, s->n));
}

/* ---- the first of them ---------------------------------------------------------- */

u32 coop_shards_max_pages(const struct coop_shards *s)
{
	return coop_node_max_pages(first(s)); /* all are on one port */
}

bool coop_shards_self(struct coop_shards *s, struct coop_addr *self)
{
	return coop_node_self(first(s), self);
}

void coop_shards_enter(struct coop_shards *s)
{
	coop_node_enter(first(s));
}

bool coop_shards_address(struct coop_shards *s, u32 node_id, struct coop_addr *addr)
{
	return coop_node_address(first(s), node_id, addr);
}

/* ---- for /proc ------------------------------------------------------------------ */

/* A peer with a closed circuit and a probe under way is better off than one with an open circuit.
 */
static u32 worse(u32 a, u32 b)
{
	return a == COOP_PEER_OPEN || b == COOP_PEER_OPEN ? COOP_PEER_OPEN : max(a, b);
}

static void add_peer(struct coop_peer_info *sum, const struct coop_peer_info *p)
{
	sum->health = worse(sum->health, p->health);
	if (p->srtt_us && (!sum->srtt_us || p->srtt_us < sum->srtt_us)) {
		sum->srtt_us = p->srtt_us;
		sum->rttvar_us = p->rttvar_us;
	}
	sum->fails_in_row = max(sum->fails_in_row, p->fails_in_row);
	sum->in_flight += p->in_flight;
	sum->fetches += p->fetches;
	sum->hits += p->hits;
	sum->misses += p->misses;
	sum->failures += p->failures;
	sum->pages += p->pages;
	sum->bytes += p->bytes;
	sum->served_pages += p->served_pages;
	sum->served_bytes += p->served_bytes;
	sum->busy += p->busy;
}

bool coop_shards_peer_next(struct coop_shards *s, u32 *cursor, struct coop_peer_info *info)
{
	struct coop_peer_info other;
	u32 i;

	if (!coop_node_peer_next(first(s), cursor, info))
		return false;
	for (i = 1; i < s->n; i++)
		if (coop_node_peer_at(s->node[i], &info->addr, &other))
			add_peer(info, &other);
	return true;
}

bool coop_shards_request_next(struct coop_shards *s, u32 *cursor, struct coop_request_info *info)
{
	const u32 mask = BIT(CURSOR_SHARD) - 1;
	u32 at = *cursor & mask, i;

	for (i = *cursor >> CURSOR_SHARD; i < s->n; i++, at = 0) {
		if (!coop_node_request_next(s->node[i], &at, info))
			continue;
		*cursor = i << CURSOR_SHARD | at;
		return true;
	}
	return false;
}

void coop_shards_engine_stats(struct coop_shards *s, struct coop_engine_stats *stats)
{
	struct coop_engine_stats one;
	u64 *to = (u64 *)stats, *from = (u64 *)&one;
	u32 i, k;

	coop_node_engine_stats(first(s), stats);
	for (i = 1; i < s->n; i++) {
		coop_node_engine_stats(s->node[i], &one);
		for (k = 0; k < sizeof(one) / sizeof(u64); k++)
			to[k] += from[k];
	}
}

void coop_shards_reset_stats(struct coop_shards *s)
{
	u32 i;

	for (i = 0; i < s->n; i++)
		coop_node_reset_stats(s->node[i]);
}

void coop_shards_describe(struct coop_shards *s, char *buf, size_t size)
{
	size_t len;

	coop_node_describe(first(s), buf, size);
	len = strlen(buf);
	if (s->n > 1)
		snprintf(buf + len, size - len, " engines %u", s->n);
}
