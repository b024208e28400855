/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * device.h - RDMA devices as they come and go, and the choice of one port.
 *
 * The list of devices and the list of nodes are all the state of ib/ that is
 * global. A device is in the list from the ib_client's add() until remove()
 * starts; remove() returns when no node uses the device any more. So a node that
 * found a device through coop_port_find() while it holds its attach_lock may use
 * it until it lets the lock go, and afterwards until its own detach: no reference
 * is ever held that could keep a device from going.
 */
#ifndef COOP_IB_DEVICE_H
#define COOP_IB_DEVICE_H

#include <rdma/ib_verbs.h>

#include "ib/ib.h"

struct coop_port {
	struct ib_device *dev;
	u32 num;
	int gid_index;
	bool roce;
	bool by_lid; /* native IB without a GID of choice: gid is zero, LIDs do */
	union ib_gid gid;
	u16 lid;
	u16 pkey_index; /* of the partition of choice; 0: the default one */
	u32 mtu;        /* active, payload bytes */
};

/*
 * The port that cfg asks for. why: as coop_node_create(). Context: may sleep; the caller's
 * node is registered and its attach_lock held. 0, -ENODEV, -ENETDOWN, -EADDRNOTAVAIL, -EINVAL (no
 * such partition).
 */
int coop_port_find(const struct coop_node_cfg *cfg, struct coop_port *port, char *why, size_t size);
/* What the port of an attached node is now: address and MTU. As coop_port_find(). */
int coop_port_probe(const struct coop_node_cfg *cfg, struct coop_port *port, char *why,
		    size_t size);
/* The device failed by itself; it will be removed, or come back. */
bool coop_device_failed(const struct ib_device *dev);

/* The nodes that hear of devices. remove waits for a device that is going. Context: may sleep. */
void coop_node_register(struct coop_node *node);
void coop_node_unregister(struct coop_node *node);

/* Every node looks at its port again, or for one, and forgets address handles. Any context. */
void coop_devices_changed(void);

int coop_device_init(void);
void coop_device_exit(void);

#endif /* COOP_IB_DEVICE_H */
