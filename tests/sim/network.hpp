// SPDX-License-Identifier: MIT
// network.hpp - a lossy fabric: the fate of a datagram between two adapters.
//
// The network copies a datagram when it departs, as an adapter reads memory when it sends and
// not at the post. It may lose, duplicate, delay or damage the datagram, or deliver a copy much
// later; each copy has its own delay. Only the ICRC's outcome is modelled: a damaged packet is
// dropped, except for the few that the scenario lets through. An attacker on the way may forge
// data (scenario.hpp).
#pragma once

#include <memory>
#include <vector>

#include "rpc/fetch/engine.h"
#include "tests/sim/clock.hpp"
#include "tests/sim/scenario.hpp"
#include "tests/sim/tally.hpp"

namespace coop::sim
{

struct packet {
	u8 bytes[COOP_MTU_MAX];
	u32 len, imm, src_qpn, dst_qpn, qkey;
	u16 src, dst;
	bool has_imm, control;
};

class network
{
public:
	network(const scenario &, clock &, dice &, tally &);

	coop_addr address(u16 node, u32 qpn, u32 qkey) const;
	// The node with this address, or -1.
	int node_of(const coop_addr &) const;

	// The packet to fill: source queue pair, payload and immediate. It stays the same until
	// send().
	packet &fresh() { return *pool_[fresh_]; }
	// The fresh packet departs in 'in' microseconds; dst names node, QPN and Q_Key.
	void send(const coop_addr &dst, u64 in);
	packet &at(u64 handle) { return *pool_[handle]; }
	void drop(u64 handle) { free_.push_back(static_cast<u32>(handle)); }

	void cut(u16 a, u16 b, bool off) { cut_[a * nodes_ + b] = cut_[b * nodes_ + a] = off; }
	bool is_cut(u16 a, u16 b) const { return cut_[a * nodes_ + b]; }

private:
	u64 draw_delay();
	u32 take(); // takes a packet from the pool
	void schedule_copy(u64 in);
	void damage(packet &);
	void forge(packet &);

	const scenario &s_;
	clock &clock_;
	dice &rng_;
	tally &t_;
	u32 nodes_;
	std::vector<char> cut_;
	std::vector<packet *> pool_;
	std::vector<std::unique_ptr<packet[]>> slabs_;
	std::vector<u32> free_;
	u32 fresh_;
	std::vector<u8> overheard_; // the forger's copy of some segment
};

} // namespace coop::sim
