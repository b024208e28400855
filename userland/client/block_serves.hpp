// SPDX-License-Identifier: MIT
// block_serves.hpp - serving peers from blocks of the page store.
//
// A page that is valid never changes while its block is pinned, and a serve pins its blocks
// until it has ended. So what was found at the start of a serve is what was sent: the check
// after sending has nothing to take away.
#pragma once

#include <cstdint>
#include <vector>

#include "userland/client/page_store.hpp"
#include "userland/fetch-host/responder.hpp"

namespace coop::client
{

class block_serves final : public fetch_host::served_pages
{
public:
	block_serves(page_store &store, std::uint32_t most) : store_(store), records_(most) {}

	std::uint32_t in_progress() const { return in_progress_; }
	// So far: the driver judges by them whether requests are small.
	std::uint64_t lookups() const { return lookups_; }
	std::uint64_t pages_looked_up() const { return pages_looked_up_; }

	bool lookup(std::uint64_t cookie, const coop_ev &, found &) override;
	std::uint64_t unchanged(std::uint64_t cookie) override { return records_[cookie].have; }
	void end(std::uint64_t cookie) override;
	std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<ud::sge> out) override;

private:
	// An extent lies in at most two blocks, since it has at most 64 pages.
	static constexpr std::uint32_t max_blocks = 2 * COOP_MAX_EXTENTS;

	struct record {
		block_ref pins[max_blocks];
		std::uint32_t n_pins = 0, n_pages = 0;
		std::uint64_t have = 0;
		std::byte *page[COOP_MAX_PAGES]; // by ordinal, of those that are here
	};
	void add(record &, const content_key &, std::uint64_t first, std::uint32_t count,
		 std::uint64_t &file_size);

	page_store &store_;
	std::vector<record> records_; // by cookie
	std::uint32_t in_progress_ = 0;
	std::uint64_t lookups_ = 0, pages_looked_up_ = 0;
};

} // namespace coop::client
