// SPDX-License-Identifier: MIT
// world.hpp - one round: nodes, network and storage from one seed.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tests/sim/network.hpp"
#include "tests/sim/node.hpp"
#include "tests/sim/oracle.hpp"
#include "tests/sim/store.hpp"

namespace coop::sim
{

// Besides the engine's own flags. Nodes claim to keep copies, but send from memory.
constexpr u32 break_copies = 1u << 30;
// Nodes sign each arriving message again, so that no MAC is ever wrong.
constexpr u32 break_mac = 1u << 31;

class world
{
public:
	// test_flags: enum coop_engine_flag, the COOP_F_TEST_ ones.
	world(const scenario &, u64 seed, u32 test_flags);
	~world();
	// Plays the round to its end and returns its tally.
	const tally &run();

	// Shared by the nodes.
	const scenario &shape() const { return s_; }
	u32 test_flags() const { return test_flags_; }
	u64 seed() const { return seed_; }
	dice &rng() { return rng_; }
	sim::clock &time() { return clock_; }
	network &net() { return net_; }
	sim::oracle &truth() { return truth_; }
	arena &memory() { return arena_; }
	tally &counts() { return t_; }
	const u8 *key() const { return key_; }

	node &at(u32 n) { return *nodes_[n]; }
	u32 nodes() const { return s_.nodes; }
	// A reader asks before it reads; false: the round has no more reads.
	bool may_read();
	bool draining() const { return draining_; }
	// Asks before a liar sends something unrequested. Reads pay for it: a flood that feeds
	// on its own answers would have no end.
	bool may_pester();
	// Storage's memory of who opened what: most recent first.
	void opened(content, u16 node);
	const std::vector<u16> &openers(content c) { return openers_[{c.file, c.edition}]; }
	void edit();

	void wrong(const std::string &text) { t_.note(t_.wrong, text); }
	void stuck(const std::string &text) { t_.note(t_.stuck, text); }
	void broken(const std::string &text) { t_.note(t_.broken, text); }

private:
	void on_fault(u64 which);
	void restart(u16 n);
	void rekey();
	void schedule_faults();

	scenario s_;
	u64 seed_;
	u32 test_flags_;
	dice rng_;
	tally t_;
	sim::clock clock_;
	network net_;
	sim::oracle truth_;
	arena arena_;
	u8 key_[16];
	std::vector<std::unique_ptr<node>> nodes_;
	std::map<std::pair<u32, u32>, std::vector<u16>> openers_;
	u32 tries_left_, pester_left_;
	bool draining_ = false;
};

} // namespace coop::sim
