// SPDX-License-Identifier: MIT
// world.cpp - the round: boot, events, faults, end.
#include "tests/sim/world.hpp"

#include <algorithm>
#include <string>

namespace coop::sim
{

namespace
{

constexpr u64 rest_us = 20000000; // after the last read: long enough for everything to end
constexpr u32 hints = COOP_MAX_HINTS;
constexpr u32 reads_a_fetch = 10; // ends a round that has no peers left to fetch from

// Many times the capacity of queues and windows, so that a flood overflows them.
constexpr u32 pester_a_read = 40, pester_most = 400;

enum fault_kind : u64 { fault_crash, fault_partition, fault_heal, fault_rekey };

} // namespace

world::world(const scenario &s, u64 seed, u32 test_flags) :
	s_(s),
	seed_(seed),
	test_flags_(test_flags),
	rng_(mix(seed, 2)),
	net_(s_, clock_, rng_, t_),
	truth_(seed, s.files, 1u << s.page_shift, s.max_pages),
	arena_(s.block_pages << s.page_shift),
	tries_left_(reads_a_fetch * s.fetches),
	pester_left_(pester_most)
{
	for (u8 &k : key_)
		k = s.files & 1 ? static_cast<u8>(rng_.next()) : 0;
	for (u32 i = 0; i < s.nodes; ++i) {
		// The last nodes lie, the first ones are slow; node 0 never lies.
		const u32 lies = i >= s.nodes - s.liars ? s.lies : 0;
		const u32 poll = i < s.slow_nodes ? s.slow_us : s.poll_us;
		nodes_.push_back(std::make_unique<node>(*this, static_cast<u16>(i), lies, poll));
	}
}

world::~world()
{
	nodes_.clear();
}

bool world::may_read()
{
	if (!tries_left_ || t_.fetches >= s_.fetches || !t_.clean()) {
		draining_ = true;
		return false;
	}
	--tries_left_;
	pester_left_ = std::min(pester_left_ + pester_a_read, pester_most);
	return true;
}

bool world::may_pester()
{
	if (!pester_left_ || draining_)
		return false;
	--pester_left_;
	return true;
}

void world::opened(content c, u16 n)
{
	auto &list = openers_[{c.file, c.edition}];
	if (s_.dead_peer && list.empty())
		list.push_back(0); // the dead node has read everything
	list.erase(std::remove(list.begin(), list.end(), n), list.end());
	list.insert(list.begin(), n);
	if (list.size() > hints)
		list.pop_back();
}

void world::edit()
{
	const content old = truth_.latest(rng_.below(truth_.files()));
	truth_.edit(old.file);
	++t_.edits;
	for (auto &n : nodes_)
		n->rewrite(old);
}

void world::schedule_faults()
{
	if (s_.crash_every_us)
		clock_.after(rng_.below(2 * s_.crash_every_us), what::fault, 0, 0, fault_crash);
	if (s_.partition_every_us)
		clock_.after(rng_.below(2 * s_.partition_every_us), what::fault, 0, 0,
			     fault_partition);
	if (s_.rekey_every_us)
		clock_.after(rng_.below(2 * s_.rekey_every_us), what::fault, 0, 0, fault_rekey);
}

void world::on_fault(u64 which)
{
	const u16 a = static_cast<u16>(rng_.below(s_.nodes)),
		  b = static_cast<u16>(rng_.below(s_.nodes));
	switch (static_cast<fault_kind>(which & 3)) {
	case fault_crash:
		if (draining_)
			return;
		clock_.after(rng_.below(2 * s_.crash_every_us), what::fault, 0, 0, fault_crash);
		if (!at(a).alive())
			return;
		++t_.crashes;
		at(a).die();
		clock_.after(1 + rng_.below(rng_.coin() ? 200 : 30000), what::restart, a, 0, 0);
		// Storage notices now, later, or only after the node is back.
		for (u32 n = 0; n < s_.nodes && rng_.coin(); ++n)
			clock_.after(rng_.below(20000), what::news, static_cast<u16>(n),
				     at(n).life(), a);
		return;
	case fault_partition:
		if (draining_)
			return;
		clock_.after(rng_.below(2 * s_.partition_every_us), what::fault, 0, 0,
			     fault_partition);
		if (a == b || net_.is_cut(a, b))
			return;
		++t_.partitions;
		net_.cut(a, b, true);
		clock_.after(rng_.below(100000), what::fault, 0, 0,
			     fault_heal | u64{a} << 8 | u64{b} << 24);
		return;
	case fault_rekey:
		if (draining_)
			return;
		clock_.after(rng_.below(2 * s_.rekey_every_us), what::fault, 0, 0, fault_rekey);
		return rekey();
	case fault_heal:
		net_.cut(static_cast<u16>(which >> 8), static_cast<u16>(which >> 24), false);
		return;
	}
}

// Nodes connect to the new run one after the other.
void world::rekey()
{
	for (u8 &k : key_)
		k = static_cast<u8>(rng_.next());
	++t_.rekeys;
	for (u16 n = 0; n < s_.nodes; ++n)
		if (at(n).alive())
			clock_.after(rng_.below(rng_.coin() ? 200 : 30000), what::rekey, n,
				     at(n).life(), 0);
}

void world::restart(u16 n)
{
	at(n).boot();
	for (u16 m = 0; m < s_.nodes; ++m) {
		at(n).hear(m);
		if (at(m).alive())
			clock_.after(rng_.below(5000), what::news, m, at(m).life(), n);
	}
	at(n).start_readers();
}

const tally &world::run()
{
	t_.rounds = 1;
	// If the scenario has a dead node, it is node 0.
	for (u32 i = s_.dead_peer; i < s_.nodes; ++i)
		at(i).boot();
	for (u32 i = s_.dead_peer; i < s_.nodes; ++i) {
		for (u32 m = 0; m < s_.nodes; ++m)
			at(i).hear(static_cast<u16>(m));
		at(i).start_readers();
	}
	schedule_faults();
	u64 rest_at = ~u64{0};
	event e;
	while (clock_.next(e)) {
		++t_.events;
		if (draining_ && rest_at == ~u64{0})
			rest_at = e.at + rest_us;
		if (e.at > rest_at)
			break;
		switch (e.kind) {
		case what::arrive:
			at(net_.at(e.arg).dst).arrive(net_.at(e.arg));
			net_.drop(e.arg);
			break;
		case what::fault:
			on_fault(e.arg);
			break;
		case what::restart:
			restart(e.node);
			break;
		default:
			at(e.node).run(e);
		}
		if (t_.broken > 100 || t_.wrong > 1000)
			break;
	}
	if (!t_.clean())
		return t_; // after a violation nothing is at rest
	for (auto &n : nodes_)
		n->judge_rest();
	return t_;
}

} // namespace coop::sim
