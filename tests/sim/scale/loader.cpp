// SPDX-License-Identifier: MIT
// loader.cpp - loads: from whom a node takes a unit that it lacks.
//
// From its parent of the unit's colour, then the alternate, then storage; a root asks storage at
// once. A load has a level, fixed when it starts: that of the node in the colour, or less for a
// load on behalf of a peer. It only decreases: a load that storage answers is waited for by all.
#include <algorithm>
#include <bit>

#include "tests/sim/scale/node.hpp"
#include "tests/sim/scale/world.hpp"

namespace coop::scale
{

namespace
{

constexpr u32 no_role = 0xffff0000; // level of a load of a node without roles
constexpr u32 level_sent = 0, level_asked = 1;
constexpr u32 page_shift = 12;
constexpr u32 redirect_us = 100000; // that a node named by storage is waited for
constexpr u64 never = ~u64{0};

u64 key_of(u32 file, u32 unit)
{
	return u64{file} << 32 | unit;
}

} // namespace

u32 node::find(u32 file, u32 unit) const
{
	const u64 key = key_of(file, unit);
	const auto it = std::find(keys_.begin(), keys_.end(), key);
	return it == keys_.end() ? nobody : static_cast<u32>(it - keys_.begin());
}

u32 node::waits_at(u32 file, u32 unit) const
{
	const u32 i = find(file, unit);
	return i == nobody || loads_[i].from != via::peers ? nobody : loads_[i].waits_at;
}

bool node::loads(u32 file, u32 unit, u32 level) const
{
	const u32 i = find(file, unit);
	return i != nobody && loads_[i].from == via::peers && loads_[i].level == level;
}

void node::wait_at(u32 at, u32 file, u32 unit)
{
	loads_[find(file, unit)].waits_at = at;
}

u32 node::unit_of(u32 h) const
{
	const load *l = const_cast<node *>(this)->of(h);
	return l ? l->file * w_.is().units + l->unit : nobody;
}

u32 node::handle(u32 index) const
{
	return u32{loads_[index].generation} << 16 | index;
}

node::load *node::of(u32 h)
{
	load *l = (h & 0xffff) < loads_.size() ? &loads_[h & 0xffff] : nullptr;
	return l && l->from != via::none && l->generation == h >> 16 ? l : nullptr;
}

const node::open_file *node::opened(u32 file) const
{
	for (const open_file &f : open_) {
		if (f.file == file)
			return &f;
	}
	return nullptr;
}

node::open_file *node::opened(u32 file)
{
	return const_cast<open_file *>(static_cast<const node *>(this)->opened(file));
}

u32 node::own_level(const open_file *f, u32 unit) const
{
	return f && f->r.members > 1 ? f->r.in[w_.colour(f->file, unit)].level : no_role;
}

// The index of the new load; nobody: there is no room.
u32 node::start_load(u32 file, u32 unit, u32 level, bool relay, u64 until_us)
{
	if (free_loads_.empty() || (relay && relays_ >= w_.is().relays))
		return nobody;
	const u32 index = free_loads_.back();
	free_loads_.pop_back();
	keys_[index] = key_of(file, unit);
	load &l = loads_[index];
	l.file = file;
	l.unit = unit;
	l.level = level;
	l.fetch = COOP_NONE;
	l.waits_at = nobody;
	l.since = w_.time().now();
	l.until_us = until_us;
	l.first = none;
	l.want = all() & static_cast<u8>(~have(file, unit));
	l.got = 0;
	l.asked = 0;
	l.from = via::peers;
	l.reader = !relay;
	l.relay = relay;
	l.insist = false;
	l.bytes.fill(0);
	relays_ += relay;
	wanted_ += !relay;
	++w_.counts().loads;
	w_.counts().relays += relay;

	const open_file *f = opened(file);
	const bool tree = w_.is().coop && f && f->r.members > 1;
	if (tree ? !ask_parents(l, index, *f) : !f || !ask_hints(l, index, f->hints, 0))
		ask_storage(l, index, !w_.is().redirect);
	return index;
}

bool node::submit(load &l, u32 index, coop_fetch_req &req)
{
	const u64 now = now_us();
	if (l.until_us <= now)
		return false;
	l.asked = l.want & static_cast<u8>(~l.got);
	req.cookie = handle(index);
	req.fid = {1, l.file + u64{1}};
	req.version = 1;
	req.size = u64{w_.is().units} * unit_pages_ << page_shift;
	req.budget_us = static_cast<u32>(l.until_us - now);
	for (u32 i = 0; i < unit_pages_; ++i) {
		if (l.asked >> i & 1)
			coop_fetch_req_add(&req, l.unit * unit_pages_ + i, 1);
	}
	l.from = via::peers;
	return !coop_engine_submit(engine_, &req, now, &l.fetch);
}

bool node::ask_parents(load &l, u32 index, const open_file &f)
{
	const u32 colour = w_.colour(l.file, l.unit);
	const place &p = f.r.in[colour];
	if (p.parent == nobody)
		return false;
	coop_fetch_req req{};
	u32 first = p.parent, second = p.alternate;
	if (second != nobody && better_second(f, colour)) {
		std::swap(first, second);
		++w_.counts().swaps;
	}
	for (u32 n : {first, second}) {
		const u32 id = n == nobody ? COOP_NONE : peer(n);
		if (id != COOP_NONE)
			req.hints[req.n_hints++] = id;
	}
	req.n_parents = req.n_hints;
	req.level = l.level;
	req.load = true;
	req.relay = l.relay;
	return submit(l, index, req);
}

bool node::ask_hints(load &l, u32 index, const std::vector<u32> &nodes, u32 level)
{
	coop_fetch_req req{};
	for (u32 n : nodes) {
		const u32 id = n == number_ || req.n_hints == COOP_MAX_HINTS ? COOP_NONE : peer(n);
		if (id != COOP_NONE)
			req.hints[req.n_hints++] = id;
	}
	if (!req.n_hints)
		return false;
	req.level = level;
	req.n_parents = level ? req.n_hints : 0;
	req.relay = l.relay;
	return submit(l, index, req);
}

void node::ask_storage(load &l, u32 index, bool insist)
{
	l.from = via::storage;
	l.waits_at = nobody;
	l.insist = insist;
	l.level = std::min(l.level, insist ? level_sent : level_asked);
	const u32 pages = l.want & static_cast<u8>(~l.got);
	w_.time().after(w_.is().delay_ns + w_.is().host_ns, what::read, number_, life_,
			handle(index), pages | (insist ? 0 : 1u << 16));
}

// ---- answers ---------------------------------------------------------------------------

void node::fetched(const coop_ev &ev)
{
	load *l = of(static_cast<u32>(ev.cookie));
	const u64 now = now_us();
	if (!l || l->fetch != ev.id) {
		w_.counts().note("the end of a fetch that no load waits for");
		return coop_engine_fetch_release(engine_, ev.id, now);
	}
	const u32 index = static_cast<u32>(l - loads_.data());
	u8 good = 0, left = l->asked;
	for (u32 i = 0; left; ++i, left &= static_cast<u8>(left - 1)) {
		const u32 page = static_cast<u32>(std::countr_zero(left));
		if (!(ev.pages >> i & 1))
			continue;
		good |= static_cast<u8>(1u << page);
		if (l->bytes[page] != tag(l->file, l->unit, page)) {
			++w_.counts().wrong;
			w_.counts().note("node " + std::to_string(number_) +
					 " accepted a wrong page");
		}
	}
	measure(*l, ev);
	l->fetch = COOP_NONE;
	coop_engine_fetch_release(engine_, ev.id, now);
	w_.counts().pages_from_peers += static_cast<u32>(std::popcount(good));
	const u32 h = handle(index);
	landed(*l, good);
	l = of(h);
	if (!l)
		return;
	// A relay whose time is nearly over leaves the rest to those who asked.
	if (!l->reader && l->until_us < now + w_.is().delay_ns / 1000 + 1000) {
		++w_.counts().relays_lost;
		return ended(index);
	}
	++w_.counts().fell_to_storage;
	ask_storage(*l, index, l->level < COOP_LEVEL_ROOT || !w_.is().redirect);
}

void node::stored(u32 h, u8 pages)
{
	load *l = of(h);
	if (l && l->from == via::storage)
		landed(*l, pages);
}

void node::redirected(u32 h, u32 names)
{
	const registry::redirect to = w_.named[names];
	w_.named.give(names);
	load *l = of(h);
	if (!l || l->from != via::storage)
		return;
	const u32 index = static_cast<u32>(l - loads_.data());
	l->level = to.level;
	l->until_us = now_us() + redirect_us;
	if (!ask_hints(*l, index, {to.node.begin(), to.node.begin() + to.n}, to.level))
		ask_storage(*l, index, true);
}

void node::landed(load &l, u8 pages)
{
	const u32 index = static_cast<u32>(&l - loads_.data());
	pages &= static_cast<u8>(~l.got);
	l.got |= pages;
	add(l.file, l.unit, pages);
	if (pages)
		tell(l, pages, 0);
	if (l.got == l.want)
		ended(index);
}

// The load brings nothing more.
void node::ended(u32 index)
{
	load &l = loads_[index];
	const bool reader = l.reader;
	wanted_ -= reader;
	tell(l, 0, l.want & static_cast<u8>(~l.got));
	relays_ -= l.relay;
	if (reader)
		longest_wait_ = std::max(longest_wait_, w_.time().now() - l.since);
	l.from = via::none;
	++l.generation;
	keys_[index] = never;
	free_loads_.push_back(index);
	if (reader)
		read_on();
}

// ---- slow parents ------------------------------------------------------------------------

// Mean time that a parent took, in steps of an eighth.
void node::measure(load &l, const coop_ev &ev)
{
	open_file *f = opened(l.file);
	if (!f || f->r.members < 2 || !w_.is().swap)
		return;
	const u32 colour = w_.colour(l.file, l.unit);
	const place &p = f->r.in[colour];
	u32 from = nobody;
	for (const auto &[n, id] : peers_) {
		if (id == ev.peer)
			from = n;
	}
	if (from != p.parent && from != p.alternate)
		return;
	u32 &mean = f->took_us[colour][from == p.alternate];
	mean = mean ? (7 * mean + ev.elapsed_us) / 8 + 1 : ev.elapsed_us + 1;
}

// Is the alternate the better choice? It is tried where the parent takes much longer than the
// parents of other colours do, and stays the choice while it is faster.
bool node::better_second(const open_file &f, u32 colour) const
{
	const auto &took = f.took_us[colour];
	if (!w_.is().swap || !took[0])
		return false;
	if (took[1])
		return took[1] < took[0];
	std::array<u32, most_trees> all_took;
	u32 n = 0;
	for (u32 c = 0; c < w_.is().trees; ++c) {
		if (f.took_us[c][0])
			all_took[n++] = f.took_us[c][0];
	}
	if (n < 4)
		return false;
	std::nth_element(all_took.begin(), all_took.begin() + n / 2, all_took.begin() + n);
	return took[0] > 3 * all_took[n / 2];
}

} // namespace coop::scale
