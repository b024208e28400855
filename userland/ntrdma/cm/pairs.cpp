// SPDX-License-Identifier: MIT
// pairs.cpp - queue pairs that belong to an identifier, end points, and what is not offered.
#include <cerrno>

#include "userland/ntrdma/cm/manager.hpp"

using namespace coop::ntrdma::cm;
using coop::ntrdma::cm::of;

namespace
{

/// A completion queue and its channel, as rdma_create_qp() makes them if it is given none.
int make_queue(rdma_cm_id *id, std::uint32_t depth, ibv_comp_channel **channel, ibv_cq **queue)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return -1;
	*queue = ibv_create_cq(id->verbs, static_cast<int>(depth ? depth : 1), id, *channel, 0);
	if (*queue)
		return 0;
	ibv_destroy_comp_channel(*channel);
	*channel = nullptr;
	return -1;
}

void drop_queue(ibv_comp_channel **channel, ibv_cq **queue)
{
	if (*queue)
		ibv_destroy_cq(*queue);
	if (*channel)
		ibv_destroy_comp_channel(*channel);
	*queue = nullptr;
	*channel = nullptr;
}

} // namespace

COOP_CM int rdma_create_qp(rdma_cm_id *id, ibv_pd *pd, ibv_qp_init_attr *a)
{
	identifier *i = of(id);
	if (id->qp || !id->verbs)
		return fail_with(EINVAL);
	if (pd && pd->context != id->verbs)
		return fail_with(EINVAL);
	if (!pd)
		pd = id->pd;
	if (!a->send_cq) {
		if (make_queue(id, a->cap.max_send_wr, &id->send_cq_channel, &id->send_cq))
			return -1;
		a->send_cq = id->send_cq;
		i->own_cqs = true;
	}
	if (!a->recv_cq) {
		if (make_queue(id, a->cap.max_recv_wr, &id->recv_cq_channel, &id->recv_cq)) {
			drop_queue(&id->send_cq_channel, &id->send_cq);
			return -1;
		}
		a->recv_cq = id->recv_cq;
		i->own_cqs = true;
	}
	id->qp = ibv_create_qp(pd, a);
	bool moved = id->qp && !move_pair(i, IBV_QPS_INIT);
	// Datagrams wait for no peer.
	if (moved && is_unconnected(i))
		moved = !move_pair(i, IBV_QPS_RTR) && !move_pair(i, IBV_QPS_RTS);
	if (moved) {
		id->pd = pd;
		if (!id->send_cq)
			id->send_cq = a->send_cq;
		if (!id->recv_cq)
			id->recv_cq = a->recv_cq;
		return 0;
	}
	int error = errno;
	rdma_destroy_qp(id);
	return fail_with(error);
}

COOP_CM int rdma_create_qp_ex(rdma_cm_id *id, ibv_qp_init_attr_ex *a)
{
	if (a->comp_mask & ~IBV_QP_INIT_ATTR_PD)
		return fail_with(EOPNOTSUPP);
	ibv_qp_init_attr plain{};
	plain.qp_context = a->qp_context;
	plain.send_cq = a->send_cq;
	plain.recv_cq = a->recv_cq;
	plain.srq = a->srq;
	plain.cap = a->cap;
	plain.qp_type = a->qp_type;
	plain.sq_sig_all = a->sq_sig_all;
	int rc = rdma_create_qp(id, a->comp_mask & IBV_QP_INIT_ATTR_PD ? a->pd : nullptr, &plain);
	a->cap = plain.cap;
	a->send_cq = plain.send_cq;
	a->recv_cq = plain.recv_cq;
	return rc;
}

COOP_CM void rdma_destroy_qp(rdma_cm_id *id)
{
	identifier *i = of(id);
	if (id->qp)
		ibv_destroy_qp(id->qp);
	id->qp = nullptr;
	if (id->send_cq_channel)
		drop_queue(&id->send_cq_channel, &id->send_cq);
	if (id->recv_cq_channel)
		drop_queue(&id->recv_cq_channel, &id->recv_cq);
	id->send_cq = id->recv_cq = nullptr;
	i->own_cqs = false;
}

COOP_CM int rdma_create_srq(rdma_cm_id *id, ibv_pd *pd, ibv_srq_init_attr *a)
{
	if (id->srq || !id->verbs)
		return fail_with(EINVAL);
	id->srq = ibv_create_srq(pd ? pd : id->pd, a);
	return id->srq ? 0 : -1;
}

COOP_CM void rdma_destroy_srq(rdma_cm_id *id)
{
	if (id->srq)
		ibv_destroy_srq(id->srq);
	id->srq = nullptr;
}

COOP_CM int rdma_create_ep(rdma_cm_id **out, rdma_addrinfo *to, ibv_pd *pd, ibv_qp_init_attr *a)
{
	rdma_cm_id *id;
	if (rdma_create_id(nullptr, &id, nullptr, static_cast<rdma_port_space>(to->ai_port_space)))
		return -1;
	int rc;
	if (a)
		a->qp_type = static_cast<ibv_qp_type>(to->ai_qp_type);
	if (to->ai_flags & RAI_PASSIVE) {
		rc = rdma_bind_addr(id, to->ai_src_addr);
		if (!rc && a) {
			of(id)->wish = *a;
			of(id)->wishes = true;
			of(id)->wish_pd = pd;
		}
	} else {
		rc = rdma_resolve_addr(id, to->ai_src_addr, to->ai_dst_addr, 2000);
		if (!rc)
			rc = rdma_resolve_route(id, 2000);
		if (!rc && a)
			rc = rdma_create_qp(id, pd, a);
	}
	if (rc) {
		int error = errno;
		rdma_destroy_ep(id);
		return fail_with(error);
	}
	*out = id;
	return 0;
}

COOP_CM void rdma_destroy_ep(rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}

/// Priorities, reuse of addresses and time-outs of a fabric mean nothing here; paths are not set.
COOP_CM int rdma_set_option(rdma_cm_id *, int level, int, void *, std::size_t)
{
	return level == RDMA_OPTION_ID ? 0 : fail_with(EOPNOTSUPP);
}

COOP_CM int rdma_notify(rdma_cm_id *, ibv_event_type)
{
	return fail_with(EOPNOTSUPP);
}
COOP_CM int rdma_join_multicast(rdma_cm_id *, sockaddr *, void *)
{
	return fail_with(EOPNOTSUPP);
}
COOP_CM int rdma_join_multicast_ex(rdma_cm_id *, rdma_cm_join_mc_attr_ex *, void *)
{
	return fail_with(EOPNOTSUPP);
}
COOP_CM int rdma_leave_multicast(rdma_cm_id *, sockaddr *)
{
	return fail_with(EOPNOTSUPP);
}
COOP_CM int rdma_set_local_ece(rdma_cm_id *, ibv_ece *)
{
	return fail_with(EOPNOTSUPP);
}
COOP_CM int rdma_get_remote_ece(rdma_cm_id *, ibv_ece *)
{
	return fail_with(EOPNOTSUPP);
}
COOP_CM int rdma_reject_ece(rdma_cm_id *, const void *, std::uint8_t)
{
	return fail_with(EOPNOTSUPP);
}
