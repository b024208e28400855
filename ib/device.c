// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * device.c - the ib_client: the list of devices, and their removal.
 *
 * Adding a device only makes nodes without a device look again. Removing one
 * first takes it out of the list, so that no further node finds it, and then
 * detaches the nodes that use it, one by one: each ends its requests in flight
 * and destroys its objects on the device. No node keeps a reference as
 * ib_device_get_by_name() gives it, which would block the removal forever.
 */
#include "ib/device.h"

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/slab.h>
#include <net/ipv6.h>
#include <rdma/ib_cache.h>

#include "ib/ah.h"
#include "ib/node.h"

struct coop_device {
	struct list_head link;
	struct ib_device *ib;
	struct ib_event_handler events;
	bool failed; /* DEVICE_FATAL: removed or reset soon */
	u32 vector;  /* for the next node; under devices_lock */
};

static LIST_HEAD(devices);
static DEFINE_MUTEX(devices_lock);

/*
 * A removal visits each node without nodes_lock, because a device may keep it waiting there: other
 * nodes come, go and hear of events meanwhile. The visit keeps the node in the list.
 */
static LIST_HEAD(nodes);
static DEFINE_MUTEX(nodes_lock);
static DECLARE_WAIT_QUEUE_HEAD(visit_over);

/* ---- events --------------------------------------------------------------------- */

/* An event may have changed paths to peers, beside our own address: address handles must go. */
static atomic_t paths_changed;

static void refresh_all(struct work_struct *work)
{
	const bool paths = atomic_xchg(&paths_changed, 0);
	struct coop_node *node;

	mutex_lock(&nodes_lock);
	list_for_each_entry(node, &nodes, link) {
		if (paths)
			atomic_set(&node->paths_changed, 1);
		mod_delayed_work(coop_ib_wq, &node->refresh, 0);
	}
	mutex_unlock(&nodes_lock);
}

static DECLARE_WORK(refresh_all_work, refresh_all);

void coop_devices_changed(void)
{
	atomic_set(&paths_changed, 1);
	queue_work(coop_ib_wq, &refresh_all_work);
}

/* An event only triggers a refresh; each node then queries its own port. */
static void on_event(struct ib_event_handler *handler, struct ib_event *event)
{
	struct coop_device *d = container_of(handler, struct coop_device, events);

	switch (event->event) {
	case IB_EVENT_DEVICE_FATAL:
		WRITE_ONCE(d->failed, true);
		break;
	case IB_EVENT_PORT_ACTIVE:
		WRITE_ONCE(d->failed, false);
		break;
	case IB_EVENT_PORT_ERR:
	case IB_EVENT_LID_CHANGE:
	case IB_EVENT_PKEY_CHANGE:
	case IB_EVENT_SM_CHANGE:
	case IB_EVENT_CLIENT_REREGISTER:
	case IB_EVENT_GID_CHANGE:
		break;
	default: /* events of queue pairs: their completions report the error */
		return;
	}
	coop_devices_changed();
}

/*
 * Drivers report no change of the MTU, which for a RoCE port is that of its network device. We
 * cannot find the port of this network device here, because a port query takes RTNL, which is held.
 * So each node queries its own port, and does nothing if its MTU is the same.
 */
static int on_netdev(struct notifier_block *block, unsigned long event, void *info)
{
	if (event == NETDEV_CHANGEMTU)
		queue_work(coop_ib_wq, &refresh_all_work);
	return NOTIFY_DONE;
}

static struct notifier_block netdev_notifier = {
	.notifier_call = on_netdev, .priority = INT_MIN, /* after the drivers' own notifiers */
};

/* ---- add and remove ------------------------------------------------------------- */

static struct ib_client client;

static int add_device(struct ib_device *ib)
{
	struct coop_device *d;

	d = kzalloc(sizeof(*d), GFP_KERNEL);
	if (!d)
		return -ENOMEM;
	d->ib = ib;
	ib_set_client_data(ib, &client, d);
	mutex_lock(&devices_lock);
	list_add_tail(&d->link, &devices);
	mutex_unlock(&devices_lock);
	INIT_IB_EVENT_HANDLER(&d->events, ib, on_event);
	ib_register_event_handler(&d->events);
	coop_devices_changed();
	return 0;
}

/* On another device, and so it stays: a node that looks for one no longer finds ib. */
static bool elsewhere(struct coop_node *node, const struct ib_device *ib)
{
	bool yes;

	mutex_lock(&node->lock);
	yes = node->rnic && node->rnic->port.dev != ib;
	mutex_unlock(&node->lock);
	return yes;
}

static void leave(struct coop_node *node, const struct ib_device *ib)
{
	if (elsewhere(node, ib)) /* attach_lock may be held for as long as that device likes */
		return;
	mutex_lock(&node->attach_lock);
	if (node->rnic && node->rnic->port.dev == ib) {
		if (!node->shard)
			coop_count(node->stats, COOP_C_DEVICE_REMOVALS, 1);
		coop_node_detach(node);
		coop_node_announce(node);
	}
	mutex_unlock(&node->attach_lock);
}

static void remove_device(struct ib_device *ib, void *data)
{
	struct coop_device *d = data;
	struct coop_node *node;

	if (!d)
		return;
	ib_unregister_event_handler(&d->events);
	mutex_lock(&devices_lock);
	list_del(&d->link);
	mutex_unlock(&devices_lock);

	mutex_lock(&nodes_lock);
	list_for_each_entry(node, &nodes, link) {
		node->visits++;
		mutex_unlock(&nodes_lock);
		leave(node, ib);
		mutex_lock(&nodes_lock);
		/* Without a device name in cfg another device may serve. */
		mod_delayed_work(coop_ib_wq, &node->refresh, 0);
		if (!--node->visits)
			wake_up_all(&visit_over);
	}
	mutex_unlock(&nodes_lock);
	kfree(d);
}

static struct ib_client client = {
	.name = "coopfs",
	.add = add_device,
	.remove = remove_device,
};

bool coop_device_failed(const struct ib_device *dev)
{
	struct coop_device *d;
	bool failed = false;

	mutex_lock(&devices_lock);
	list_for_each_entry(d, &devices, link)
		if (d->ib == dev)
			failed = READ_ONCE(d->failed);
	mutex_unlock(&devices_lock);
	return failed;
}

void coop_node_register(struct coop_node *node)
{
	mutex_lock(&nodes_lock);
	list_add_tail(&node->link, &nodes);
	mutex_unlock(&nodes_lock);
}

void coop_node_unregister(struct coop_node *node)
{
	mutex_lock(&nodes_lock);
	while (node->visits) {
		mutex_unlock(&nodes_lock);
		wait_event(visit_over, !READ_ONCE(node->visits));
		mutex_lock(&nodes_lock);
	}
	list_del(&node->link);
	mutex_unlock(&nodes_lock);
}

/* ---- the choice ----------------------------------------------------------------- */

static bool has_address(const struct coop_node_cfg *cfg)
{
	return memchr_inv(cfg->addr, 0, sizeof(cfg->addr)) != NULL;
}

/* Rank of a GID if the configuration names none; 0: unusable. */
static int rank_gid(const struct ib_gid_attr *attr, bool roce)
{
	if (!roce)
		return 1;
	if (attr->gid_type != IB_GID_TYPE_ROCE_UDP_ENCAP)
		return 0;
	return ipv6_addr_v4mapped((const struct in6_addr *)attr->gid.raw) ? 2 : 1;
}

static int choose_gid(const struct coop_node_cfg *cfg, const struct ib_port_attr *pa,
		      struct coop_port *port)
{
	const struct ib_gid_attr *attr;
	int i, rank, best = 0;

	for (i = 0; i < pa->gid_tbl_len; i++) {
		if (cfg->gid_index >= 0 && i != cfg->gid_index)
			continue;
		attr = rdma_get_gid_attr(port->dev, port->num, i);
		if (IS_ERR(attr))
			continue;
		if (cfg->gid_index >= 0)
			rank = 3;
		else if (has_address(cfg) && memcmp(attr->gid.raw, cfg->addr, sizeof(cfg->addr)))
			rank = 0;
		else
			rank = rank_gid(attr, port->roce);
		if (rank > best) {
			best = rank;
			port->gid_index = i;
			port->gid = attr->gid;
		}
		rdma_put_gid_attr(attr);
	}
	return best ? 0 : -EADDRNOTAVAIL;
}

/* By the speed of a lane, in the generations of InfiniBand, and the number of lanes. */
static u32 link_mbps(const struct ib_port_attr *pa)
{
	static const struct {
		u32 speed, mbps;
	} lane[] = {
		{IB_SPEED_SDR, 2500},    {IB_SPEED_DDR, 5000},   {IB_SPEED_QDR, 10000},
		{IB_SPEED_FDR10, 10000}, {IB_SPEED_FDR, 14000},  {IB_SPEED_EDR, 25000},
		{IB_SPEED_HDR, 50000},   {IB_SPEED_NDR, 100000},
	};
	const int lanes = ib_width_enum_to_int(pa->active_width);
	u32 i;

	for (i = 0; i < ARRAY_SIZE(lane) && lanes > 0; i++)
		if (lane[i].speed == pa->active_speed)
			return lane[i].mbps * (u32)lanes;
	return 0;
}

int coop_port_probe(const struct coop_node_cfg *cfg, struct coop_port *port, char *why, size_t size)
{
	const char *name = dev_name(&port->dev->dev);
	struct ib_port_attr pa;
	int err;

	err = ib_query_port(port->dev, port->num, &pa);
	if (err) {
		snprintf(why, size, "%s port %u does not answer (error %d)", name, port->num, err);
		return -ENODEV;
	}
	if (pa.state != IB_PORT_ACTIVE) {
		snprintf(why, size, "%s port %u is not active: is its link up?", name, port->num);
		return -ENETDOWN;
	}
	port->roce = rdma_protocol_roce(port->dev, port->num);
	port->mtu = ib_mtu_enum_to_int(pa.active_mtu);
	port->mbps = link_mbps(&pa);
	port->lid = port->roce ? 0 : (u16)pa.lid;
	port->by_lid = !port->roce && cfg->gid_index < 0 && !has_address(cfg);
	if (cfg->pkey && ib_find_pkey(port->dev, port->num, cfg->pkey, &port->pkey_index)) {
		snprintf(why, size, "ib_pkey=0x%04x: %s port %u is not a member of that partition",
			 cfg->pkey, name, port->num);
		return -EINVAL;
	}
	port->gid_index = 0;
	memset(&port->gid, 0, sizeof(port->gid));
	if (port->by_lid)
		return 0;
	err = choose_gid(cfg, &pa, port);
	if (!err)
		return 0;
	if (cfg->gid_index >= 0)
		snprintf(why, size, "%s port %u has no GID %d (its table has %d entries)", name,
			 port->num, cfg->gid_index, pa.gid_tbl_len);
	else if (has_address(cfg))
		snprintf(why, size, "%s port %u has no GID for addr=%pI6c", name, port->num,
			 cfg->addr);
	else
		snprintf(why, size,
			 "%s port %u has no RoCE v2 GID: give its network interface an address",
			 name, port->num);
	return err;
}

static bool wanted(const struct coop_node_cfg *cfg, const struct coop_device *d, u32 num)
{
	struct ib_device *ib = d->ib;

	if (cfg->devname[0] && strcmp(cfg->devname, dev_name(&ib->dev)))
		return false;
	if (cfg->port && cfg->port != num)
		return false;
	return rdma_protocol_roce(ib, num) || rdma_protocol_ib(ib, num);
}

int coop_port_find(const struct coop_node_cfg *cfg, struct coop_port *port, char *why, size_t size)
{
	int err = -ENODEV, one;
	struct coop_device *d;
	bool any = false;
	u32 num;

	snprintf(why, size, "no RDMA device%s%s%s", cfg->devname[0] ? " named " : "", cfg->devname,
		 cfg->port ? " with that port" : "");
	mutex_lock(&devices_lock);
	list_for_each_entry(d, &devices, link) {
		if (READ_ONCE(d->failed) || (cfg->net && !rdma_dev_access_netns(d->ib, cfg->net)))
			continue;
		any = true;
		rdma_for_each_port(d->ib, num) {
			if (!wanted(cfg, d, num))
				continue;
			memset(port, 0, sizeof(*port));
			port->dev = d->ib;
			port->num = num;
			port->vector = d->vector;
			one = coop_port_probe(cfg, port, why, size);
			if (!one)
				goto found;
			err = one;
		}
	}
	if (!any)
		snprintf(why, size,
			 "this machine has no RDMA device (Soft-RoCE: 'rdma link add rxe0 type rxe "
			 "netdev IF')");
	mutex_unlock(&devices_lock);
	return err;
found:
	d->vector += COOP_VECTORS; /* nodes take turns, so no processor has the work of all */
	mutex_unlock(&devices_lock);
	return 0;
}

/* ---- module --------------------------------------------------------------------- */

int coop_device_init(void)
{
	int err;

	err = ib_register_client(&client);
	if (err)
		return err;
	err = register_netdevice_notifier(&netdev_notifier);
	if (err)
		ib_unregister_client(&client);
	return err;
}

void coop_device_exit(void)
{
	unregister_netdevice_notifier(&netdev_notifier);
	ib_unregister_client(&client);
	cancel_work_sync(&refresh_all_work);
}
