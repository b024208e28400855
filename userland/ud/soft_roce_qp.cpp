// SPDX-License-Identifier: MIT
// soft_roce_qp.cpp - see soft_roce_qp.hpp.
#include "userland/ud/soft_roce_qp.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace coop::ud
{

queue_pair::queue_pair(std::uint32_t index, std::uint32_t number, const qp_attr &attr) :
	index(index),
	number(number),
	attr(attr),
	mask_(std::bit_ceil(attr.max_recv_wr) - 1),
	ring_(mask_ + 1),
	sges_(std::size_t{mask_ + 1} * attr.max_sge)
{
}

int queue_pair::push(const recv_wr &wr)
{
	if (recvs_owed() >= attr.max_recv_wr)
		return -ENOMEM;
	if (!wr.n_sge || wr.n_sge > attr.max_sge || wr.list[0].length < COOP_GRH)
		return -EINVAL;

	std::uint64_t bytes = 0;
	for (std::uint32_t i = 0; i < wr.n_sge; i++)
		bytes += wr.list[i].length;
	if (bytes > UINT32_MAX)
		return -EINVAL;

	const std::uint32_t at = slot(tail_);
	sge *copy = sges_.data() + std::size_t{at} * attr.max_sge;
	std::copy_n(wr.list, wr.n_sge, copy);
	ring_[at] = {wr.wr_id, copy, wr.n_sge, static_cast<std::uint32_t>(bytes - COOP_GRH)};
	tail_++;
	return 0;
}

} // namespace coop::ud
