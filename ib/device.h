/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * device.h - RDMA devices that come and go, and the choice of a port.
 *
 * The list of devices and the list of nodes are the only global state of ib/. A
 * device is in the list from the ib_client's add() until remove() starts;
 * remove() returns when no node uses the device any more. So a node that found a
 * device with coop_port_find() under its attach_lock may use the device until it
 * drops the lock or, if it attached, until its own detach. No node ever holds a
 * reference that would keep a device from being removed.
 */
#ifndef COOP_IB_DEVICE_H
#define COOP_IB_DEVICE_H

#include <rdma/ib_verbs.h>

#include "ib/ib.h"

#define COOP_VECTORS 2 /* of a node: for receives, and for sends */

struct coop_port {
	struct ib_device *dev;
	u32 num;
	int gid_index;
	bool roce;
	bool by_lid; /* native IB without a configured GID: gid is zero, LIDs are used */
	union ib_gid gid;
	u16 lid;
	u16 pkey_index; /* of the configured partition; 0: the default one */
	u32 mtu;        /* active, payload bytes */
	u32 mbps;       /* of the link, megabits a second; 0: unknown */
	u32 vector;     /* first of the completion vectors to use, modulo their number */
};

/*
 * The port that cfg asks for. why: as coop_node_create(). Context: may sleep; the caller's
 * node is registered and its attach_lock held. 0, -ENODEV, -ENETDOWN, -EADDRNOTAVAIL, -EINVAL (no
 * such partition).
 */
int coop_port_find(const struct coop_node_cfg *cfg, struct coop_port *port, char *why, size_t size);
/* Queries the port of an attached node again: address and MTU. As coop_port_find(). */
int coop_port_probe(const struct coop_node_cfg *cfg, struct coop_port *port, char *why,
		    size_t size);
/* The device reported a fatal error; it will be removed, or come back. */
bool coop_device_failed(const struct ib_device *dev);

/* The list of nodes to notify of devices. unregister waits for a device that is being removed.
 * Context: may sleep. */
void coop_node_register(struct coop_node *node);
void coop_node_unregister(struct coop_node *node);

/* Makes every node query its port, or look for one, and retire its address handles. Any context. */
void coop_devices_changed(void);

int coop_device_init(void);
void coop_device_exit(void);

#endif /* COOP_IB_DEVICE_H */
