// SPDX-License-Identifier: MIT
// block_fetches.hpp - fetches into blocks of the page store.
//
// The pages of a fetch belong to the network until it has ended, so its record pins the block
// for that long. What is to be called then is collected, for the driver to call when it holds no
// lock: it may fetch again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "userland/client/fetcher.hpp"
#include "userland/fetch-host/page_list.hpp"
#include "userland/fetch-host/requester.hpp"

namespace coop::client
{

class block_fetches final : public fetch_host::fetched_pages
{
public:
	struct ended {
		fetch_done done;
		fetch_outcome outcome;
		block_ref pin; // goes after done has run
	};

	// most: at a time.
	block_fetches(unsigned page_shift, std::uint32_t most);
	// Before any other call. max_pages: of a fetch.
	void start(coop_engine *, std::uint32_t max_pages);
	std::uint32_t in_flight() const { return in_flight_; }
	std::uint32_t pages_in_flight() const { return pages_in_flight_; }

	// As fetcher::fetch(). req: hints, parents and all else that says whom to ask and how.
	int submit(const content_key &, std::uint64_t file_size, block_ref &&, std::uint64_t pages,
		   coop_fetch_req &req, fetch_done &&, std::uint64_t now);
	std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<ud::sge> out) override;
	void finished(const coop_ev &, std::uint64_t now) override;
	void cancel_all(std::uint64_t now);
	// When the end point is gone: fetches that have not ended do so with -ECANCELED.
	void abandon_all();
	std::vector<ended> take_ended();
	bool has_ended() const { return !ended_.empty(); }

private:
	struct record {
		bool used = false;
		std::uint32_t id = 0; // the engine's
		std::uint64_t file_size = 0;
		block_ref pin;
		fetch_host::page_list pages; // of the file
		fetch_done done;
	};

	static std::uint32_t in_block(const record &r, std::uint32_t ordinal)
	{
		return static_cast<std::uint32_t>(r.pages.page[ordinal] % 64);
	}
	void release(std::uint32_t index, const fetch_outcome &);

	coop_engine *engine_ = nullptr;
	const unsigned page_shift_;
	std::uint32_t max_pages_ = 0;
	std::vector<record> records_; // by cookie
	std::vector<std::uint32_t> free_;
	std::uint32_t in_flight_ = 0, pages_in_flight_ = 0;
	std::vector<ended> ended_;
};

} // namespace coop::client
