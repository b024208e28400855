// SPDX-License-Identifier: MIT
// node_requester.hpp - fetches of a node: which block each fills, and the work on
// memory that the engine, which sees no memory, asks for.
//
// From submit to EV_FETCH_DONE the pages of a fetch belong to the network; the
// record pins the block for that long. Callbacks are collected and run by the
// driver when it holds no lock, so that they may fetch again.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "userland/client/node.hpp"
#include "userland/fetch-host/slab.hpp"

namespace coop::client
{

class node_requester
{
public:
	// A fetch that ended, for the driver to report.
	struct ended {
		std::function<void(const fetch_outcome &)> done;
		fetch_outcome outcome;
		block_ref pin; // goes after done has run
	};

	node_requester(ud::endpoint &, const fetch_host::slab &, unsigned page_shift,
		       std::uint32_t slots, std::uint32_t queued);
	// Receives that a queue pair has room for; 0: not even a page's.
	[[nodiscard]] static std::uint32_t depth(const ud::endpoint_info &, unsigned page_shift);
	// Creates the queue pairs and tells the engine of them.
	void create_qps(coop_engine *);
	std::uint32_t qp(std::uint32_t slot) const { return qps_[slot]; }
	std::uint32_t max_pages() const { return max_pages_; } // a fetch
	std::uint32_t in_flight() const { return in_flight_; }
	std::uint32_t pages_in_flight() const { return pages_in_flight_; }

	int submit(const content_key &, std::uint64_t file_size, block_ref &&, std::uint64_t pages,
		   std::span<const std::uint32_t> hints,
		   std::function<void(const fetch_outcome &)> &&done, std::uint64_t now);
	void post_recv(const coop_tx &, std::uint64_t now);
	void stop_qp(std::uint32_t slot);
	void reset_qp(std::uint32_t slot);
	void completed(std::uint32_t slot, const ud::completion &, std::uint64_t now);
	void verify(const coop_ev &, std::uint64_t now);
	void finished(const coop_ev &, std::uint64_t now);
	void cancel_all(std::uint64_t now);
	// When the endpoint is gone: what is still there ends with -ECANCELED.
	void abandon_all();
	std::vector<ended> take_ended();
	bool has_ended() const { return !ended_.empty(); }

private:
	struct record {
		bool used = false;
		std::uint32_t id = 0; // the engine's
		content_key key{};
		std::uint64_t file_size = 0;
		block_ref pin;
		std::uint64_t pages = 0;
		std::uint32_t n_pages = 0;
		std::uint8_t page_of[COOP_MAX_PAGES]; // of the block, by ordinal
		std::function<void(const fetch_outcome &)> done;
		std::vector<coop_seg> segs; // as last posted
	};

	std::uint64_t to_block(const record &, std::uint64_t ordinals) const;
	std::byte *at(const record &r, std::uint32_t ordinal, std::uint32_t offset) const
	{
		return r.pin->data(r.page_of[ordinal]) + offset;
	}
	void put_right(const record &, const coop_move *, std::uint32_t n);
	void release(std::uint32_t index, const fetch_outcome &);

	ud::endpoint &endpoint_;
	const fetch_host::slab &memory_;
	coop_engine *engine_ = nullptr;
	const unsigned page_shift_;
	std::uint32_t max_pages_;
	std::vector<std::uint32_t> qps_; // by fetch slot
	std::vector<record> records_;    // by cookie
	std::vector<std::uint32_t> free_;
	std::uint32_t in_flight_ = 0, pages_in_flight_ = 0;
	std::vector<ended> ended_;
	std::vector<std::byte> bounce_;
	std::vector<ud::sge> sges_;
	std::vector<ud::recv_wr> wrs_;
};

} // namespace coop::client
