// SPDX-License-Identifier: MIT
// registry.hpp - what storage knows of its clients: who has a file open, and who was sent what.
//
// The members of a file are a list without holes; a member's number in it gives its roles. A
// join or a leave changes the roles of a few others, which are published together a little
// later, so for that time nodes act by different views.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "tests/sim/scale/shape.hpp"
#include "tests/sim/scale/trees.hpp"

namespace coop::scale
{

constexpr u32 most_trees = 32, most_hints = 16, most_named = 4;

// What an open reply or a push tells a node of one file. Nodes, not members.
struct roles {
	u32 members = 0; // 1: the node is alone and has no roles
	std::array<place, most_trees> in;
};

class registry
{
public:
	registry(const shape &);

	// Both return at once; the roles of others are dirty until the next publish().
	// A leaf has parents and is nobody's: it is slow, or does not forward.
	void join(u32 file, u32 node, bool leaf = false);
	// gone: not only the file is closed, its pages are lost.
	void leave(u32 file, u32 node, bool gone);
	roles roles_of(u32 file, u32 node) const;
	// Nodes that opened the file last, most recent first.
	std::vector<u32> openers(u32 file, u32 besides) const;
	// The members whose roles changed since the last call: (file, node).
	std::vector<std::pair<u32, u32>> publish();
	bool dirty() const { return !dirty_.empty(); }

	// Storage sends a unit to a node.
	void sent(u32 file, u32 unit, u32 node);
	// Who has it or is about to, and the level of the asker's load with them; none: send it.
	struct redirect {
		std::array<u32, most_named> node;
		u32 n = 0, level = 0;
	};
	redirect redirect_of(u32 file, u32 unit, u32 asker);

private:
	struct holder {
		u32 node;
		u32 depth; // 0: storage sent it; else one more than those it was redirected to
		u32 named; // so often
	};
	struct file {
		std::vector<u32> list, leaves;             // nodes
		std::unordered_map<u32, u32> number, leaf; // node -> place in its list
		std::vector<u32> recent;                   // openers, oldest first
		std::vector<std::vector<holder>> sent;     // by unit
	};
	void touch(u32 file, u32 block);
	void take_out(u32 file, std::vector<u32> &list, std::unordered_map<u32, u32> &number,
		      u32 node);

	const shape &s_;
	scale::trees trees_;
	std::vector<file> f_;
	std::vector<std::pair<u32, u32>> dirty_;
};

} // namespace coop::scale
