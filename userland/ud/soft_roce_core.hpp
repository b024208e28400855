// SPDX-License-Identifier: MIT
// soft_roce_core.hpp - state that the sending and receiving halves of a soft RoCE
// endpoint share: its name on the fabric, its queue pairs, its completions.
//
// Queue pairs are numbered from a random multiple of max_qps, constant for the
// endpoint's life, unless its owner chose the first number. So a packet to an earlier
// process with this address finds no queue pair.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "userland/ud/icrc.hpp"
#include "userland/ud/soft_roce_qp.hpp"

namespace coop::ud
{

struct soft_roce_core {
	static constexpr std::uint32_t index_bits = 12;
	static constexpr std::uint32_t max_qps = 1u << index_bits;
	static constexpr std::uint32_t max_sge = 16;
	static constexpr std::uint32_t max_wr = 16384; // per queue pair and direction

	std::array<std::uint8_t, 16> gid; // IPv4: mapped
	bool v6;
	std::uint32_t mtu;
	std::uint32_t first_qpn;
	std::uint16_t port = roce_port; // UDP; if another, LIDs carry the peers' ports
	bool any_memory = false;        // work requests may name unregistered memory
	std::vector<std::unique_ptr<queue_pair>> qps;
	completion_ring done;
	endpoint_stats stats{};

	queue_pair *find(std::uint32_t qpn) const
	{
		const std::uint32_t index = qpn - first_qpn; // wraps to a huge index below it
		return index < qps.size() ? qps[index].get() : nullptr;
	}

	completion &complete_recv(const queue_pair &qp, std::uint64_t wr_id, wc_status status)
	{
		return done.push(qp.index, wr_id, status, true);
	}

	void complete_send(queue_pair &qp, std::uint64_t wr_id, wc_status status)
	{
		done.push(qp.index, wr_id, status, false);
		qp.sends_owed++;
	}

	// Enters the error state: posted WRs come back flushed.
	void kill(queue_pair &qp)
	{
		qp.state = qp_state::error;
		for (; qp.posted(); qp.consume())
			complete_recv(qp, qp.wr(0).wr_id, wc_status::flushed);
	}
};

} // namespace coop::ud
