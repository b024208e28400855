// SPDX-License-Identifier: MIT
// block_serves.hpp - serving peers from blocks of the page store.
//
// A page that is valid never changes while its block is pinned, and a serve pins its blocks
// until it has ended. So what was found at the start of a serve is what was sent: the check
// after sending has nothing to take away.
//
// A request may wait for pages that are being loaded here, by a load whose level is smaller than
// its own, and may want pages loaded that are absent. Those are collected for the driver, which
// asks for them without the engine's mutex and says so in asked_for(); until then they count as
// coming. When a page stops loading it is either valid, and has arrived, or it will not come.
//
// Pages that left the store because the kernel has them are taken back from it first, and the
// request is looked up when they are here: the kernel answers soon, so every request may wait for
// that.
//
// A request for a block that has left the store is passed on to the peer that is known to hold it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "userland/client/departures.hpp"
#include "userland/client/page_store.hpp"
#include "userland/fetch-host/host.hpp"

namespace coop::client
{

// Pages of a block that a peer's request waits for and that are absent here.
struct wanted_pages {
	content_key key;
	std::uint64_t block = 0; // its index
	std::uint64_t pages = 0; // a bit a page of the block
	std::uint32_t level = 0; // of the peer's load: ours needs a smaller one
	std::uint32_t budget_us = 0;
	std::uint32_t holder = 0; // node that had them when they left this one; 0: none is known
	// Of the serve, for asked_for().
	std::uint64_t cookie = 0;
	std::uint32_t serve = 0;
	bool kernel = false; // take them from the kernel, level and budget do not matter
};

// Pages of a block that a peer is about to drop.
struct offered_pages {
	content_key key;
	std::uint64_t block = 0; // its index
	std::uint64_t pages = 0; // a bit a page of the block
	std::uint64_t size = 0;  // bytes of the file
	std::uint32_t node = 0;  // the daemon's id of the peer
	std::uint8_t chances = 0;
};

class block_serves final : public fetch_host::served_pages
{
public:
	block_serves(page_store &store, departures &gone, std::uint32_t most) :
		store_(store),
		gone_(gone),
		records_(most)
	{
	}
	// Before any other call. relays: somebody loads wanted_pages; retrieves: and those of the
	// kernel.
	void start(fetch_host::host &host, bool relays, bool retrieves)
	{
		host_ = &host;
		engine_ = host.engine();
		relays_ = relays;
		retrieves_ = retrieves;
	}

	std::uint32_t in_progress() const { return in_progress_; }
	// So far: the driver judges by them whether requests are small.
	std::uint64_t lookups() const { return lookups_; }
	std::uint64_t pages_looked_up() const { return pages_looked_up_; }

	bool lookup(std::uint64_t cookie, const coop_ev &, found &) override;
	std::uint64_t unchanged(std::uint64_t cookie) override { return records_[cookie].have; }
	void end(std::uint64_t cookie, std::uint64_t sent) override;
	std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<ud::sge> out) override;

	std::vector<wanted_pages> take_wanted() { return std::exchange(wanted_, {}); }
	// These are being loaded by now, or will not be.
	void asked_for(const std::vector<wanted_pages> &);
	// Some pages that serves wait for have stopped loading, or the deadline has come.
	void look_again(std::uint64_t now);
	// Of the lookups that wait for the kernel, microseconds of clock_us(); ~0: none does.
	std::uint64_t next_deadline() const;

private:
	// An extent lies in at most two blocks, since it has at most 64 pages.
	static constexpr std::uint32_t max_blocks = 2 * COOP_MAX_EXTENTS;

	// Pages of one block that follow each other in the file, and in the request.
	struct run {
		block_ref pin;
		std::uint64_t block = 0;            // its index
		std::uint32_t first = 0, count = 0; // pages of the block
		std::uint32_t ordinal = 0;          // of the first
		bool asked = false; // wanted_pages were collected, and not yet asked for
		std::uint64_t bits(std::uint64_t pages) const; // of the block, as ordinals
	};
	struct record {
		content_key key{};
		run runs[max_blocks];
		std::uint32_t n_runs = 0, n_pages = 0;
		std::uint32_t serve = 0, level = 0, peer = COOP_NONE;
		std::uint64_t have = 0, coming = 0;
		std::byte *page[COOP_MAX_PAGES]; // by ordinal, of those that are here
	};
	std::uint64_t valid_in(record &, run &);
	void take(record &, const run &, std::uint64_t pages);
	std::uint64_t coming_in(record &, run &, const coop_ev &, std::uint64_t cookie);
	void look_at(record &, std::uint64_t now);
	void look_up(record &, std::uint64_t cookie, const coop_ev &, found &);
	void name_runs(record &, const coop_ev &);
	bool from_kernel(record &, std::uint64_t cookie);
	void answer_delayed(std::uint64_t now);
	bool pass_on(const record &, std::uint64_t cookie, const coop_ev &);

	page_store &store_;
	departures &gone_;
	coop_engine *engine_ = nullptr;
	fetch_host::host *host_ = nullptr;
	bool relays_ = false, retrieves_ = false;
	std::vector<record> records_;        // by cookie
	std::vector<std::uint64_t> waiting_; // cookies of records with pages coming
	// Lookups that wait for pages out of the kernel.
	struct delayed {
		coop_ev ev;
		std::uint64_t cookie, since;
		std::uint64_t until; // then they are lacking
	};
	// So that the requester has time left to ask elsewhere, also where the threads that bring
	// the kernel's answers are all waiting for peers.
	static constexpr std::uint32_t delay_most_us = 20000;
	std::vector<delayed> delayed_;
	std::vector<wanted_pages> wanted_;
	std::uint32_t in_progress_ = 0;
	std::uint64_t lookups_ = 0, pages_looked_up_ = 0;
};

} // namespace coop::client
