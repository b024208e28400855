// SPDX-License-Identifier: MIT
// verbs_qp.hpp - a UD queue pair of an RDMA device, and the book of what is
// posted to it.
//
// A completion with an error tells little more than the number it was posted
// with, so that number names queue pair, direction and slot, and the slot keeps
// the rest. All sends ask for a completion: only then is it known, on every
// device, when memory and address handle are free.
#pragma once

#include <cstdint>
#include <vector>

#include "userland/ud/verbs_device.hpp"

namespace coop::ud
{

// What is in ibv_wc::wr_id.
struct verbs_wr_number {
	static constexpr std::uint64_t recv_bit = 1ull << 63;

	std::uint32_t qp, slot;
	bool is_recv;

	static verbs_wr_number parse(std::uint64_t id)
	{
		return {static_cast<std::uint32_t>((id & ~recv_bit) >> 32),
			static_cast<std::uint32_t>(id), (id & recv_bit) != 0};
	}
	std::uint64_t pack() const
	{
		return (is_recv ? recv_bit : 0) | std::uint64_t{qp} << 32 | slot;
	}
};

class verbs_qp
{
public:
	struct recv_slot {
		std::uint64_t wr_id;
		const std::uint8_t *grh;
	};
	struct send_slot {
		std::uint64_t wr_id;
		bool signaled;
	};

	// Throws std::system_error if the device refuses.
	verbs_qp(ibv_pd *, ibv_cq *, std::uint32_t index, const qp_attr &);

	ibv_qp *get() const { return qp_.get(); }
	int to_ready(std::uint8_t port);
	int to_error();
	int to_reset();

	const std::uint32_t index;
	const qp_attr attr;
	qp_state state = qp_state::reset;
	std::uint32_t recvs_owed = 0, sends_owed = 0; // completions not polled yet

	std::uint32_t next_recv(std::uint64_t wr_id, const void *grh);
	std::uint32_t next_send(std::uint64_t wr_id, bool signaled);
	recv_slot &recv(std::uint32_t slot) { return recvs_[slot & recv_mask_]; }
	send_slot &send(std::uint32_t slot) { return sends_[slot & send_mask_]; }
	// The last 'n' of next_*() were not posted after all.
	void unpost_recvs(std::uint32_t n) { recv_tail_ -= n; }
	void unpost_sends(std::uint32_t n) { send_tail_ -= n; }

private:
	int modify(ibv_qp_attr &, int mask);

	verbs_qp_owner qp_;
	std::uint32_t recv_mask_, send_mask_;
	std::vector<recv_slot> recvs_;
	std::vector<send_slot> sends_;
	std::uint32_t recv_tail_ = 0, send_tail_ = 0;
};

} // namespace coop::ud
