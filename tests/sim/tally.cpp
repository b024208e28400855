// SPDX-License-Identifier: MIT
// tally.cpp - sums over rounds, and the table.
#include "tests/sim/tally.hpp"

#include <cstdio>

namespace coop::sim
{

namespace
{

struct row {
	const char *name;
	u64 tally::*value;
};

constexpr row rows[] = {
	{"rounds", &tally::rounds},
	{"events", &tally::events},
	{"reads", &tally::reads},
	{"fetches", &tally::fetches},
	{"  refused at once", &tally::refused},
	{"  cancelled", &tally::cancelled},
	{"  lost in a crash", &tally::abandoned},
	{"  retries", &tally::retries},
	{"  passed on", &tally::passed},
	{"pages from buffer", &tally::pages_buffer},
	{"pages from peers", &tally::pages_peer},
	{"pages from storage", &tally::pages_storage},
	{"pages served", &tally::served},
	{"  changed meanwhile", &tally::changed},
	{"packets", &tally::packets},
	{"  lost", &tally::lost},
	{"  duplicated", &tally::duplicated},
	{"  held back", &tally::delayed},
	{"  replayed later", &tally::stale},
	{"  corrupt, dropped", &tally::corrupt},
	{"  corrupt, delivered", &tally::corrupt_unseen},
	{"  forged", &tally::forged},
	{"  into the void", &tally::cut},
	{"  without a WR", &tally::no_wr},
	{"segments displaced", &tally::displaced},
	{"MAC failures", &tally::mac_bad},
	{"CRC failures", &tally::crc_bad},
	{"tag failures", &tally::tag_bad},
	{"crashes", &tally::crashes},
	{"partitions", &tally::partitions},
	{"queue pair deaths", &tally::qp_deaths},
	{"edits", &tally::edits},
	{"new fabric keys", &tally::rekeys},
	{"lies told", &tally::lies},
	{"WRONG PAGES", &tally::wrong},
	{"STUCK FETCHES", &tally::stuck},
	{"BROKEN RULES", &tally::broken},
};

} // namespace

void tally::add(const tally &o)
{
	for (const row &r : rows)
		this->*r.value += o.*r.value;
	for (const std::string &n : o.notes) {
		if (notes.size() < max_notes)
			notes.push_back(n);
	}
}

void tally::print(bool verbose) const
{
	for (const row &r : rows) {
		if (verbose || this->*r.value || r.value == &tally::wrong ||
		    r.value == &tally::stuck || r.value == &tally::broken)
			std::printf("  %-22s %14llu\n", r.name,
				    static_cast<unsigned long long>(this->*r.value));
	}
}

} // namespace coop::sim
