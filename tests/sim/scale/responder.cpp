// SPDX-License-Identifier: MIT
// responder.cpp - requests of peers: what is here, what is on its way, what this node loads for
// them.
//
// A request waits only for a load of a smaller level. So waits cannot close a circle, whatever
// roles the nodes have had meanwhile.
#include <algorithm>
#include <bit>

#include "tests/sim/scale/node.hpp"
#include "tests/sim/scale/world.hpp"

namespace coop::scale
{

namespace
{

// Ordinals of a request for 'asked' that stand for 'pages'; both are bits of the unit.
u64 ordinals(u8 asked, u8 pages)
{
	u64 out = 0;
	for (u32 i = 0; asked; ++i, asked &= static_cast<u8>(asked - 1)) {
		if (pages >> std::countr_zero(asked) & 1)
			out |= u64{1} << i;
	}
	return out;
}

constexpr u32 relay_least_us = 2000; // a shorter wait would end before the load

} // namespace

void node::lookup(const coop_ev &ev)
{
	const u32 file = static_cast<u32>(ev.fid.lo - 1),
		  unit = static_cast<u32>(ev.ext[0].index / unit_pages_);
	const u16 index = free_serve_;
	if (index == none || file >= w_.is().files || unit >= w_.is().units) {
		w_.counts().note("a request for nothing");
		return coop_engine_lookup_done(engine_, ev.id, 0, 0, 0, now_us());
	}
	const u32 asker = fabric::node_of(ev.from);
	(void)peer(asker); // it knows us, so storage has told us of it
	serve &s = serves_[index];
	free_serve_ = s.next;
	s.id = ev.id;
	s.file = file;
	s.unit = unit;
	s.level = ev.level;
	s.load = nobody;
	s.next = none;
	s.coming = 0;
	// The bits of ev.pages are ordinals over the extents. A request for some of its pages only
	// repeats the plan of the first one, so all pages of the extents keep their ordinals.
	s.asked = 0;
	for (u32 x = 0; x < ev.n_ext; ++x) {
		for (u32 i = 0; i < ev.ext[x].count; ++i)
			s.asked |= static_cast<u8>(1u << (ev.ext[x].index + i) % unit_pages_);
	}
	const u8 here = have(file, unit) & s.asked, lacks = s.asked & static_cast<u8>(~here);
	const u64 size = u64{w_.is().units} * unit_pages_ << 12;
	if (lacks && ev.level && w_.is().waiting) {
		u32 l = find(file, unit);
		if (l == nobody && ev.load)
			l = relay(file, unit, ev.level, ev.budget_us);
		const u8 here_now = have(file, unit);
		if (l != nobody && l < loads_.size() && loads_[l].from != via::none &&
		    (loads_[l].level < ev.level || !w_.is().levels))
			s.coming = s.asked & loads_[l].want & static_cast<u8>(~here_now);
		if (s.coming) {
			note_wait(asker, file, unit, ev.level);
			s.load = l;
			attach(s, index);
			return coop_engine_lookup_wait(engine_, ev.id, ordinals(s.asked, here),
						       ordinals(s.asked, s.coming), size, index,
						       now_us());
		}
	}
	coop_engine_lookup_done(engine_, ev.id, ordinals(s.asked, here), size, index, now_us());
}

// Starts a load on behalf of a peer; nobody: this node does not.
u32 node::relay(u32 file, u32 unit, u32 level, u32 budget_us)
{
	const open_file *f = opened(file);
	const u32 least = relay_least_us;
	if (!f || budget_us < least || level < 2)
		return nobody;
	const u64 until = now_us() + budget_us - budget_us / 8 - least / 4;
	const u32 l = start_load(file, unit, std::min(own_level(f, unit), level - 1), true, until);
	w_.counts().relays_refused += l == nobody;
	return l;
}

// The asker's load now waits here. The world knows all waits and sees a circle.
void node::note_wait(u32 asker, u32 file, u32 unit, u32 level)
{
	if (!w_.at(asker).loads(file, unit, level))
		return; // the request is older than that load
	if (w_.closes_circle(asker, number_, file, unit)) {
		++w_.counts().circles;
		w_.counts().note("nodes wait for each other in a circle: node " +
				 std::to_string(asker) + " at node " + std::to_string(number_));
	}
	w_.at(asker).wait_at(number_, file, unit);
}

// Among those that wait for a load, the deepest in the tree are told first: most nodes are behind
// them.
void node::attach(serve &s, u32 index)
{
	u16 *link = &loads_[s.load].first;
	while (*link != none && (!w_.is().deepest_first || serves_[*link].level >= s.level))
		link = &serves_[*link].next;
	s.next = *link;
	*link = static_cast<u16>(index);
}

void node::detach(serve &s)
{
	if (s.load == nobody)
		return;
	u16 *link = &loads_[s.load].first;
	while (*link != none && &serves_[*link] != &s)
		link = &serves_[*link].next;
	if (*link != none)
		*link = s.next;
	s.load = nobody;
	s.next = none;
}

void node::tell(load &l, u8 arrived, u8 lost)
{
	u16 *link = &l.first;
	while (*link != none) {
		serve &s = serves_[*link];
		const u8 good = arrived & s.coming, bad = lost & s.coming;
		s.coming &= static_cast<u8>(~(good | bad));
		const u32 id = s.id;
		if (!s.coming) {
			*link = s.next;
			s.load = nobody;
			s.next = none;
		} else {
			link = &s.next;
		}
		if (good || bad)
			coop_engine_lookup_more(engine_, id, ordinals(s.asked, good),
						ordinals(s.asked, bad), now_us());
	}
}

void node::serve_end(const coop_ev &ev)
{
	const u32 index = static_cast<u32>(ev.cookie);
	if (index >= serves_.size() || serves_[index].id != ev.id)
		return w_.counts().note("the end of a serve that is not there");
	serve &s = serves_[index];
	detach(s);
	s.id = 0;
	s.next = free_serve_;
	free_serve_ = static_cast<u16>(index);
}

} // namespace coop::scale
