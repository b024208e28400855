// SPDX-License-Identifier: MIT
// completion_ring.hpp - completions that wait for poll().
//
// Every completion answers a WR, and create_qp() reserves room for the WRs of its
// queue pair, so the ring cannot overflow.
#pragma once

#include <bit>
#include <cstddef>
#include <vector>

#include "userland/ud/endpoint.hpp"

namespace coop::ud
{

class completion_ring
{
public:
	void reserve_more(std::size_t n)
	{
		promised_ += n;
		if (promised_ <= slot_.size())
			return;
		std::vector<completion> larger(std::bit_ceil(promised_));
		const std::size_t count = tail_ - head_;
		for (std::size_t i = 0; i < count; i++)
			larger[i] = slot_[(head_ + i) & mask_];
		slot_.swap(larger);
		mask_ = slot_.size() - 1;
		head_ = 0;
		tail_ = count;
	}

	bool empty() const { return tail_ == head_; }
	completion &push(std::uint32_t qp, std::uint64_t wr_id, wc_status status, bool is_recv)
	{
		completion &c = slot_[tail_++ & mask_];
		c = completion{};
		c.wr_id = wr_id;
		c.qp = qp;
		c.status = status;
		c.is_recv = is_recv;
		return c;
	}
	const completion &front() const { return slot_[head_ & mask_]; }
	void pop() { head_++; }

private:
	std::vector<completion> slot_ = std::vector<completion>(1);
	std::size_t promised_ = 0, mask_ = 0;
	std::size_t head_ = 0, tail_ = 0; // free-running
};

} // namespace coop::ud
