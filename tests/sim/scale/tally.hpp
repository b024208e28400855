// SPDX-License-Identifier: MIT
// tally.hpp - what a run counts.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/scale/agenda.hpp"

namespace coop::scale
{

struct tally {
	u64 storage_pages = 0, storage_reads = 0, redirects = 0;
	u64 pages_from_peers = 0;
	u64 relays = 0, relays_refused = 0, relays_lost = 0;
	u64 loads = 0, fell_to_storage = 0, swaps = 0;
	u64 wrong = 0, circles = 0;
	// Of the engines
	u64 attempts = 0, retries = 0, queries = 0, busy = 0, waits = 0, wait_timeouts = 0,
	    peer_down = 0, messages = 0;
	std::vector<std::string> notes; // the first wrong pages and the like

	void note(const std::string &text)
	{
		if (notes.size() < 10)
			notes.push_back(text);
	}
};

} // namespace coop::scale
