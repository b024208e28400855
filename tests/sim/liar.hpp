// SPDX-License-Identifier: MIT
// liar.hpp - what a lying node sends.
//
// The liar is an honest node whose messages change on their way out: that gives lies that are
// almost right, the dangerous kind. It holds the cluster's key, so every MAC it writes is good.
// scenario.hpp lists the kinds of lies, and those that no protocol can catch.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "rpc/fetch/wire.h"
#include "tests/sim/network.hpp"
#include "tests/sim/oracle.hpp"

namespace coop::sim
{

class world;

class liar
{
public:
	liar(world &, u16 node, u32 lies);

	bool claims_all() const;
	// At the lookup of a request: true to serve something else instead.
	bool serves_other() { return tells(lie_other); }
	// Before a control message leaves; false drops it. other: the served content if the
	// COMMIT of the serve names the requested one, or null.
	bool speak(packet &, coop_addr &to, const content *other);
	// Before a data segment leaves; false drops it.
	bool send(packet &);
	// Called for each arriving control message.
	void overhear(const u8 *bytes, u32 len);
	// Sends something unrequested to another node.
	void act(const coop_addr &self);

private:
	struct asked { // a REQUEST that the node got
		u32 imm, seg_bits, n_segs;
		coop_addr data;
	};
	bool tells(u32 kind);
	void garble(coop_msg &);
	void post(packet &, const coop_addr &self, u16 to);
	void nonsense(const coop_addr &self, u16 to);
	void flood(const coop_addr &self, u16 to);
	void spray(const coop_addr &self);

	world &w_;
	u16 node_;
	u32 lies_;
	std::vector<asked> asked_; // a ring of the last few
	u32 next_ = 0;
	std::map<std::pair<u64, u32>, content> others_; // by id and imm: a COMMIT may be repeated
};

} // namespace coop::sim
