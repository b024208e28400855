// SPDX-License-Identifier: MIT
// shape.hpp - one run: how many nodes read what, over which links, and what goes wrong.
//
// Scaling. A page of the simulation is one datagram of 4 KiB and stands for 64 KiB: its time on
// a link is that of 64 KiB. A unit of 4 pages stands for the unit of 256 KiB that has one parent.
// All else has its real size: delays, time limits, control messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/scale/agenda.hpp"

namespace coop::scale
{

constexpr u32 most_unit = 8;      // pages
constexpr u32 stands_for = 65536; // bytes, a page

struct shape {
	std::string scenario = "start";
	u64 seed = 1;
	u32 nodes = 64;
	u32 files = 1, units = 512, unit_pages = 4;
	u32 window = 32; // units that a reader has in flight
	bool shuffled = false;

	// Links
	bool fair = true; // adapters take turns between the serves that they send for
	u32 gbit = 100, storage_gbit = 100;
	u32 delay_ns = 2000;    // of the fabric, one way
	u32 host_ns = 3000;     // until a host takes a message
	u32 storage_ns = 20000; // from a READ to its first byte, without a queue
	u32 queue_pages = 256;  // before a port; beyond that it drops
	u32 publish_us = 2000;  // storage collects changes of roles for so long
	u32 detect_us = 50000;  // until storage notices a dead node

	// Engines
	u32 slots = 64, queued = 64, serves = 128, peers = 96, relays = 64;
	u32 peer_timeout_us = 200000, budget_us = 1000000;

	u32 send_pages = 8;   // posted and not sent, over all serves; 0: no limit
	u32 window_pages = 0; // window_bytes of the engine; 0: all slots

	// The forest
	u32 trees = 16, arity = 2;

	// Rules that can be switched off
	bool coop = true;          // off: hints, then storage, as without trees
	bool waiting = true;       // off: no request waits
	bool levels = true;        // off: a request waits for a load of any level
	bool redirect = false;     // storage names holders
	bool chain = false;        // and also those that it named holders to
	bool leaves = false;       // slow nodes say so and become leaves
	bool deepest_first = true; // serve waiting requests by level, not by arrival
	bool swap = true;          // ask the alternate first where the parent is slow

	// What goes wrong
	bool opens = false;         // nodes open at the start, instead of having opened before
	u32 waves = 1, wave_us = 0; // nodes arrive in so many groups, so far apart
	u32 loss_ppm = 0;
	u32 dying_ppm = 0, slow_ppm = 0, slow_by = 10;
	u32 cut_ppm = 0, cut_us = 0; // so many nodes are cut off from the others for so long
	u32 fault_at_ppm = 300000;   // when, in parts of a lone reader's time

	u32 pages() const { return files * units * unit_pages; }
	u64 page_ns(u32 rate) const { return u64{stands_for} * 8 / rate; }
};

// False: no such scenario. Leaves everything else as it is.
bool apply_scenario(shape &, std::string_view name);
std::vector<std::string> scenario_names();
std::string describe_scenario(std::string_view name);

} // namespace coop::scale
