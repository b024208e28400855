// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * node.c - the file system's entry points: creation and end of nodes, fetches.
 *
 * Creation needs an active port; afterwards the node outlives the port. At the
 * end the node first detaches from its device, then leaves the list of nodes and
 * stops its timer and works, and is then freed.
 */
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "ib/node.h"

/*
 * Addresses that a node with lines resolves at a time. Its process names as many as it likes that
 * do not answer, and so do others by datagrams to it; each takes a worker for up to a second.
 */
#define LINES_PATHS 32

int coop_ib_init(void)
{
	int err;

	err = coop_ah_init();
	if (err)
		return err;
	err = coop_device_init();
	if (err)
		coop_ah_exit();
	return err;
}

void coop_ib_exit(void)
{
	coop_device_exit();
	coop_ah_exit();
}

static void free_node(struct coop_node *node)
{
	coop_peers_free(node);
	coop_mail_destroy(&node->mail);
	kvfree(node->engine);
	mutex_destroy(&node->lock);
	mutex_destroy(&node->attach_lock);
	kfree_sensitive(node);
}

static void destroy_queues(struct coop_node *node)
{
	if (node->paths && node->paths != coop_ib_wq)
		destroy_workqueue(node->paths);
	if (node->changes)
		destroy_workqueue(node->changes);
	if (node->wq)
		destroy_workqueue(node->wq);
}

static bool create_queues(struct coop_node *node)
{
	/* Readers wait for it under memory pressure. Unbound, because checksums and copies run
	 * here. */
	node->wq = alloc_workqueue("coopfs_node", WQ_UNBOUND | WQ_HIGHPRI | WQ_MEM_RECLAIM, 1);
	/* Each work waits for the device: no other node's device, and not one behind the other. */
	node->changes = alloc_workqueue("coopfs_qp", WQ_UNBOUND | WQ_HIGHPRI | WQ_MEM_RECLAIM, 0);
	node->paths = node->cfg.lines ? alloc_workqueue("coopfs_paths", WQ_UNBOUND, LINES_PATHS)
				      : coop_ib_wq;
	if (node->wq && node->changes && node->paths)
		return true;
	destroy_queues(node);
	return false;
}

void coop_node_end(struct coop_node *node)
{
	coop_node_unregister(node);
	cancel_delayed_work_sync(&node->refresh);
	hrtimer_cancel(&node->timer);
	hrtimer_cancel(&node->help);
	cancel_work_sync(&node->pump);
	cancel_work_sync(&node->members);
	coop_pump_report(node);
	destroy_queues(node);
	free_node(node);
}

struct coop_node *coop_node_create(const struct coop_node_cfg *cfg, struct coop_stats *stats,
				   const struct coop_node_ops *ops, void *host, char *why,
				   size_t why_size)
{
	return coop_node_create_shard(cfg, NULL, 0, stats, ops, host, why, why_size);
}

struct coop_node *coop_node_create_shard(const struct coop_node_cfg *cfg, struct coop_shards *s,
					 u32 shard, struct coop_stats *stats,
					 const struct coop_node_ops *ops, void *host, char *why,
					 size_t why_size)
{
	struct coop_node *node;
	int err;

	node = kzalloc(sizeof(*node), cfg->lines ? GFP_KERNEL_ACCOUNT : GFP_KERNEL);
	if (!node)
		goto no_memory;
	node->cfg = *cfg;
	node->shards = s;
	node->shard = shard;
	node->stats = stats;
	node->ops = ops;
	node->host = host;
	node->timer_at = ~0ULL;
	mutex_init(&node->attach_lock);
	mutex_init(&node->lock);
	hash_init(node->by_number);
	hash_init(node->by_addr);
	node->member_salt = get_random_u64();
	spin_lock_init(&node->news_lock);
	INIT_LIST_HEAD(&node->news);
	INIT_WORK(&node->members, coop_peers_work);
	INIT_LIST_HEAD(&node->fetches);
	INIT_LIST_HEAD(&node->ended);
	INIT_WORK(&node->pump, coop_pump_work);
	INIT_DELAYED_WORK(&node->refresh, coop_refresh_work);
	hrtimer_init(&node->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_SOFT);
	node->timer.function = coop_pump_timer;
	hrtimer_init(&node->help, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	node->help.function = coop_pump_unhelped;
	init_waitqueue_head(&node->idle);
	if ((s && shard && coop_mail_create(&node->mail)) || !create_queues(node)) {
		free_node(node);
		goto no_memory;
	}

	node->leaving = true; /* a refresh until then attaches nothing */
	coop_node_register(node);
	mutex_lock(&node->attach_lock);
	err = coop_node_attach(node, why, why_size);
	node->leaving = err;
	mutex_unlock(&node->attach_lock);
	if (err) {
		coop_node_end(node);
		return ERR_PTR(err);
	}
	return node;

no_memory:
	snprintf(why, why_size, "out of memory");
	return ERR_PTR(-ENOMEM);
}

void coop_node_stop(struct coop_node *node)
{
	mutex_lock(&node->attach_lock);
	node->leaving = true;
	if (node->rnic)
		coop_node_detach(node);
	mutex_unlock(&node->attach_lock);
}

void coop_node_destroy(struct coop_node *node)
{
	coop_node_stop(node);
	coop_node_end(node);
}

int coop_node_fetch(struct coop_node_fetch *f, struct coop_node *node)
{
	unsigned int flags;
	int err = -ENODEV;
	bool ended;
	u64 now;

	if (mutex_lock_killable(&node->lock))
		return -EINTR;
	flags = memalloc_noio_save();
	now = coop_now_us();
	if (node->up)
		err = coop_requester_submit(node->rnic, f, now);
	if (!err) {
		coop_pump_drain(node, now);
		coop_pump_arm(node, now);
	}
	ended = !list_empty(&node->ended);
	mutex_unlock(&node->lock);
	memalloc_noio_restore(flags);
	if (ended)
		coop_node_kick(node); /* the worker calls done() */
	return err;
}

void coop_node_cancel(struct coop_node *node)
{
	struct coop_node_fetch *f;
	unsigned int flags;
	bool ended;
	u64 now;

	flags = memalloc_noio_save();
	mutex_lock(&node->lock);
	now = coop_now_us();
	list_for_each_entry(f, &node->fetches, link)
		(void)coop_engine_cancel(node->engine, f->id, now);
	if (node->rnic) {
		coop_pump_drain(node, now);
		coop_pump_arm(node, now);
	}
	ended = !list_empty(&node->ended);
	mutex_unlock(&node->lock);
	memalloc_noio_restore(flags);
	if (ended)
		coop_node_kick(node);
}

void coop_node_rekey(struct coop_node *node, const u8 key[16])
{
	mutex_lock(&node->lock);
	memcpy(node->cfg.fabric_key, key, sizeof(node->cfg.fabric_key));
	if (node->engine)
		coop_engine_rekey(node->engine, key, coop_now_us());
	mutex_unlock(&node->lock);
	coop_node_kick(node);
}

void coop_node_settled(struct coop_node *node)
{
	/* Pairs with the xchg in drain(): who sees the mark sees what settled before it. */
	atomic_set_release(&node->settled, 1);
	coop_node_kick(node); /* a full barrier: the pump sees the mark */
}

u32 coop_node_max_pages(const struct coop_node *node)
{
	return READ_ONCE(node->max_pages);
}

void coop_node_enter(struct coop_node *node)
{
	mutex_lock(&node->attach_lock);
	node->entered = true;
	coop_node_announce(node);
	mutex_unlock(&node->attach_lock);
}

bool coop_node_self(struct coop_node *node, struct coop_addr *self)
{
	bool up;

	mutex_lock(&node->lock);
	up = node->up;
	if (up)
		*self = node->rnic->self;
	mutex_unlock(&node->lock);
	return up;
}

u32 coop_node_mbps(struct coop_node *node)
{
	u32 link = 0, most;

	mutex_lock(&node->lock);
	if (node->rnic)
		link = node->rnic->port.mbps;
	most = node->cfg.serve_mbps * (node->shards ? node->shards->n : 1);
	mutex_unlock(&node->lock);
	return link && most ? min(link, most) : max(link, most);
}

void coop_node_describe(struct coop_node *node, char *buf, size_t size)
{
	const struct coop_port *port;

	mutex_lock(&node->lock);
	if (!node->rnic) {
		snprintf(buf, size, "no device");
	} else {
		port = &node->rnic->port;
		snprintf(buf, size, "%s port %u gid %d mtu %u%s%s", dev_name(&port->dev->dev),
			 port->num, port->gid_index, node->rnic->mtu, node->cfg.copy ? " copy" : "",
			 node->up ? "" : " down");
	}
	mutex_unlock(&node->lock);
}

void coop_node_tune(struct coop_node *node, u32 peer_timeout_ms, u32 serve_mbps)
{
	mutex_lock(&node->lock);
	node->cfg.peer_timeout_ms = peer_timeout_ms;
	node->cfg.serve_mbps = serve_mbps;
	if (node->engine)
		coop_engine_tune(node->engine, peer_timeout_ms * 1000, coop_bytes_s(serve_mbps),
				 coop_now_us());
	mutex_unlock(&node->lock);
}
