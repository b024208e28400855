// SPDX-License-Identifier: MIT
// verbs_qp.cpp - see verbs_qp.hpp. A queue pair stops by ERR, one completion per WR,
// then RESET; the caller counts completions, to_reset() does only the last step.
#include "userland/ud/verbs_qp.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <system_error>

#include <arpa/inet.h>

namespace coop::ud
{

namespace
{

bool fill(const memory_map &memory, const sge *list, std::uint32_t n, ibv_sge *out)
{
	for (std::uint32_t i = 0; i < n; i++) {
		std::uint32_t lkey = list[i].key;
		if (!lkey && !memory.find(list[i], lkey))
			return false;
		out[i] = {reinterpret_cast<std::uintptr_t>(list[i].addr), list[i].length, lkey};
	}
	return true;
}

// Try no less: every datagram is larger.
constexpr std::uint32_t inline_least = 32;

} // namespace

verbs_qp::verbs_qp(ibv_pd *pd, ibv_cq *send, ibv_cq *recv, std::uint32_t index,
		   const qp_attr &attr) :
	index(index),
	attr(attr),
	recv_mask_(std::bit_ceil(attr.max_recv_wr) - 1),
	send_mask_(std::bit_ceil(attr.max_send_wr) - 1),
	recvs_(recv_mask_ + 1),
	sends_(send_mask_ + 1)
{
	if (attr.max_recv_wr) {
		const int access = IBV_ACCESS_LOCAL_WRITE; // the macro mixes enumerations
		grh_.resize(recvs_.size() * grh_stride);
		grh_region_.reset(ibv_reg_mr(pd, grh_.data(), grh_.size(), access));
		if (!grh_region_)
			throw std::system_error(errno, std::generic_category(),
						"verbs: register memory");
	}
	// Some devices refuse an empty queue.
	cap_.max_send_wr = std::max(attr.max_send_wr, 1u);
	cap_.max_recv_wr = std::max(attr.max_recv_wr, 1u);
	cap_.max_send_sge = attr.max_sge;
	cap_.max_recv_sge = attr.max_sge;
	cap_.max_inline_data = attr.inline_bytes;
	qp_ = create(pd, send, recv);
	// No attribute of a device gives its limit of inline data, and some refuse a larger
	// request.
	while (!qp_ && cap_.max_inline_data) {
		cap_.max_inline_data /= 2;
		if (cap_.max_inline_data < inline_least)
			cap_.max_inline_data = 0;
		qp_ = create(pd, send, recv);
	}
	if (!qp_)
		throw std::system_error(errno, std::generic_category(), "verbs: create queue pair");
	number = qp_->qp_num;
}

verbs_qp_owner verbs_qp::create(ibv_pd *pd, ibv_cq *send, ibv_cq *recv)
{
	ibv_qp_init_attr init{};
	init.send_cq = send;
	init.recv_cq = recv;
	init.qp_type = IBV_QPT_UD;
	init.cap = cap_;
	verbs_qp_owner made(ibv_create_qp(pd, &init));
	// Devices round up, even from 0; without a request, send from memory.
	if (made)
		inline_most_ = std::min(init.cap.max_inline_data, attr.inline_bytes);
	return made;
}

// A new queue pair begins in RESET.
int verbs_qp::to_another()
{
	ibv_pd *const pd = qp_ ? qp_->pd : nullptr;
	if (!pd)
		return -ENODEV;
	verbs_qp_owner another = create(pd, qp_->send_cq, qp_->recv_cq);
	if (!another)
		return to_reset(); // better than no reset
	qp_ = std::move(another);
	number = qp_->qp_num;
	state = qp_state::reset;
	return 0;
}

int verbs_qp::modify(ibv_qp_attr &a, int mask)
{
	if (!qp_)
		return -ENODEV;
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

int verbs_qp::to(ibv_qp_state theirs, qp_state ours)
{
	ibv_qp_attr a{};
	a.qp_state = theirs;
	const int error = modify(a, IBV_QP_STATE);
	if (!error)
		state = ours;
	return error;
}

int verbs_qp::post_recv(std::span<const recv_wr> wrs, const memory_map &memory)
{
	std::array<ibv_recv_wr, batch> chain;
	std::array<ibv_sge, batch * max_sge> entries;
	std::uint32_t n = 0;
	int error = 0;

	for (const recv_wr &wr : wrs.first(std::min(wrs.size(), batch))) {
		ibv_sge *list = entries.data() + n * max_sge;
		if (recvs_owed + n >= attr.max_recv_wr)
			error = -ENOMEM;
		else if (!wr.n_sge || wr.n_sge > attr.max_sge || wr.list[0].length < COOP_GRH)
			error = -EINVAL;
		else if (!fill(memory, wr.list, wr.n_sge, list))
			error = -EFAULT;
		if (error)
			break;
		const std::uint32_t slot = recv_tail_++;
		recv_slot &book = recvs_[slot & recv_mask_];
		book = {wr.wr_id, static_cast<const std::uint8_t *>(wr.list[0].addr)};
		if (wr.list[0].length == COOP_GRH) {
			book.grh = &grh_[(slot & recv_mask_) * grh_stride];
			list[0].addr = reinterpret_cast<std::uintptr_t>(book.grh);
			list[0].lkey = grh_region_->lkey;
		}
		chain[n] = {};
		chain[n].wr_id = verbs_wr_number{index, slot, true}.pack();
		chain[n].sg_list = list;
		chain[n].num_sge = static_cast<int>(wr.n_sge);
		if (n)
			chain[n - 1].next = &chain[n];
		n++;
	}
	if (!n)
		return error;
	ibv_recv_wr *bad = nullptr;
	error = ibv_post_recv(qp_.get(), chain.data(), &bad);
	if (error) {
		const auto posted = static_cast<std::uint32_t>(bad ? bad - chain.data() : 0);
		recv_tail_ -= n - posted;
		n = posted;
	}
	recvs_owed += n;
	recvs_out_ += n;
	return n ? static_cast<int>(n) : -error;
}

verbs_qp::sent verbs_qp::post_send(ibv_ah *handle, const address &dst, std::span<const send_wr> wrs,
				   const memory_map &memory, std::uint32_t mtu)
{
	std::array<ibv_send_wr, batch> chain;
	std::array<ibv_sge, batch * max_sge> entries;
	std::array<std::uint32_t, batch> origin, length; // of chain[i]: its index in wrs, bytes
	std::uint32_t n = 0, seen = 0;
	int error = 0;
	sent out;

	for (const send_wr &wr : wrs.first(std::min(wrs.size(), batch))) {
		ibv_sge *list = entries.data() + n * max_sge;
		std::uint64_t payload = 0;
		for (std::uint32_t i = 0; i < wr.n_sge; i++)
			payload += wr.list[i].length;
		if (sends_owed + n >= attr.max_send_wr)
			error = -ENOMEM;
		else if (wr.n_sge > attr.max_sge)
			error = -EINVAL;
		else if (!fill(memory, wr.list, wr.n_sge, list))
			error = -EFAULT;
		if (error)
			break;
		origin[n] = seen++;
		// Devices treat it differently; here it vanishes.
		if (payload > mtu) {
			out.vanished |= 1u << origin[n];
			continue;
		}
		length[n] = static_cast<std::uint32_t>(payload);
		const std::uint32_t slot = send_tail_++;
		sends_[slot & send_mask_] = {wr.wr_id, wr.signaled};
		ibv_send_wr &one = chain[n];
		one = {};
		one.wr_id = verbs_wr_number{index, slot, false}.pack();
		one.sg_list = list;
		one.num_sge = static_cast<int>(wr.n_sge);
		one.opcode = wr.has_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
		one.send_flags = IBV_SEND_SIGNALED;
		if (!wr.has_imm) // messages request an event, data do not
			one.send_flags |= IBV_SEND_SOLICITED;
		if (payload && payload <= inline_most_)
			one.send_flags |= IBV_SEND_INLINE;
		one.imm_data = htonl(wr.imm);
		one.wr.ud.ah = handle;
		one.wr.ud.remote_qpn = dst.qpn;
		one.wr.ud.remote_qkey = dst.qkey;
		if (n)
			chain[n - 1].next = &one;
		n++;
	}
	if (!seen) {
		out.taken = error;
		return out;
	}
	ibv_send_wr *bad = nullptr;
	error = n ? ibv_post_send(qp_.get(), chain.data(), &bad) : 0;
	if (error) {
		const auto posted = static_cast<std::uint32_t>(bad ? bad - chain.data() : 0);
		send_tail_ -= n - posted;
		out.refused = n - posted;
		seen = origin[posted];
		out.vanished &= (1u << seen) - 1;
		n = posted;
	}
	for (std::uint32_t i = 0; i < n; i++)
		out.bytes += length[i];
	sends_owed += n;
	sends_out_ += n;
	out.posted = n;
	out.taken = seen ? static_cast<int>(seen) : -error;
	return out;
}

const verbs_qp::recv_slot &verbs_qp::recv_done(std::uint32_t slot)
{
	recvs_out_--;
	return recvs_[slot & recv_mask_];
}

const verbs_qp::send_slot &verbs_qp::send_done(std::uint32_t slot)
{
	sends_out_--;
	return sends_[slot & send_mask_];
}

} // namespace coop::ud
