// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * qp.c - what the device is told about a UD queue pair; see qp.h for the order of its states.
 *
 * If the device refuses a state change, the queue pair is not ready. It is then
 * replaced. If that fails too, posting fails: that fetch goes to storage, and the
 * next one tries again.
 */
#include "ib/qp.h"

#include <rdma/ib_user_ioctl_verbs.h>

#include "ib/node.h"
#include "ib/trace.h"

static int to_ready(const struct coop_rnic *r, struct ib_qp *ib)
{
	struct ib_qp_attr a = {
		.qp_state = IB_QPS_INIT,
		.pkey_index = r->port.pkey_index,
		.port_num = r->port.num,
		.qkey = r->qkey,
	};
	int err;

	err = ib_modify_qp(ib, &a, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY);
	if (err)
		return err;
	a.qp_state = IB_QPS_RTR;
	err = ib_modify_qp(ib, &a, IB_QP_STATE);
	if (err)
		return err;
	a.qp_state = IB_QPS_RTS;
	return ib_modify_qp(ib, &a, IB_QP_STATE | IB_QP_SQ_PSN);
}

static struct ib_qp *make(struct coop_rnic *r, const struct coop_qp *qp)
{
	struct ib_qp_init_attr init = {
		.send_cq = r->scq,
		.recv_cq = r->rcq,
		.cap = qp->cap,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_UD,
	};

	return ib_create_qp(r->pd, &init);
}

struct ib_qp *coop_qp_take(struct coop_qp *qp)
{
	struct ib_qp *ib = qp->ib;

	WARN_ON_ONCE(qp->taken);
	qp->taken = true;
	qp->ready = false;
	qp->ib = NULL;
	return ib;
}

void coop_qp_give_back(struct coop_qp *qp, struct ib_qp *ib, bool other)
{
	qp->taken = false;
	qp->ib = ib;
	if (ib)
		qp->num = ib->qp_num;
	if (other)
		qp->epoch++;
}

int coop_qp_to_error(struct ib_qp *ib)
{
	struct ib_qp_attr a = {.qp_state = IB_QPS_ERR};

	return ib_modify_qp(ib, &a, IB_QP_STATE);
}

int coop_qp_end(const struct coop_rnic *r, struct ib_qp **ib)
{
	const int err = *ib ? ib_destroy_qp(*ib) : 0;

	if (err)
		pr_err_ratelimited("coopfs: %s refuses to destroy a queue pair (error %d): "
				   "keeping its memory, trying again later\n",
				   dev_name(&r->port.dev->dev), err);
	else
		*ib = NULL;
	return err;
}

int coop_qp_create(struct coop_rnic *r, struct coop_qp *qp)
{
	struct ib_qp *ib = make(r, qp);
	int err;

	if (IS_ERR(ib))
		return PTR_ERR(ib);
	qp->ib = ib;
	qp->num = ib->qp_num;
	qp->epoch++;
	qp->overdue_at = ~0ULL;
	err = to_ready(r, ib);
	qp->ready = !err;
	if (err)
		coop_qp_destroy(r, qp); /* nothing is posted */
	return err;
}

int coop_qp_destroy(struct coop_rnic *r, struct coop_qp *qp)
{
	int err;

	if (qp->taken)
		return -EBUSY;
	qp->ready = false;
	err = coop_qp_end(r, &qp->ib);
	if (err)
		return err;
	qp->epoch++;
	qp->overdue_at = ~0ULL;
	return 0;
}

/*
 * Soft-RoCE up to Linux 6.3 also runs its responder in the receive path, and RESET does not wait
 * for that. The responder may have completed the last flushed WR and still be running; it then
 * expects the state ERR, and in another state a packet (an Oops in rxe_responder()). Destruction
 * waits for the responder. Only fetch queue pairs receive data and are stopped often; the others
 * keep their QPNs, which peers know.
 */
static bool may_be_reset(const struct coop_rnic *r, const struct coop_qp *qp)
{
	return r->port.dev->ops.driver_id != RDMA_DRIVER_RXE || qp->kind != COOP_QP_FETCH;
}

static int reset(struct coop_rnic *r, struct ib_qp *ib)
{
	struct ib_qp_attr a = {.qp_state = IB_QPS_RESET};

	return ib_modify_qp(ib, &a, IB_QP_STATE) ?: to_ready(r, ib);
}

int coop_qp_to_ready(struct coop_rnic *r, const struct coop_qp *qp, struct ib_qp **ib, bool *other)
{
	struct ib_qp *made;
	int err;

	*other = false;
	if (*ib && qp->stopped && may_be_reset(r, qp) && !reset(r, *ib))
		return 0;
	trace_coopfs_qp(r, qp, COOP_QP_REPLACED);
	err = coop_qp_end(r, ib);
	if (err)
		return err;
	*other = true;
	made = make(r, qp);
	if (IS_ERR(made))
		return PTR_ERR(made);
	*ib = made;
	err = to_ready(r, made);
	if (err)
		(void)coop_qp_end(r, ib); /* nothing is posted */
	return err;
}
