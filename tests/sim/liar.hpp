// SPDX-License-Identifier: MIT
// liar.hpp - the mouth of a node that lies.
//
// The liar is an honest node whose messages are changed on their way out: that
// gives lies which are almost right, the dangerous kind. It holds the cluster's
// key, so every MAC it writes is good. What kinds there are, and which of them
// no protocol can catch, is said in scenario.hpp.
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
	// A request is looked up: shall something else be served in its place?
	bool serves_other() { return tells(lie_other); }
	// A control message is about to leave; false: it does not. other: what was served where a
	// COMMIT of its serve names what was asked for, or null.
	bool speak(packet &, coop_addr &to, const content *other);
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
	void post(packet &, const coop_addr &self, u16 to);
	void nonsense(const coop_addr &self, u16 to);
	void flood(const coop_addr &self, u16 to);
	void spray(const coop_addr &self);

	world &w_;
	u16 node_;
	u32 lies_;
	std::vector<asked> asked_; // the last few, a ring
	u32 next_ = 0;
	std::map<std::pair<u64, u32>, content> others_; // by id and imm: a COMMIT is sent again
};

} // namespace coop::sim
