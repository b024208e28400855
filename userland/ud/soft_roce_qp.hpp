// SPDX-License-Identifier: MIT
// soft_roce_qp.hpp - a queue pair of soft RoCE: what is posted, in which state.
//
// A receive WR is consumed in posting order. From post to its completion its
// memory belongs to the network: the receiver lets the kernel copy into WRs at
// the head of the ring before it knows what arrives, and puts it right after.
// A WR counts as owed until its completion has been polled; a queue pair is
// only reset when it owes nothing, so a page never changes hands unseen.
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

	// What arrived here before: how the next super packet will probably lie.
	std::uint32_t expect_payload = 0; // 0: nothing yet
	bool expect_imm = true;
	// 0: only small datagrams come, or nothing yet. Nobody guesses that such a one is next: WRs
	// for small datagrams may end in memory that they share.
	std::uint8_t bulk_score = 0;
	bool candidate = false;         // in the receiver's list of likely targets
	std::uint64_t posted_since = 0; // the receiver's count of posts, at the last one here

private:
	std::uint32_t slot(std::uint32_t n) const { return n & mask_; }

	std::uint32_t mask_;
	std::vector<posted_recv> ring_;
	std::vector<sge> sges_;                          // max_sge for each slot
	std::uint32_t head_ = 0, tail_ = 0, polled_ = 0; // free-running
};

// One piece of memory at a time of a WR's payload area.
class sge_cursor
{
public:
	// Starts behind the first 'skip' bytes, which are there.
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
