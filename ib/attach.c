// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * attach.c - attaches a node to a device and detaches it.
 *
 * Every attachment has an engine of its own, because an engine is built for one
 * MTU and its requests are bound to queue pairs. Peers and counters are carried
 * over. Without a device the last engine stays, idle, for readers of /proc.
 *
 * Detach order: stop new work; cancel the fetches, which stops their queue
 * pairs; let the serves end, none of which waits for pages any longer. Requests
 * that have not ended in time end with the queue pairs: once those are destroyed
 * the device owns no memory, and we tell the engine that all its work requests
 * have completed. While the device refuses to destroy one, detach waits, without
 * a limit: memory that a device may write to belongs to nobody else. A node with
 * lines never attaches again.
 */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "ib/node.h"
#include "rpc/base/addr.h"

#define QUEUED_PER_SLOT 4
#define CHUNK_BYTES     SZ_1M /* unit of placement */
#define MIN_WINDOW      SZ_64K
#define MAX_WINDOW      SZ_1G
#define COOP_LINE_PEERS 1024 /* with a fetch in flight */
#define DETACH_US       (COOP_QUIET_US + 500000)

static void engine_config(const struct coop_rnic *r, struct coop_engine_cfg *e)
{
	const struct coop_node_cfg *cfg = &r->node->cfg;
	u64 window = (u64)r->n_fetch * r->fetch_pages * r->per_page * r->mtu;

	memset(e, 0, sizeof(*e));
	get_random_bytes(&e->seed, sizeof(e->seed));
	memcpy(e->key, cfg->fabric_key, sizeof(e->key));
	/* A shard is told the address of all once there is one. */
	if (!r->node->shard || !coop_shards_address_of(r->node, &e->self))
		e->self = r->self;
	e->shards = r->node->shards ? r->node->shards->n : 1;
	e->shard = r->node->shard;
	e->page_shift = PAGE_SHIFT;
	e->mtu = r->mtu;
	e->max_fetches = r->n_fetch;
	e->max_serves = r->n_serves;
	e->max_queued = r->n_fetch * QUEUED_PER_SLOT;
	e->max_peers = COOP_PEERS_MAX;
	e->peer_timeout_us = cfg->peer_timeout_ms * 1000;
	e->window_bytes = (u32)clamp_t(u64, window, MIN_WINDOW, MAX_WINDOW);
	e->serve_bytes_s = coop_bytes_s(cfg->serve_mbps);
	e->fetch_depth = r->fetch_wrs;
	e->serve_depth = r->serve_wrs; /* a smaller MTU of the requester needs more sends */
	e->chunk_pages = max_t(u32, CHUNK_BYTES >> PAGE_SHIFT, COOP_MAX_PAGES);
	if (cfg->page_mac)
		e->flags |= COOP_F_PAGE_TAG;
	else if (cfg->page_crc)
		e->flags |= COOP_F_PAGE_CRC;
	if (PAGE_SIZE % r->mtu)
		e->flags |= COOP_F_PACKED;
	if (cfg->lines) {
		e->max_peers = COOP_LINE_PEERS;
		e->silence_us = cfg->silence_us;
		e->chunk_pages = 1u << 31; /* no placement: the node to ask is given */
		e->policy = coop_policy_sole_source();
	} else {
		e->flags |= COOP_F_FORWARDS;
	}
}

static struct coop_engine *create_engine(struct coop_rnic *r, u64 now)
{
	struct coop_engine *engine;
	struct coop_engine_cfg cfg;
	size_t size;
	void *mem;
	u32 i;

	engine_config(r, &cfg);
	size = coop_engine_size(&cfg);
	if (!size)
		return ERR_PTR(-EINVAL);
	mem = kvzalloc(size, coop_node_gfp(r->node));
	if (!mem)
		return ERR_PTR(-ENOMEM);
	engine = coop_engine_init(mem, size, &cfg, now); /* the engine starts at mem */
	for (i = 0; i < r->n_fetch; i++)
		coop_engine_set_fetch_qp(engine, i, r->fetch[i].qp.num, r->qkey);
	for (i = 0; i < r->n_serves; i++)
		coop_engine_set_serve_qp(engine, i, r->serve[i % r->n_serve].qp.num);
	return engine;
}

/* Adds the counters, not the gauges, of the engine that is replaced. All fields are u64. */
static void keep_figures(struct coop_node *node)
{
	struct coop_engine_stats now;
	u64 *to = (u64 *)&node->past, *from = (u64 *)&now;
	size_t i;

	coop_engine_stats(node->engine, &now);
	now.window_bytes = 0;
	now.invited_bytes = 0;
	now.serves_waiting = 0;
	for (i = 0; i < sizeof(now) / sizeof(u64); i++)
		to[i] += from[i];
}

static int find_port(struct coop_node *node, struct coop_port *port, char *why, size_t size)
{
	struct coop_port first;
	struct coop_node_cfg *cfg;
	int err;

	if (!node->shard)
		return coop_port_find(&node->cfg, port, why, size);
	if (!coop_shards_port(node, &first)) {
		snprintf(why, size, "the mount's first engine has no device");
		return -ENODEV;
	}
	cfg = kmemdup(&node->cfg, sizeof(*cfg), coop_node_gfp(node));
	if (!cfg)
		return -ENOMEM;
	/* The device exists: its removal visits the first shard before this one. */
	strscpy(cfg->devname, dev_name(&first.dev->dev), sizeof(cfg->devname));
	cfg->port = first.num;
	err = coop_port_find(cfg, port, why, size);
	kfree_sensitive(cfg);
	return err;
}

int coop_node_attach(struct coop_node *node, char *why, size_t size)
{
	struct coop_engine *engine, *old;
	u64 now = coop_now_us();
	struct coop_port port;
	struct coop_rnic *r;
	unsigned int flags;
	int err;

	lockdep_assert_held(&node->attach_lock);
	err = find_port(node, &port, why, size);
	if (err)
		return err;
	r = coop_rnic_create(node, &port, why, size);
	if (IS_ERR(r))
		return PTR_ERR(r);
	engine = create_engine(r, now);
	if (IS_ERR(engine)) {
		err = PTR_ERR(engine);
		if (err == -ENOMEM)
			snprintf(why, size, "out of memory");
		else
			snprintf(why, size, "%s is out of range",
				 node->cfg.lines
					 ? "fetch_timeout_us, fetches or serves"
					 : "peer_timeout_ms=, ib_num_srpc= or ib_num_rrpc=");
		r->closing = true;
		coop_rnic_destroy(r);
		return err;
	}

	flags = memalloc_noio_save();
	mutex_lock(&node->lock);
	old = node->engine;
	if (old)
		keep_figures(node);
	coop_peers_carry(node, engine, old, now);
	coop_engine_rekey(engine, node->cfg.fabric_key, now); /* it may have changed since */
	node->engine = engine;
	node->max_pages = min_t(u32, coop_engine_max_pages(engine), r->fetch_pages);
	if (node->shards)
		coop_mail_clear(node->shard ? &node->mail : &node->shards->out);
	WRITE_ONCE(node->rnic, r);
	WRITE_ONCE(node->up, true);
	coop_ctrl_repost(r);
	mutex_unlock(&node->lock);
	memalloc_noio_restore(flags);
	kvfree(old);
	coop_node_kick(node); /* the pump requests notifications */
	return 0;
}

/* Only a hint when to stop waiting, so it needs no lock. */
static bool quiet(const struct coop_node *node, const struct coop_rnic *r)
{
	return list_empty(&node->fetches) && !READ_ONCE(r->n_serving);
}

/* The host of lines learns at once that its device is gone, also while that keeps memory. */
static void lose(struct coop_node *node)
{
	if (!node->cfg.lines || node->leaving)
		return;
	node->leaving = true;
	node->cfg.lines->lost(node->host);
}

void coop_node_detach(struct coop_node *node)
{
	struct coop_rnic *r = node->rnic;
	struct coop_node_fetch *f, *next;
	u64 now = coop_now_us();
	unsigned int flags;
	u32 tries;

	lockdep_assert_held(&node->attach_lock);
	flags = memalloc_noio_save();
	mutex_lock(&node->lock);
	WRITE_ONCE(node->up, false);
	r->closing = true;
	list_for_each_entry_safe(f, next, &node->fetches, link)
		coop_engine_cancel(node->engine, f->id, now);
	coop_responder_wait_no_more(r, now);
	coop_pump_drain(node, now);
	mutex_unlock(&node->lock);
	coop_node_kick(node);
	wait_event_timeout(node->idle, quiet(node, r), usecs_to_jiffies(DETACH_US));

	mutex_lock(&node->lock);
	for (tries = 0; !coop_rnic_silence(r, now = coop_now_us()); tries++) {
		/* What the other queue pairs held is free. */
		coop_pump_drain(node, now);
		lose(node);
		mutex_unlock(&node->lock);
		coop_pump_report(node);
		if (!tries && !node->leaving)
			coop_node_announce(node);
		msleep(coop_rnic_pause_ms(tries));
		mutex_lock(&node->lock);
	}
	coop_pump_drain(node, now);
	WARN_ON_ONCE(!list_empty(&node->fetches) || r->n_serving);
	WRITE_ONCE(node->rnic, NULL);
	lose(node);
	mutex_unlock(&node->lock);
	memalloc_noio_restore(flags);

	coop_pump_report(node);
	coop_rnic_destroy(r);
}

void coop_node_announce(struct coop_node *node)
{
	struct coop_addr self = {};
	bool up;

	lockdep_assert_held(&node->attach_lock);
	/* Nobody is told of a shard, and nobody before the host knows of the node. */
	if (node->shard || !node->entered || node->leaving)
		return;
	up = coop_node_self(node, &self);
	if (!memcmp(&self, &node->announced, sizeof(self)))
		return;
	node->announced = self;
	coop_shards_moved(node);
	if (node->ops->address)
		node->ops->address(node->host, up ? &self : NULL, coop_node_mbps(node));
}
