// SPDX-License-Identifier: MIT
// network.hpp - a lossy fabric: what happens to a datagram between two adapters.
//
// A datagram is copied when it departs, as an adapter reads memory when it
// sends and not when it is told to. It may be lost, doubled, held back, damaged
// or kept and delivered again much later; each copy chooses its own delay. The
// ICRC is modelled by its outcome: a damaged packet is dropped, but for the few
// that the scenario lets through. Somebody on the way may forge data (scenario.hpp).
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
	// The node that an address leads to, or -1.
	int node_of(const coop_addr &) const;

	// The packet to fill: source queue pair, payload and immediate. The same one until it is
	// sent.
	packet &fresh() { return *pool_[fresh_]; }
	// 'in' microseconds from now the fresh packet departs; dst names node, QPN and Q_Key.
	void send(const coop_addr &dst, u64 in);
	packet &at(u64 handle) { return *pool_[handle]; }
	void drop(u64 handle) { free_.push_back(static_cast<u32>(handle)); }

	void cut(u16 a, u16 b, bool off) { cut_[a * nodes_ + b] = cut_[b * nodes_ + a] = off; }
	bool is_cut(u16 a, u16 b) const { return cut_[a * nodes_ + b]; }

private:
	u64 draw_delay();
	u32 take(); // a packet of the pool
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
	std::vector<u8> overheard_; // by the forger: bytes of some segment
};

} // namespace coop::sim
