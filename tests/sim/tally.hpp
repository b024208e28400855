// SPDX-License-Identifier: MIT
// tally.hpp - the figures of a round, and its violations.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/dice.hpp"

namespace coop::sim
{

struct tally {
	u64 rounds = 0, events = 0;
	u64 reads = 0, fetches = 0, refused = 0, cancelled = 0, abandoned = 0;
	u64 pages_buffer = 0, pages_peer = 0, pages_storage = 0;
	u64 served = 0, changed = 0; // pages sent; pages that changed during the send
	// Injected faults.
	u64 packets = 0, lost = 0, duplicated = 0, delayed = 0, corrupt = 0, corrupt_unseen = 0,
	    stale = 0, cut = 0; // cut: lost to a partition or a dead node
	u64 crashes = 0, partitions = 0, qp_deaths = 0, edits = 0, lies = 0, rekeys = 0;
	u64 no_wr = 0, displaced = 0, retries = 0, passed = 0, mac_bad = 0, crc_bad = 0,
	    tag_bad = 0, forged = 0;
	// Violations.
	u64 wrong = 0;  // pages accepted as good that differ from storage
	u64 stuck = 0;  // fetches that exceeded budget and quiesce
	u64 broken = 0; // other invariants: ownership, accounting, window, gauges, assertions
	std::vector<std::string> notes; // the first violations, in words

	bool clean() const { return !wrong && !stuck && !broken; }
	void note(u64 &count, std::string text)
	{
		++count;
		if (notes.size() < max_notes)
			notes.push_back(std::move(text));
	}
	void add(const tally &);
	void print(bool verbose) const;

	static constexpr std::size_t max_notes = 8;
};

} // namespace coop::sim
