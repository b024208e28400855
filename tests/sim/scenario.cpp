// SPDX-License-Identifier: MIT
// scenario.cpp - drawing a world from a seed.
//
// All scenarios draw their shapes alike; a name adds faults and habits. Page and segment counts
// lean to the small side: most protocol errors occur at edges, and small fetches reach more
// edges per second of computing.
#include "tests/sim/scenario.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "rpc/fetch/wire.h"

namespace coop::sim
{

namespace
{

u32 pick(dice &r, std::initializer_list<u32> of)
{
	return *(of.begin() + r.below(static_cast<u32>(of.size())));
}

u32 draw_mtu(dice &r)
{
	if (r.below(4))
		return pick(r, {256, 512, 1024, 1024, 2048, 4096, 4096, 4096});
	return 4 * r.between(COOP_MTU_MIN / 4, COOP_MTU_MAX / 4);
}

scenario draw_shape(dice &r)
{
	scenario s{};
	s.page_shift = pick(r, {12, 12, 12, 12, 13, 14, 16});
	s.mtu = draw_mtu(r);
	if (s.page_shift == 16 && r.below(2))
		s.mtu = 4096;
	s.packed = r.coin();
	const u32 sums = r.below(3);
	s.page_crc = sums == 0;
	s.page_tag = sums == 1;
	s.by_lid = r.below(5) == 0;
	s.nodes = r.below(4) ? r.between(2, 5) : r.between(2, 16);
	s.files = r.between(1, 6);
	const u32 segs_a_page = ((1u << s.page_shift) + s.mtu - 1) / s.mtu;
	const u32 most = std::min(coop_wire_max_pages(s.mtu, s.page_tag),
				  coop_wire_max_segs(s.mtu) / segs_a_page);
	s.block_pages = std::min(most, pick(r, {1, 1, 2, 4, 4, 8, 8, 16, 64}));
	// A chunk is 1 MiB: blocks must not straddle chunks.
	s.block_pages = std::min(s.block_pages, (1u << 20) >> s.page_shift);
	if (r.below(4)) { // mostly small ones
		while (s.block_pages > 1 && s.block_pages * segs_a_page > 48)
			s.block_pages /= 2;
	}
	while (s.block_pages & (s.block_pages - 1))
		s.block_pages &= s.block_pages - 1;
	s.max_pages = s.block_pages * r.between(1, 12) + r.below(s.block_pages);
	s.store_blocks = r.between(3, 24);
	s.readers = r.between(1, 6);
	s.max_fetches = pick(r, {1, 2, 4, 8, 16});
	s.max_serves = pick(r, {1, 2, 4, 16});
	s.max_queued = pick(r, {1, 4, 16});
	const u32 block_bytes = s.block_pages << s.page_shift;
	s.window_bytes = block_bytes * r.between(1, 4) + r.below(block_bytes);
	s.peer_timeout_us = pick(r, {10000, 20000, 50000});
	s.serve_bytes_s = r.below(8) ? 0 : block_bytes * r.between(50, 5000);
	s.fetches = 200;
	s.think_us = pick(r, {10, 200, 2000});
	s.net.delay_us = pick(r, {2, 10, 30, 100, 400});
	s.poll_us = pick(r, {1, 10, 100});
	s.lookup_us = pick(r, {1, 20, 300});
	s.by_hand_ppm = pick(r, {0, 0, 300000, 1000000});
	s.same_qpns = r.coin();
	s.sole = r.below(4) == 0;
	return s;
}

using habit = void (*)(scenario &, dice &);

void clean(scenario &, dice &) {}
void loss(scenario &s, dice &r)
{
	s.net.loss_ppm = pick(r, {1000, 10000, 10000, 50000, 200000});
}
void duplicate(scenario &s, dice &r)
{
	s.net.duplicate_ppm = pick(r, {1000, 10000, 10000, 100000});
}
// delay 1 ms +- 1 ms, as in the design's table
void reorder(scenario &s, dice &)
{
	s.net.delay_us = s.net.jitter_us = 1000;
}
// delay 6 ms +- 6 ms, loss 1 %, duplicate 1 %
void wild(scenario &s, dice &)
{
	s.net.delay_us = s.net.jitter_us = 6000;
	s.net.loss_ppm = s.net.duplicate_ppm = 10000;
}
// Copies of packets arrive after their fetch ended, in queue pairs that serve another fetch.
void stale(scenario &s, dice &r)
{
	s.net.stale_ppm = pick(r, {5000, 50000, 200000});
	s.net.stale_us = pick(r, {500, 5000, 50000, 200000});
	s.net.loss_ppm = pick(r, {0, 10000, 50000});
	s.net.late_ppm = pick(r, {0, 10000});
	s.net.late_us = 60000;
	s.max_fetches = pick(r, {1, 1, 2});
	s.max_serves = pick(r, {1, 1, 2, 4});
}
void corrupt(scenario &s, dice &r)
{
	s.net.corrupt_ppm = 20000;
	s.net.unseen_ppm = pick(r, {1000, 20000, 100000});
	s.page_crc = r.coin();
	s.net.unseen_data = s.page_crc || s.page_tag;
}
void crash(scenario &s, dice &r)
{
	s.crash_every_us = pick(r, {10000, 50000, 200000});
	s.net.stale_ppm = pick(r, {0, 20000});
	s.net.stale_us = 40000;
	s.nodes = std::max(s.nodes, 3u);
}
void partition(scenario &s, dice &r)
{
	s.partition_every_us = pick(r, {20000, 100000});
	s.nodes = std::max(s.nodes, 3u);
}
void rekey(scenario &s, dice &r)
{
	s.rekey_every_us = pick(r, {3000, 20000, 100000});
	s.lookup_us = pick(r, {20, 1000, 5000});
	s.net.stale_ppm = pick(r, {0, 20000});
	s.net.stale_us = 40000;
}
void slow(scenario &s, dice &r)
{
	s.slow_nodes = r.between(1, s.nodes / 2 ? s.nodes / 2 : 1);
	s.slow_us = pick(r, {2000, 20000, 100000});
	s.lookup_us = pick(r, {300, 5000, 40000});
}
void liar(scenario &s, dice &r)
{
	constexpr u32 kinds[] = {lie_has_all,  lie_identity, lie_generation, lie_number,
				 lie_sum,      lie_garbage,  lie_flood,      lie_silent,
				 lie_mislabel, lie_bytes,    lie_data_spray, lie_other};
	s.nodes = std::max(s.nodes, 3u);
	s.liars = r.between(1, s.nodes - 1);
	for (u32 i = r.between(1, 3); i; --i)
		s.lies |= kinds[r.below(std::size(kinds))];
	if (s.lies & (lie_mislabel | lie_bytes)) {
		s.page_crc = true;
		s.lies &= ~u32{lie_sum};
	}
	// There must be others: versions of one file, files of one version.
	if (s.lies & lie_other)
		s.edit_ppm = pick(r, {0, 20000, 200000});
}
// The forger also has copies of old packets: COMMITs of ended attempts.
void forger(scenario &s, dice &r)
{
	stale(s, r);
	s.net.forged_ppm = pick(r, {5000, 50000, 300000});
	s.page_tag = true;
	while (s.block_pages > coop_wire_max_pages(s.mtu, true))
		s.block_pages /= 2;
}
void edit(scenario &s, dice &r)
{
	s.edit_ppm = pick(r, {20000, 200000});
	s.lookup_us = pick(r, {20, 1000});
}
void moody(scenario &s, dice &r)
{
	s.cancel_ppm = 100000;
	s.qp_death_ppm = pick(r, {10000, 100000});
}
// One node is dead, and all nodes are told to ask it; nothing else is wrong.
void dead(scenario &s, dice &r)
{
	s.dead_peer = true;
	s.nodes = r.between(3, 6);
	s.peer_timeout_us = 50000;
	s.serve_bytes_s = 0;
	s.max_serves = 16;
}
void storm(scenario &s, dice &r)
{
	loss(s, r);
	duplicate(s, r);
	s.net.jitter_us = pick(r, {0, s.net.delay_us, 1000, 4000});
	s.net.delay_us = std::max(s.net.delay_us, s.net.jitter_us);
	s.net.stale_ppm = 10000;
	s.net.stale_us = pick(r, {1000, 30000});
	edit(s, r);
	moody(s, r);
	corrupt(s, r);
	if (r.coin())
		crash(s, r);
	if (r.coin())
		partition(s, r);
	if (r.coin())
		slow(s, r);
	if (r.below(3) == 0)
		liar(s, r);
	if (r.below(3) == 0)
		rekey(s, r);
	s.net.unseen_ppm = std::min(s.net.unseen_ppm, 5000u);
	s.net.corrupt_ppm = 5000;
	s.net.unseen_data = s.page_crc || s.page_tag;
}

constexpr struct {
	const char *name;
	habit take;
} habits[] = {
	{"clean", clean}, {"loss", loss},   {"duplicate", duplicate}, {"reorder", reorder},
	{"wild", wild},   {"stale", stale}, {"corrupt", corrupt},     {"crash", crash},
	{"slow", slow},   {"liar", liar},   {"partition", partition}, {"edit", edit},
	{"moody", moody}, {"dead", dead},   {"forger", forger},       {"rekey", rekey},
	{"storm", storm},
};

} // namespace

const std::vector<std::string> &scenario_names()
{
	static const std::vector<std::string> names = [] {
		std::vector<std::string> out;
		for (const auto &h : habits)
			out.emplace_back(h.name);
		return out;
	}();
	return names;
}

scenario draw(const std::string &name, dice &r)
{
	const u32 any = r.below(std::size(habits) + 3); // draws the storm more often
	for (u32 i = 0; i < std::size(habits); ++i) {
		if (name.empty() ? i == std::min<u32>(any, std::size(habits) - 1)
				 : name == habits[i].name) {
			scenario s = draw_shape(r);
			s.name = habits[i].name;
			habits[i].take(s, r);
			return s;
		}
	}
	throw std::invalid_argument("no scenario '" + name + "'; see --list");
}

} // namespace coop::sim
