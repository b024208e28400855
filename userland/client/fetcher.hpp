// SPDX-License-Identifier: MIT
// fetcher.hpp - what a reader needs of a node: pages of a block from peers, and a way to wait
// for them that drives the node's engine.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "rpc/storage/message.h"
#include "userland/client/page_store.hpp"

namespace coop::client
{

struct fetch_outcome {
	std::uint64_t good; // pages of the block that a peer delivered (already published)
	std::uint32_t peer; // engine id, COOP_NONE if none
	int err;            // 0, or why not all: see COOP_EV_FETCH_DONE
};

// Whom to ask, as node ids of the daemon.
struct fetch_sources {
	std::vector<std::uint32_t> openers; // may have the pages
	// Asked first, in this order: they load what they lack, or let us wait for it, if 'level'
	// is that of our load. 0 stands for none.
	std::uint32_t parents[COOP_ST_HOLDERS_MAX] = {};
	std::uint32_t level = 0;
	bool load = false;       // parents shall load what they lack
	bool relay = false;      // a load for a peer that waits
	bool background = false; // nobody waits for it: it queues behind reads outside of forests
	bool gather = false;     // more fetches follow: it need not be sent before flush()
	std::uint32_t budget_us = 0; // 0: the node's
};

using fetch_done = std::function<void(const fetch_outcome &)>;

class fetcher
{
public:
	virtual ~fetcher() = default;
	// Fetches 'pages' of the block, which the caller has claimed; delivered ones are published,
	// the rest stay claimed by the caller. done runs on whatever thread drives; it must not
	// block. 0, or -EAGAIN, -ENOENT (go to storage; done does not run).
	virtual int fetch(const content_key &, std::uint64_t file_size, block_ref,
			  std::uint64_t pages, const fetch_sources &, fetch_done) = 0;
	// Sends what fetches have gathered.
	virtual void flush() = 0;
	// So many fetches that nobody waits for leave room for those that somebody waits for.
	virtual std::uint32_t background_most() const = 0;
	// Fetches in flight: while there are any, waiting is best done in drive_until().
	virtual std::uint32_t in_flight() const = 0;
	// Returns when ready() says so or at the deadline (CLOCK_MONOTONIC, us), driving the engine
	// if no other thread does. ready is also called from the thread that drives: it must be
	// safe there, short, and not call the fetcher.
	virtual void drive_until(const std::function<bool()> &ready, std::uint64_t deadline_us) = 0;
	// After a fetch() that this thread will not wait for: makes sure that a thread drives.
	virtual void tend() = 0;
	// Something else (storage) may have made a ready() true. Cheap; any thread.
	virtual void wake() = 0;
};

} // namespace coop::client
