// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * charge.c - what a process makes its node create on a device counts for its rdma cgroup.
 *
 * A program with verbs of its own is charged a handle for its device and an object for all that it
 * creates there, by ib_uverbs. The kernel owns the objects of a node with lines, so we charge as
 * much: a handle, and an object for the protection domain, each completion queue and each queue
 * pair. Address handles, which come and go with peers, are only bounded (ah.h), and their memory
 * counts for the memory cgroup.
 *
 * All is charged to one group, in the process's own call. A task may be moved to another group
 * between two charges: then we begin again.
 */
#include <linux/cgroup_rdma.h>

#include "ib/node.h"

#ifdef CONFIG_CGROUP_RDMA

static enum rdmacg_resource_type kind_of(u32 nth)
{
	return nth ? RDMACG_RESOURCE_HCA_OBJECT : RDMACG_RESOURCE_HCA_HANDLE;
}

void coop_rnic_uncharge(struct coop_rnic *r)
{
	while (r->n_charged) {
		r->n_charged--;
		rdmacg_uncharge(r->payer, &r->port.dev->cg_device, kind_of(r->n_charged));
	}
}

int coop_rnic_charge(struct coop_rnic *r, u32 objects)
{
	struct rdma_cgroup *payer;
	int err;

	while (r->n_charged < 1 + objects) {
		err = rdmacg_try_charge(&payer, &r->port.dev->cg_device, kind_of(r->n_charged));
		if (err) {
			coop_rnic_uncharge(r);
			return err;
		}
		if (r->n_charged && payer != r->payer) {
			rdmacg_uncharge(payer, &r->port.dev->cg_device, kind_of(r->n_charged));
			coop_rnic_uncharge(r);
			continue;
		}
		r->payer = payer;
		r->n_charged++;
	}
	return 0;
}

#else

void coop_rnic_uncharge(struct coop_rnic *r) {}

int coop_rnic_charge(struct coop_rnic *r, u32 objects)
{
	return 0;
}

#endif /* CONFIG_CGROUP_RDMA */
