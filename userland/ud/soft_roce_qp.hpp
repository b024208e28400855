// SPDX-License-Identifier: MIT
// soft_roce_qp.hpp - a queue pair of soft RoCE: its posted WRs and its state.
//
// Receive WRs are consumed in posting order. From post to completion the memory of a
// WR belongs to the network: the receiver lets the kernel copy into WRs at the head
// of the ring before it knows what arrives, and corrects that afterwards. A WR counts
// as owed until its completion has been polled; a queue pair can be reset only when
// it owes nothing, so the owner sees every page come back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "userland/ud/completion_ring.hpp"
#include "userland/ud/endpoint.hpp"

namespace coop::ud
{

struct posted_recv {
	std::uint64_t wr_id;
	const sge *list; // in the queue pair's own copy
	std::uint32_t n_sge;
	std::uint32_t capacity; // payload bytes, GRH area not counted
};

class queue_pair
{
public:
	queue_pair(std::uint32_t index, std::uint32_t number, const qp_attr &attr);

	const std::uint32_t index, number;
	const qp_attr attr;
	qp_state state = qp_state::ready;
	std::uint32_t psn = 0;
	std::uint32_t sends_owed = 0;

	std::uint32_t posted() const { return tail_ - head_; }
	std::uint32_t recvs_owed() const { return tail_ - polled_; }
	std::uint32_t head() const { return head_; }
	// The i-th WR from the head of the ring; i < posted().
	const posted_recv &wr(std::uint32_t i) const { return ring_[slot(head_ + i)]; }

	// 0 or -errno.
	int push(const recv_wr &wr);
	void consume() { head_++; }
	void polled_recv() { polled_++; }

	// What arrived here before, which predicts the layout of the next super packet.
	std::uint32_t expect_payload = 0; // 0: nothing yet
	bool expect_imm = true;
	// 0: only small datagrams come, or nothing yet. The receiver never guesses such a queue
	// pair: WRs for small datagrams may end in memory that they share.
	std::uint8_t bulk_score = 0;
	bool candidate = false;         // is in the receiver's list of likely targets
	std::uint64_t posted_since = 0; // the receiver's count of posts, at the last one here

private:
	std::uint32_t slot(std::uint32_t n) const { return n & mask_; }

	std::uint32_t mask_;
	std::vector<posted_recv> ring_;
	std::vector<sge> sges_;                          // max_sge per slot
	std::uint32_t head_ = 0, tail_ = 0, polled_ = 0; // free-running
};

// Walks a WR's payload area, one piece of memory at a time.
class sge_cursor
{
public:
	// Starts after the first 'skip' bytes, which must exist.
	sge_cursor(const sge *list, std::uint32_t n, std::uint32_t skip) : list_(list), left_(n)
	{
		while (left_ && skip >= list_->length) {
			skip -= list_->length;
			list_++;
			left_--;
		}
		used_ = skip;
	}

	// Up to 'want' bytes in one piece; empty when the list ends.
	std::span<std::uint8_t> take(std::size_t want)
	{
		while (left_ && used_ == list_->length) {
			list_++;
			left_--;
			used_ = 0;
		}
		if (!left_)
			return {};
		const std::size_t room = list_->length - used_;
		const std::size_t n = want < room ? want : room;
		auto *at = static_cast<std::uint8_t *>(list_->addr) + used_;
		used_ += static_cast<std::uint32_t>(n);
		return {at, n};
	}

private:
	const sge *list_;
	std::uint32_t left_, used_ = 0;
};

} // namespace coop::ud
