// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * rnic.c - a node's objects on a device: created completely, or not at all.
 *
 * We allocate everything here, so that later nothing can run out; if the device
 * has too little, the error text says which option to lower. When the node
 * detaches, the queue pairs are destroyed first, which ends the device's right
 * to touch memory, then all that they used.
 *
 * A queue pair whose completions do not come (the device lost them) is destroyed
 * after a while, and replaced, so that no page stays locked forever.
 */
#include <linux/cpu.h> /* work_on_cpu_safe() of Linux 6.1 needs it */
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "ib/node.h"

#define FETCH_WRS 256 /* a peer's datagrams may be a quarter as long as ours */

#define SERVE_WRS 256 /* at least, if the device can: several batches */

static void on_completion(struct ib_cq *cq, void *context)
{
	coop_pump_completed(context);
}

static void on_cq_event(struct ib_event *event, void *context)
{
	struct coop_node *node = context;

	coop_count(node->stats, COOP_C_CQ_ERRORS, 1);
}

/* Queue pairs for messages. */
static int ctrl_qps(const struct coop_rnic *r)
{
	return r->node->cfg.lines ? 2 : 1;
}

/* Receives of a fetch slot: enough for a full fetch, if possible also from a smaller MTU. */
static u32 fetch_wrs(const struct coop_rnic *r)
{
	const struct ib_device_attr *a = &r->port.dev->attrs;
	u32 least = r->fetch_pages * r->per_page, most = min_t(u32, a->max_qp_wr, FETCH_WRS);
	const int other = ctrl_qps(r) * COOP_CTRL_RECVS;

	if (a->max_cqe > other)
		most = min(most, (u32)(a->max_cqe - other) / r->n_fetch);
	return max(least, most);
}

/* Sends posted at once, within the device's limits. */
static u32 serve_wrs(const struct coop_rnic *r)
{
	const struct ib_device_attr *a = &r->port.dev->attrs;
	u32 most = min_t(u32, a->max_qp_wr, COOP_MAX_SEGS);
	const int other = ctrl_qps(r) * COOP_CTRL_SENDS;

	if (a->max_cqe > other)
		most = min(most, (u32)(a->max_cqe - other) / 2);
	return min(most, max_t(u32, SERVE_WRS, COOP_SENDING_MAX / r->mtu + COOP_BATCH));
}

/* What to lower: an option of the mount, or with lines a field of struct coop_net_setup. */
static const char *for_fetches(const struct coop_rnic *r)
{
	return r->node->cfg.lines ? "fetches" : "ib_num_srpc=";
}

static const char *for_serves(const struct coop_rnic *r)
{
	return r->node->cfg.lines ? "serves" : "ib_num_rrpc=";
}

static int fits(const struct coop_rnic *r, char *why, size_t size)
{
	const struct ib_device_attr *a = &r->port.dev->attrs;
	const char *name = dev_name(&r->port.dev->dev);
	const int recvs_ctrl = ctrl_qps(r) * COOP_CTRL_RECVS;
	u64 recvs = recvs_ctrl + (u64)r->n_fetch * r->fetch_wrs;

	if (a->max_recv_sge < 4 || a->max_send_sge < 2) {
		snprintf(why, size, "%s takes %d entries a receive; coopfs needs 4", name,
			 a->max_recv_sge);
		return -EINVAL;
	}
	if (ctrl_qps(r) + r->n_fetch + r->n_serve > (u32)a->max_qp) {
		snprintf(why, size, "%s has %d queue pairs: lower %s and %s", name, a->max_qp,
			 for_fetches(r), for_serves(r));
		return -EINVAL;
	}
	if (recvs > (u64)a->max_cqe) {
		snprintf(why, size,
			 "%s has room for %d completions, %llu receives may be posted: lower "
			 "%s to %u",
			 name, a->max_cqe, recvs, for_fetches(r),
			 max_t(int, a->max_cqe - recvs_ctrl, 0) / r->fetch_wrs);
		return -EINVAL;
	}
	if (r->serve_wrs < COOP_BATCH) {
		snprintf(why, size,
			 "%s has room for %d completions and %d sends a queue pair; coopfs needs "
			 "%u and %u",
			 name, a->max_cqe, a->max_qp_wr,
			 ctrl_qps(r) * COOP_CTRL_SENDS + 2 * COOP_BATCH, COOP_BATCH);
		return -EINVAL;
	}
	if (r->fetch_wrs > (u32)a->max_qp_wr || COOP_CTRL_RECVS > a->max_qp_wr) {
		snprintf(why, size, "%s takes %d receives a queue pair; coopfs needs %u", name,
			 a->max_qp_wr, max_t(u32, r->fetch_wrs, COOP_CTRL_RECVS));
		return -EINVAL;
	}
	return 0;
}

static struct ib_cq *create_cq(struct coop_rnic *r, u32 entries, u32 vector)
{
	struct ib_cq_init_attr attr = {
		.cqe = entries,
		.comp_vector = (r->port.vector + vector) % r->port.dev->num_comp_vectors,
	};

	return ib_create_cq(r->port.dev, on_completion, on_cq_event, r->node, &attr);
}

/* The objects of a node with lines count for its process. */
static int charge(struct coop_rnic *r, char *why, size_t size)
{
	const u32 objects = 3 + ctrl_qps(r) + r->n_fetch + r->n_serve; /* domain, two CQs */
	int err;

	if (!r->node->cfg.lines)
		return 0;
	err = coop_rnic_charge(r, objects);
	if (err == -EAGAIN)
		snprintf(
			why, size,
			"the rdma cgroup allows no %u more objects on %s: raise rdma.max, or lower "
			"fetches and serves",
			objects, dev_name(&r->port.dev->dev));
	else if (err)
		snprintf(why, size, "out of memory");
	return err;
}

/* On error: what could not be created, and what to lower, if that helps. */
static int create_all(struct coop_rnic *r, const char **what, const char **lower)
{
	const gfp_t gfp = coop_node_gfp(r->node);
	u32 i;
	int err;

	*what = "protection domain";
	r->pd = ib_alloc_pd(r->port.dev, 0);
	if (IS_ERR(r->pd)) {
		err = PTR_ERR(r->pd);
		r->pd = NULL;
		return err;
	}
	*what = "completion queue for receives";
	*lower = for_fetches(r);
	r->rcq = create_cq(r, ctrl_qps(r) * COOP_CTRL_RECVS + r->n_fetch * r->fetch_wrs, 0);
	if (IS_ERR(r->rcq)) {
		err = PTR_ERR(r->rcq);
		r->rcq = NULL;
		return err;
	}
	/* Twice, because those of a queue pair that was destroyed may still be in it. */
	*what = "completion queue for sends";
	*lower = NULL;
	r->scq = create_cq(r, ctrl_qps(r) * COOP_CTRL_SENDS + 2 * r->serve_wrs, 1);
	if (IS_ERR(r->scq)) {
		err = PTR_ERR(r->scq);
		r->scq = NULL;
		return err;
	}
	*what = "memory";
	err = coop_bufs_create(&r->scrap, r->port.dev, 1, PAGE_SIZE, DMA_FROM_DEVICE, gfp);
	if (!err)
		err = coop_bufs_create(&r->zeros, r->port.dev, 1, PAGE_SIZE, DMA_TO_DEVICE, gfp);
	if (err)
		return err;
	*what = "memory for copies";
	*lower = for_serves(r);
	err = coop_bufs_create(&r->kept, r->port.dev, r->n_serve * COOP_KEPT_PAGES, PAGE_SIZE,
			       DMA_TO_DEVICE, gfp);
	if (err)
		return err;
	*what = "control queue pair";
	*lower = NULL;
	err = coop_ctrl_create(r, &r->ctrl);
	if (!err && r->node->cfg.lines)
		err = coop_ctrl_create(r, &r->data);
	if (err)
		return err;
	*what = "queue pair to fetch with";
	*lower = for_fetches(r);
	for (i = 0; i < r->n_fetch && !err; i++)
		err = coop_requester_create(r, &r->fetch[i]);
	if (err)
		return err;
	*what = "queue pair to serve with";
	*lower = for_serves(r);
	for (i = 0; i < r->n_serve && !err; i++)
		err = coop_responder_create(r, &r->serve[i]);
	return err;
}

/* Also those that are not created. */
static void init_qps(struct coop_rnic *r)
{
	u32 i;

	coop_qp_init(r, &r->ctrl.qp, COOP_QP_CTRL, 0, &coop_ctrl_qp_ops);
	coop_qp_init(r, &r->data.qp, COOP_QP_DATA, 0, &coop_ctrl_qp_ops);
	for (i = 0; r->fetch && i < r->n_fetch; i++)
		coop_qp_init(r, &r->fetch[i].qp, COOP_QP_FETCH, (u16)i, &coop_requester_qp_ops);
	for (i = 0; r->serve && i < r->n_serve; i++)
		coop_qp_init(r, &r->serve[i].qp, COOP_QP_SERVE, (u16)i, &coop_responder_qp_ops);
}

/* All of them, from 0 on; NULL behind the last. */
static struct coop_qp *nth_qp(struct coop_rnic *r, u32 i)
{
	const u32 n_fetch = r->fetch ? r->n_fetch : 0, n_serve = r->serve ? r->n_serve : 0;

	if (i < 2)
		return i ? &r->data.qp : &r->ctrl.qp;
	i -= 2;
	if (i < n_fetch)
		return &r->fetch[i].qp;
	i -= n_fetch;
	return i < n_serve ? &r->serve[i].qp : NULL;
}

struct coop_rnic *coop_rnic_create(struct coop_node *node, const struct coop_port *port, char *why,
				   size_t size)
{
	const struct coop_node_cfg *cfg = &node->cfg;
	const char *name = dev_name(&port->dev->dev), *what = "memory", *lower = NULL;
	const gfp_t gfp = coop_node_gfp(node);
	struct coop_rnic *r;
	int err;

	if (cfg->mtu && (cfg->mtu > port->mtu || cfg->mtu < COOP_MTU_MIN || cfg->mtu % 4)) {
		snprintf(why, size, "ib_mtu=%u: %s port %u carries %u to %u, multiples of 4",
			 cfg->mtu, name, port->num, COOP_MTU_MIN, port->mtu);
		return ERR_PTR(-EINVAL);
	}
	r = kvzalloc(sizeof(*r), gfp);
	if (!r)
		goto no_memory;
	r->node = node;
	r->port = *port;
	r->mtu = cfg->mtu ? cfg->mtu : port->mtu;
	r->qkey = cfg->lines ? cfg->qkey & ~BIT(31) : cfg->qkey | BIT(31);
	r->per_page = DIV_ROUND_UP(PAGE_SIZE, r->mtu);
	r->fetch_pages = min(coop_wire_max_segs(r->mtu) / r->per_page,
			     coop_wire_max_pages(r->mtu, node->cfg.page_mac));
	r->n_fetch = cfg->num_srpc;
	r->fetch_wrs = fetch_wrs(r);
	r->n_serve = cfg->num_rrpc;
	r->n_serves = r->n_serve * COOP_SERVES_A_QP;
	r->serve_wrs = serve_wrs(r);
	r->overdue_at = ~0ULL;
	coop_ah_cache_init(r);
	err = fits(r, why, size) ?: charge(r, why, size);
	if (err) {
		kvfree(r);
		return ERR_PTR(err);
	}
	r->fetch = kvcalloc(r->n_fetch, sizeof(*r->fetch), gfp);
	r->serve = kvcalloc(r->n_serve, sizeof(*r->serve), gfp);
	r->serves = kvcalloc(r->n_serves, sizeof(*r->serves), gfp);
	r->bounce = kvmalloc_array(COOP_MAX_PAGES, PAGE_SIZE, gfp);
	init_qps(r);
	err = -ENOMEM;
	if (r->fetch && r->serve && r->serves && r->bounce)
		err = create_all(r, &what, &lower);
	if (err) {
		snprintf(why, size, "%s port %u: cannot create: %s%s%s (error %d)", name, port->num,
			 what, lower ? "; lower " : "", lower ?: "", err);
		r->closing = true;
		coop_rnic_destroy(r);
		return ERR_PTR(err);
	}
	coop_rnic_address(r, &r->self);
	r->data_qpn = r->data.qp.num;
	return r;

no_memory:
	snprintf(why, size, "%s port %u: out of memory", name, port->num);
	return ERR_PTR(-ENOMEM);
}

void coop_rnic_address(const struct coop_rnic *r, struct coop_addr *self)
{
	memset(self, 0, sizeof(*self));
	memcpy(self->gid, r->port.gid.raw, sizeof(self->gid));
	self->lid = r->port.lid;
	self->sl = (u8)r->node->cfg.sl;
	self->qpn = r->ctrl.qp.num;
	self->qkey = r->qkey;
}

/* How many the device refused to destroy. */
static u32 destroy_qps(struct coop_rnic *r)
{
	struct coop_qp *qp;
	u32 i, kept = 0;

	for (i = 0; (qp = nth_qp(r, i)); i++)
		kept += coop_qp_destroy(r, qp) != 0;
	return kept;
}

/* Destroys it, without the lock. False: it exists still. */
static bool silence_qp(struct coop_rnic *r, struct coop_qp *qp)
{
	struct ib_qp *ib;
	int err;

	if (qp->taken)
		return false;
	ib = coop_qp_take(qp);
	mutex_unlock(&r->node->lock);
	err = coop_qp_end(r, &ib);
	mutex_lock(&r->node->lock);
	coop_qp_give_back(qp, ib, !err);
	if (!err)
		qp->overdue_at = ~0ULL;
	return !err;
}

bool coop_rnic_silence(struct coop_rnic *r, u64 now)
{
	struct coop_qp *qp;
	u32 i, kept = 0;

	lockdep_assert_held(&r->node->lock);
	for (i = 0; (qp = nth_qp(r, i)); i++) {
		if (!silence_qp(r, qp))
			kept++;
		else
			qp->ops->lost(r, qp, now);
	}
	return !kept;
}

static void nothing(struct tasklet_struct *t) {}

/* Tasklets of a processor run in the order in which they were scheduled. */
static long flush_tasklets(void *unused)
{
	struct tasklet_struct last;

	tasklet_setup(&last, nothing);
	tasklet_schedule(&last);
	tasklet_kill(&last); /* it has run */
	return 0;
}

/*
 * Soft-RoCE up to Linux 6.3 tells of completions by a tasklet of the completion queue, and frees
 * that with the queue though it may still be scheduled.
 */
static void await_completions(const struct coop_rnic *r)
{
	int cpu;

	if (r->port.dev->ops.driver_id != RDMA_DRIVER_RXE)
		return;
	cpus_read_lock();
	for_each_online_cpu(cpu) work_on_cpu(cpu, flush_tasklets, NULL);
	cpus_read_unlock();
	synchronize_rcu(); /* one that was running elsewhere */
}

static void destroy_messages(struct coop_ctrl *c)
{
	coop_bufs_destroy(&c->grh);
	coop_bufs_destroy(&c->rx);
	coop_bufs_destroy(&c->tx);
}

void coop_rnic_destroy(struct coop_rnic *r)
{
	struct coop_qp *qp;
	u32 i;

	for (i = 0; (qp = nth_qp(r, i)); i++)
		cancel_work_sync(&qp->change); /* it finds nothing to change */
	/* There are some only after a failed creation. */
	for (i = 0; destroy_qps(r); i++)
		msleep(coop_rnic_pause_ms(i));
	coop_ah_cache_destroy(r);
	await_completions(r);
	if (r->rcq)
		ib_destroy_cq(r->rcq);
	if (r->scq)
		ib_destroy_cq(r->scq);
	/* With some drivers a pending softirq may still call on_completion(). */
	synchronize_rcu();
	for (i = 0; r->fetch && i < r->n_fetch; i++) {
		coop_bufs_destroy(&r->fetch[i].grh);
		coop_bufs_destroy(&r->fetch[i].own);
	}
	destroy_messages(&r->ctrl);
	destroy_messages(&r->data);
	coop_bufs_destroy(&r->scrap);
	coop_bufs_destroy(&r->zeros);
	coop_bufs_destroy(&r->kept);
	if (r->pd)
		ib_dealloc_pd(r->pd);
	coop_rnic_uncharge(r);
	kvfree(r->fetch);
	kvfree(r->serve);
	kvfree(r->serves);
	kvfree(r->bounce);
	kvfree(r);
}

void coop_rnic_await(struct coop_rnic *r, struct coop_qp *qp, u64 until)
{
	qp->overdue_at = until;
	r->overdue_at = min(r->overdue_at, until);
}

void coop_rnic_overdue(struct coop_rnic *r, u64 now)
{
	struct coop_qp *qp;
	u64 next = ~0ULL;
	u32 i;

	lockdep_assert_held(&r->node->lock);
	if (r->overdue_at > now || r->closing)
		return;
	for (i = 0; (qp = nth_qp(r, i)); i++) {
		if (qp->overdue_at <= now)
			qp->ops->overdue(r, qp, now);
		next = min(next, qp->overdue_at);
	}
	r->overdue_at = next;
}
