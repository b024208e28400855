// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * events.c - a node looks again at its device and port.
 *
 * Whatever happened (a link went or came, a GID or LID changed, the subnet manager
 * moved, a device came), the answer is the same: see what is there now, and follow.
 * So events that are lost, doubled or late do no harm. Only a device that failed is
 * believed to have, whatever it says of its port.
 *
 *   no device here, one is to be had -> attach; again after a while if memory is short
 *   the device failed, the MTU or the place of the P_Key changed, the control queue
 *   pair is beyond repair
 *                                    -> detach, attach again if possible
 *   the port is down or has no address -> fetches are refused until it is back
 *   another address                  -> peers learn it from the next message,
 *                                       storage through ops->address()
 *   nothing of that, and only some network device's MTU was said to have changed
 *                                    -> nothing; else the paths to others may have changed,
 *                                       and address handles are made again
 */
#include "ib/node.h"

#define NO_MEMORY_PAUSE (2 * HZ)

static bool must_leave(struct coop_node *node, const struct coop_port *port)
{
	const struct coop_rnic *r = node->rnic;

	return coop_device_failed(port->dev) || port->mtu != r->port.mtu ||
	       port->pkey_index != r->port.pkey_index || !r->ctrl.qp.ib;
}

static bool same_address(const struct coop_port *a, const struct coop_port *b)
{
	return a->lid == b->lid && a->gid_index == b->gid_index &&
	       !memcmp(&a->gid, &b->gid, sizeof(a->gid));
}

static void follow(struct coop_node *node, const struct coop_port *port, bool up)
{
	struct coop_rnic *r = node->rnic;
	bool paths = atomic_xchg(&node->paths_changed, 0);

	mutex_lock(&node->lock);
	paths |= up != node->up || (up && !same_address(&r->port, port));
	node->up = up;
	if (up) {
		r->port = *port;
		coop_rnic_address(r, &r->self);
		coop_engine_set_self(node->engine, &r->self);
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
			if (!up && node->up)
				pr_warn("coopfs: until this mends, reads go to storage: %s\n", why);
			else if (up && !node->up)
				pr_info("coopfs: %s port %u is usable again\n",
					dev_name(&port.dev->dev), port.num);
			follow(node, &port, up);
			goto announce;
		}
		coop_node_detach(node);
		left = true;
	}
	err = coop_node_attach(node, why, sizeof(why));
	if (!err)
		pr_info("coopfs: attached to %s port %u\n", dev_name(&node->rnic->port.dev->dev),
			node->rnic->port.num);
	else if (left)
		pr_warn("coopfs: until this mends, reads go to storage: %s\n", why);
	if (err == -ENOMEM) /* no event tells that there is memory again */
		queue_delayed_work(coop_ib_wq, &node->refresh, NO_MEMORY_PAUSE);
announce:
	coop_node_announce(node);
out:
	mutex_unlock(&node->attach_lock);
}
