// SPDX-License-Identifier: MIT
// liar.hpp - the mouth of a node that lies.
//
// The liar is an honest node whose messages are changed on their way out: that
// gives lies which are almost right, the dangerous kind. It holds the cluster's
// key, so every MAC it writes is good. What kinds there are, and which of them
// no protocol can catch, is said in scenario.hpp.
#pragma once

#include <vector>

#include "rpc/wire.h"
#include "tests/sim/network.hpp"

namespace coop::sim
{

class world;

class liar
{
public:
	liar(world &, u16 node, u32 lies);

	bool claims_all() const;
	// A control message is about to leave; false: it does not.
	bool speak(packet &, coop_addr &to);
	// A data segment is about to leave; false: it does not.
	bool send(packet &);
	// A control message came in.
	void overhear(const u8 *bytes, u32 len);
	// Something nobody asked for, to some other node.
	void act(const coop_addr &self);

private:
	struct asked { // a REQUEST that it got
		u32 imm, seg_bits, n_segs;
		coop_addr data;
	};
	bool tells(u32 kind);
	void garble(coop_msg &);
	void say(const coop_msg &, const coop_addr &self, u16 to);
	void nonsense(const coop_addr &self, u16 to);
	void flood(const coop_addr &self, u16 to);
	void spray(const coop_addr &self);

	world &w_;
	u16 node_;
	u32 lies_;
	std::vector<asked> asked_; // the last few, a ring
	u32 next_ = 0;
};

} // namespace coop::sim
