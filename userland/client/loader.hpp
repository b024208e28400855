// SPDX-License-Identifier: MIT
// loader.hpp - loads claimed pages: from peers if there are any, and what they did not deliver
// from storage, without waking the waiting reader in between.
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

#include "userland/client/content.hpp"
#include "userland/client/fetcher.hpp"

namespace coop::client
{

struct claimed {
	block_ref pin;
	std::uint64_t pages;
};

class loader
{
public:
	// One call of load(), while any part of it is under way.
	class job;

	loader(page_store &, fetcher *, storage &);
	~loader();
	loader(const loader &) = delete;
	loader &operator=(const loader &) = delete;

	// what: in file order. Returns at once. The job reports its first error.
	std::shared_ptr<job> load(const content &, std::vector<claimed> what, bool ask_peers);
	// Pages requested from peers and delivered by storage.
	std::uint64_t fallback_pages() const
	{
		return fallback_pages_.load(std::memory_order_relaxed);
	}
	// Pages under way; readahead limits itself by it.
	std::uint64_t pages_under_way() const { return under_way_.load(std::memory_order_relaxed); }
	void reset_stats() { fallback_pages_.store(0, std::memory_order_relaxed); }

private:
	struct request;

	void from_storage(const std::shared_ptr<job> &, std::vector<claimed> what);
	void send(const std::shared_ptr<job> &, std::shared_ptr<request>);
	void finish(job &, request &, const storage::read_result &);
	void settled(std::uint64_t pages);

	page_store &store_;
	fetcher *const fetcher_;
	storage &storage_;
	std::atomic<std::uint64_t> fallback_pages_{0}, under_way_{0};
	std::mutex idle_mutex_; // the destructor waits for under_way_ to be zero
	std::condition_variable idle_;
};

class loader::job
{
public:
	explicit job(const content &c) : key(c.key), size(c.size), fh(c.fh), open_id(c.open_id) {}
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

private:
	std::atomic<int> error_{0};
};

} // namespace coop::client
