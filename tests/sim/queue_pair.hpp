// SPDX-License-Identifier: MIT
// queue_pair.hpp - the receiving half of a UD queue pair, as hardware behaves.
//
// It uses work requests in posting order, whatever arrives. Data is in memory when the datagram
// arrives; the host sees the completion when it polls. A datagram longer than its WR puts the
// queue pair into error; a little later, error completes every remaining WR as flushed, and the
// adapter may still write to a WR in between. RESET forgets WRs without a completion, and for a
// moment the adapter may still write into them: therefore a host must never reset while WRs are
// posted.
//
// Every sge names the cell that says who owns its memory. A write by a WR that no longer owns
// it is reported, and happens: that is its harm.
#pragma once

#include <deque>
#include <vector>

#include "tests/sim/network.hpp"

namespace coop::sim
{

struct sge {
	u8 *addr;
	u32 len;
	const u32 *owner; // nullptr: scrap memory without an owner
	u32 token;        // *owner while the WR may write
};

struct work_request {
	u32 number;
	u32 n_sge;
	sge list[4]; // GRH, one or two fragments, scrap
};

struct completion {
	u32 slot, wr, imm, byte_len, src_qp;
	u16 src;
	bool has_imm, flushed;
};

class queue_pair
{
public:
	enum class state { ready, error };
	enum class outcome { dropped, written, died };

	void open(u32 qpn, u32 qkey)
	{
		qpn_ = qpn;
		qkey_ = qkey;
	}
	u32 qpn() const { return qpn_; }
	u32 qkey() const { return qkey_; }
	state now_in() const { return state_; }
	std::size_t posted() const { return wrs_.size() - used_; }

	void post(const work_request &wr);
	// A datagram for this queue pair: out is set if it was written. trespass counts writes
	// to sges that the WR does not own.
	outcome arrive(const packet &, u64 now, completion &out, u64 &trespass);
	void stop(u64 now);
	// Makes the flush completions visible; returns their number.
	u32 flush();
	// To RTS through RESET. Loses posted WRs, see above; returns their number.
	u32 reset(u64 now);

private:
	static bool scatter(const work_request &, const packet &, u64 &trespass);

	u32 qpn_ = 0, qkey_ = 0;
	state state_ = state::ready;
	u64 stopped_at_ = 0, ghosts_until_ = 0;
	std::vector<work_request> wrs_; // the first used_ of them are done
	std::size_t used_ = 0;
	std::deque<work_request> ghosts_; // RESET forgot these, the adapter has not
};

} // namespace coop::sim
