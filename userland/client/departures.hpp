// SPDX-License-Identifier: MIT
// departures.hpp - blocks that leave the page store, and who else holds them.
//
// A block that peers hold is evicted, and the holder is remembered for a while: a request for its
// pages is passed on to that peer. A block of which no other holder is known is kept for a moment
// and offered to a peer that has the file open too (N-chance forwarding: Dahlin, Wang, Anderson,
// Patterson: Cooperative Caching, OSDI '94). The peer fetches it if that costs no page that only
// it holds. The number of offers in a row is limited, so that a page which nobody reads leaves the
// cluster.
//
// All of it is hints: a wrong one costs a request.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "userland/client/block.hpp"

namespace coop::client
{

class departures
{
public:
	// most: blocks that are kept for offers at a time; 0: none is offered. news: a block waits
	// in take(); called under the store's mutex.
	departures(std::size_t most, std::function<void()> news);

	// Are there peers? Without them no block is kept.
	void set_peers(bool any) { peers_.store(any, std::memory_order_relaxed); }
	// page_store::set_leaver().
	bool leaves(block &);
	// A kept block, as it was when it was about to leave.
	struct leaving {
		block_ref pin;
		content_key key;
		std::uint64_t file_size;
	};
	// Those that were not taken before. ended() is called for each in the end.
	std::vector<leaving> take();
	void ended() { kept_.fetch_sub(1, std::memory_order_relaxed); }
	std::size_t kept() const { return kept_.load(std::memory_order_relaxed); }
	// The peer (engine id) that holds these pages of a block which has left; COOP_NONE: none is
	// known.
	std::uint32_t holder(const content_key &, std::uint64_t block_index,
			     std::uint64_t pages) const;

private:
	static constexpr std::size_t holders_most = 4096;
	static constexpr int least_pages = 16; // of a block that is worth an offer

	const std::size_t most_;
	const std::function<void()> news_;
	std::atomic<bool> peers_{false};
	std::atomic<std::size_t> kept_{0};
	mutable std::mutex mutex_; // guards all below; taken under the store's
	struct held_pages {
		std::uint32_t peer;
		std::uint64_t pages;
	};
	std::vector<leaving> leaving_;
	std::unordered_map<std::uint64_t, held_pages> holders_; // by fingerprint
	std::vector<std::uint64_t> order_;                      // of them, a ring
	std::size_t oldest_ = 0;
};

} // namespace coop::client
