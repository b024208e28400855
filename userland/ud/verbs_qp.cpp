// SPDX-License-Identifier: MIT
// verbs_qp.cpp - see verbs_qp.hpp. The way to stop is ERR, one completion for
// each WR, then RESET; the caller counts, to_reset() only does the last step.
#include "userland/ud/verbs_qp.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>

namespace coop::ud
{

verbs_qp::verbs_qp(ibv_pd *pd, ibv_cq *cq, std::uint32_t index, const qp_attr &attr) :
	index(index),
	attr(attr),
	recv_mask_(std::bit_ceil(attr.max_recv_wr) - 1),
	send_mask_(std::bit_ceil(attr.max_send_wr) - 1),
	recvs_(recv_mask_ + 1),
	sends_(send_mask_ + 1)
{
	ibv_qp_init_attr init{};
	init.send_cq = cq;
	init.recv_cq = cq;
	init.qp_type = IBV_QPT_UD;
	// Some devices refuse a queue of no WRs.
	init.cap.max_send_wr = std::max(attr.max_send_wr, 1u);
	init.cap.max_recv_wr = std::max(attr.max_recv_wr, 1u);
	init.cap.max_send_sge = attr.max_sge;
	init.cap.max_recv_sge = attr.max_sge;
	qp_.reset(ibv_create_qp(pd, &init));
	if (!qp_)
		throw std::system_error(errno, std::generic_category(), "verbs: create queue pair");
}

int verbs_qp::modify(ibv_qp_attr &a, int mask)
{
	return -ibv_modify_qp(qp_.get(), &a, mask);
}

int verbs_qp::to_ready(std::uint8_t port)
{
	ibv_qp_attr a{};
	a.qp_state = IBV_QPS_INIT;
	a.port_num = port;
	a.qkey = attr.qkey;
	int error = modify(a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	if (error)
		return error;
	a = ibv_qp_attr{};
	a.qp_state = IBV_QPS_RTR;
	error = modify(a, IBV_QP_STATE);
	if (error)
		return error;
	a = ibv_qp_attr{};
	a.qp_state = IBV_QPS_RTS;
	error = modify(a, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (!error)
		state = qp_state::ready;
	return error;
}

int verbs_qp::to_error()
{
	ibv_qp_attr a{};
	a.qp_state = IBV_QPS_ERR;
	const int error = modify(a, IBV_QP_STATE);
	if (!error)
		state = qp_state::error;
	return error;
}

int verbs_qp::to_reset()
{
	ibv_qp_attr a{};
	a.qp_state = IBV_QPS_RESET;
	const int error = modify(a, IBV_QP_STATE);
	if (!error)
		state = qp_state::reset;
	return error;
}

std::uint32_t verbs_qp::next_recv(std::uint64_t wr_id, const void *grh)
{
	recv(recv_tail_) = {wr_id, static_cast<const std::uint8_t *>(grh)};
	return recv_tail_++;
}

std::uint32_t verbs_qp::next_send(std::uint64_t wr_id, bool signaled)
{
	send(send_tail_) = {wr_id, signaled};
	return send_tail_++;
}

} // namespace coop::ud
