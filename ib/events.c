// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * events.c - refresh: a node queries its device and port again.
 *
 * The reaction to every event (link up or down, GID or LID change, new subnet
 * manager, new device) is the same: query the present state and adapt to it. So
 * lost, duplicate or late events do no harm. The one exception is a failed
 * device: we trust that event, whatever the device reports about its port.
 *
 *   not attached, a device is available  -> attach; retry later if out of memory
 *   device failed, MTU or P_Key index changed, or control queue pair lost
 *                                        -> detach, attach again if possible
 *   port down or without an address      -> refuse fetches until it is back
 *   address changed                      -> peers learn it from the next message,
 *                                           storage through ops->address()
 *   none of these, and the event was the MTU change of a network device
 *                                        -> nothing
 *   a shard, and the first one is elsewhere or has another address
 *                                        -> follow it
 *   none of these, any other event       -> the paths to peers may have changed:
 *                                           retire the address handles
 */
#include "ib/node.h"

#define NO_MEMORY_PAUSE (2 * HZ)

/* A shard whose first one is on another port, or on none. */
static bool strayed(struct coop_node *node)
{
	struct coop_port first;

	return node->shard &&
	       (!coop_shards_port(node, &first) || first.dev != node->rnic->port.dev ||
		first.num != node->rnic->port.num);
}

/* A queue pair for messages is gone, and not only being replaced. The lock held. */
static bool is_without(const struct coop_node *node)
{
	const struct coop_rnic *r = node->rnic;

	return coop_qp_is_gone(&r->ctrl.qp) || (node->cfg.lines && coop_qp_is_gone(&r->data.qp));
}

static bool must_leave(struct coop_node *node, const struct coop_port *port)
{
	const struct coop_rnic *r = node->rnic;
	bool without;

	if (strayed(node))
		return true;
	mutex_lock(&node->lock);
	without = is_without(node);
	mutex_unlock(&node->lock);
	return without || coop_device_failed(port->dev) || port->mtu != r->port.mtu ||
	       port->pkey_index != r->port.pkey_index;
}

static bool same_address(const struct coop_port *a, const struct coop_port *b)
{
	return a->lid == b->lid && a->gid_index == b->gid_index &&
	       !memcmp(&a->gid, &b->gid, sizeof(a->gid));
}

static void follow(struct coop_node *node, const struct coop_port *port, bool up)
{
	struct coop_rnic *r = node->rnic;
	struct coop_addr of_all;
	bool paths;

	/* Until the first has the address of the port, the others' source would not match it. */
	if (node->shard)
		up &= coop_shards_address_of(node, &of_all) && of_all.lid == port->lid &&
		      !memcmp(of_all.gid, port->gid.raw, sizeof(of_all.gid));
	mutex_lock(&node->lock);
	/* Stopped, or without a queue pair since must_leave() looked: the next refresh sees it. */
	if (r->closing || is_without(node)) {
		mutex_unlock(&node->lock);
		return;
	}
	paths = atomic_xchg(&node->paths_changed, 0);
	paths |= up != node->up || (up && !same_address(&r->port, port));
	WRITE_ONCE(node->up, up);
	if (up) {
		r->port = *port;
		coop_rnic_address(r, &r->self);
		coop_engine_set_self(node->engine, node->shard ? &of_all : &r->self);
		if (node->cfg.lines) {
			r->data_qpn = r->data.qp.num;
			node->cfg.lines->moved(node->host, coop_now_us());
		}
	}
	if (paths)
		coop_ah_retire_all(r);
	mutex_unlock(&node->lock);
}

void coop_refresh_work(struct work_struct *work)
{
	struct coop_node *node = container_of(work, struct coop_node, refresh.work);
	struct coop_port port;
	bool up, left = false;
	char why[160] = "";
	int err;

	mutex_lock(&node->attach_lock);
	if (node->leaving)
		goto out;
	if (node->rnic) {
		port = node->rnic->port;
		up = !coop_port_probe(&node->cfg, &port, why, sizeof(why));
		if (!must_leave(node, &port)) {
			if (node->cfg.lines)
				; /* its host learns it by silence */
			else if (node->shard)
				; /* the first one says it for all */
			else if (!up && node->up)
				pr_warn("coopfs: reads go to storage until this is fixed: %s\n",
					why);
			else if (up && !node->up)
				pr_info("coopfs: %s port %u is usable again\n",
					dev_name(&port.dev->dev), port.num);
			follow(node, &port, up);
			goto announce;
		}
		coop_node_detach(node);
		left = true;
		if (node->leaving)
			goto out;
	}
	err = coop_node_attach(node, why, sizeof(why));
	if (!err && !node->shard)
		coop_shards_moved(node); /* also if its address is the same as before */
	if (node->shard && err && err != -ENOMEM && err != -ENODEV)
		pr_warn("coopfs: one of the engines of a mount has no queue pairs: %s\n", why);
	if (node->shard && err != -ENOMEM)
		goto out;
	if (!err)
		pr_info("coopfs: attached to %s port %u\n", dev_name(&node->rnic->port.dev->dev),
			node->rnic->port.num);
	else if (left)
		pr_warn("coopfs: reads go to storage until this is fixed: %s\n", why);
	if (err == -ENOMEM) /* no event reports that memory is available again */
		queue_delayed_work(coop_ib_wq, &node->refresh, NO_MEMORY_PAUSE);
announce:
	coop_node_announce(node);
out:
	mutex_unlock(&node->attach_lock);
}
