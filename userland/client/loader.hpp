// SPDX-License-Identifier: MIT
// loader.hpp - loads claimed pages: from peers if there are any, and what they did not deliver
// from storage, without waking the waiting reader in between.
//
// In a file's forest the peers asked first are this node's parents, which load what they lack. A
// root asks a few nodes that opened the file before, since they may have read it long ago, and then
// storage. Storage may name nodes to which it has sent the bytes; they are asked, and then storage
// again, which then sends them.
//
// Ownership: the caller of load() has claimed the pages. From then on the load owns them; every
// page ends published or abandoned, exactly once, whatever fails. A reader that finds a page
// abandoned claims it again and so gets its own error.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "userland/client/block_serves.hpp"
#include "userland/client/content.hpp"
#include "userland/client/fetcher.hpp"
#include "userland/client/membership.hpp"

namespace coop::client
{

struct claimed {
	block_ref pin;
	std::uint64_t pages;
	std::uint32_t level = COOP_LEVEL_NO_ROLE; // that they were claimed at
};

class loader
{
public:
	// One call of load(), while any part of it is under way.
	class job;

	// The fetcher and the membership may be null.
	loader(page_store &, fetcher *, storage &, const membership *, std::uint32_t wait_us);
	~loader();
	loader(const loader &) = delete;
	loader &operator=(const loader &) = delete;

	// what: in file order. Returns at once. The job reports its first error.
	std::shared_ptr<job> load(const content &, std::vector<claimed> what, bool ask_peers);
	// Claims those of the block's pages that are absent, by a load of the level that this node
	// has there. The roles may change before load(): the level does not.
	claimed claim(const content &, const block_ref &, std::uint64_t want) const;
	// Claims and loads what a peer waits for, if its level and an open file allow it.
	void relay(const wanted_pages &);
	// Fetches what a peer is about to drop, if the file is open here and there is room.
	void take(const offered_pages &);
	std::uint64_t taken_pages() const { return taken_pages_.load(std::memory_order_relaxed); }
	std::uint64_t relayed_pages() const
	{
		return relayed_pages_.load(std::memory_order_relaxed);
	}
	// Pages for which storage named nodes.
	std::uint64_t redirected_pages() const
	{
		return redirected_pages_.load(std::memory_order_relaxed);
	}
	// Pages requested from peers and delivered by storage.
	std::uint64_t fallback_pages() const
	{
		return fallback_pages_.load(std::memory_order_relaxed);
	}
	// Pages under way; readahead limits itself by it.
	std::uint64_t pages_under_way() const { return under_way_.load(std::memory_order_relaxed); }
	void reset_stats()
	{
		fallback_pages_.store(0, std::memory_order_relaxed);
		relayed_pages_.store(0, std::memory_order_relaxed);
		taken_pages_.store(0, std::memory_order_relaxed);
		redirected_pages_.store(0, std::memory_order_relaxed);
	}

private:
	struct request;
	// Of a relay: the level that its load must not exceed, and the time it has.
	struct limits {
		std::uint32_t level = COOP_LEVEL_NO_ROLE, budget_us = 0;
		bool relay = false;
		std::uint32_t holder = 0; // node that may have the pages
	};

	void load(const std::shared_ptr<job> &, const content &, std::vector<claimed> what,
		  const limits &);
	fetch_sources sources(const content &, std::uint64_t block, const limits &) const;
	std::uint64_t ask(const std::shared_ptr<job> &, const claimed &, const fetch_sources &,
			  bool redirected);
	void fetched(const std::shared_ptr<job> &, claimed &, const fetch_outcome &,
		     bool redirected);
	void redirected(const std::shared_ptr<job> &, request &, const storage::read_result &);
	bool in_company(const content &) const;
	// insist: it shall not name nodes.
	void from_storage(const std::shared_ptr<job> &, std::vector<claimed> what,
			  bool insist = false);
	void send(const std::shared_ptr<job> &, std::shared_ptr<request>);
	void finish(const std::shared_ptr<job> &, request &, const storage::read_result &);
	void settled(const job &, std::uint64_t pages);

	page_store &store_;
	fetcher *const fetcher_;
	storage &storage_;
	const membership *const membership_;
	const std::uint32_t wait_us_; // most time that a load waits for its parents
	std::atomic<std::uint64_t> fallback_pages_{0}, relayed_pages_{0}, redirected_pages_{0},
		taken_pages_{0}, taking_{0}, under_way_{0}, relaying_{0};
	std::mutex idle_mutex_; // the destructor waits for under_way_ to be zero
	std::condition_variable idle_;
};

class loader::job
{
public:
	job(const content &c, bool by_unit, bool relay = false) :
		key(c.key),
		size(c.size),
		fh(c.fh),
		open_id(c.open_id),
		by_unit(by_unit),
		relay(relay)
	{
	}
	int error() const { return error_.load(std::memory_order_acquire); }
	void fail(int err)
	{
		int none = 0;
		error_.compare_exchange_strong(none, err, std::memory_order_release,
					       std::memory_order_relaxed);
	}

	const content_key key;
	const std::uint64_t size;
	const handle fh;
	const std::uint64_t open_id;
	const bool by_unit; // asks storage for one unit at a time
	const bool relay;   // for a peer that waits

private:
	std::atomic<int> error_{0};
};

} // namespace coop::client
