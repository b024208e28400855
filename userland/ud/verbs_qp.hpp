// SPDX-License-Identifier: MIT
// verbs_qp.hpp - a UD queue pair of an RDMA device, and the record of WRs posted to
// it.
//
// A completion with an error carries little more than the number of its WR, so that
// number names queue pair, direction and slot, and the slot keeps the rest. All sends
// request a completion: on some devices only that shows when memory and address handle
// are free. The queue pair receives the GRH, which names the sender, into its own
// memory, one place per WR: callers may name the same forty bytes for all their WRs,
// and often do. If the device is removed, destroy() takes the memory from it, and the
// record still lists the WRs that it had.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "userland/ud/memory_map.hpp"
#include "userland/ud/verbs_device.hpp"

namespace coop::ud
{

// The contents of ibv_wc::wr_id.
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
	static constexpr std::size_t batch = 32; // WRs per call into the driver
	static constexpr std::uint32_t max_sge = 16;

	struct recv_slot {
		std::uint64_t wr_id;
		const std::uint8_t *grh;
	};
	struct send_slot {
		std::uint64_t wr_id;
		bool signaled;
	};
	struct sent {
		int taken = 0;              // WRs taken, or -errno
		std::uint32_t vanished = 0; // bit i: WR i is longer than the MTU
		std::uint32_t posted = 0, refused = 0;
		std::uint64_t bytes = 0;
	};

	// Throws std::system_error if the device refuses.
	verbs_qp(ibv_pd *, ibv_cq *send, ibv_cq *recv, std::uint32_t index, const qp_attr &);

	int to_ready(std::uint8_t port);
	int to_error() { return to(IBV_QPS_ERR, qp_state::error); }
	int to_reset() { return to(IBV_QPS_RESET, qp_state::reset); }
	// Resets by replacing the queue pair with another, of another number.
	int to_another();
	// From here on the device accesses no memory of any WR, and none of them completes.
	void destroy()
	{
		qp_.reset();
		grh_region_.reset();
	}

	// Posts up to 'batch' WRs. Returns the number posted, or -errno if none could be.
	int post_recv(std::span<const recv_wr>, const memory_map &);
	sent post_send(ibv_ah *, const address &, std::span<const send_wr>, const memory_map &,
		       std::uint32_t mtu);

	// The device has completed the WR in this slot.
	const recv_slot &recv_done(std::uint32_t slot);
	const send_slot &send_done(std::uint32_t slot);
	// WRs that the device has, in posting order: this many, up to the next slot, exclusive.
	std::uint32_t recvs_out() const { return recvs_out_; }
	std::uint32_t sends_out() const { return sends_out_; }
	std::uint32_t next_recv() const { return recv_tail_; }
	std::uint32_t next_send() const { return send_tail_; }

	const std::uint32_t index;
	const qp_attr attr;
	std::uint32_t number = 0; // QPN
	qp_state state = qp_state::reset;
	std::uint32_t recvs_owed = 0, sends_owed = 0; // completions not polled yet

private:
	static constexpr std::size_t grh_stride = 64; // a cache line

	verbs_qp_owner create(ibv_pd *, ibv_cq *send, ibv_cq *recv);
	int to(ibv_qp_state theirs, qp_state ours);
	int modify(ibv_qp_attr &, int mask);

	std::vector<std::uint8_t> grh_;
	verbs_mr grh_region_;
	verbs_qp_owner qp_;
	ibv_qp_cap cap_{}; // as requested
	std::uint32_t inline_most_ = 0;
	std::uint32_t recv_mask_, send_mask_;
	std::vector<recv_slot> recvs_;
	std::vector<send_slot> sends_;
	std::uint32_t recv_tail_ = 0, send_tail_ = 0;
	std::uint32_t recvs_out_ = 0, sends_out_ = 0;
};

} // namespace coop::ud
