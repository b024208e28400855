// SPDX-License-Identifier: MIT
// files_ahead.hpp - small files that nodes have, fetched before programs read them.
//
// A bundle may name nodes in place of contents (STORAGE.md, "Bundles"). These files are fetched a
// few at a time, and not further ahead of programs than a window: what no program reads costs a
// window, not a directory. Many fetches go out together, because they share system calls, so it
// goes on when half of those under way have ended, or half of the window has been read.
//
// Nothing of it is asked of storage: a page that no node sent is absent as before.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "userland/client/fetcher.hpp"
#include "userland/client/membership.hpp"
#include "userland/client/page_store.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

// Any thread may call all of it.
class files_ahead
{
public:
	static constexpr std::uint64_t window_most = 8u << 20; // bytes; a quarter of a small store
	static constexpr std::uint32_t files_most = 32;        // under way

	// The membership may be null. All of them must outlive it.
	files_ahead(page_store &, fetcher &, const membership *);
	~files_ahead(); // waits for what is under way
	files_ahead(const files_ahead &) = delete;
	files_ahead &operator=(const files_ahead &) = delete;

	// A program that asked for a bundle is in its directory now, so these files go before those
	// of earlier bundles.
	void add(std::vector<held_content>);
	// A program has read so many bytes of small files that peers sent.
	void used(std::uint64_t bytes)
	{
		if (bytes == 0)
			return;
		const std::uint64_t all = used_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
		if (all >= window_ / 2 && waits_.load(std::memory_order_relaxed))
			start();
	}
	std::uint64_t pages() const { return pages_.load(std::memory_order_relaxed); } // asked for
	void reset_stats() { pages_.store(0, std::memory_order_relaxed); }

private:
	enum class begun { yes, no, busy, no_node };
	void start();
	void go();
	void fill(std::unique_lock<std::mutex> &, bool &any);
	begun begin(const held_content &);
	void ended();

	page_store &store_;
	fetcher &fetcher_;
	const membership *const membership_;
	const std::uint64_t window_;
	const std::uint32_t most_;           // files under way
	std::atomic<bool> waits_{false};     // files are left, and wait for used()
	std::atomic<std::uint64_t> used_{0}; // bytes that may_fetch_ does not have yet
	std::atomic<std::uint64_t> pages_{0};
	std::mutex mutex_; // guards all below
	std::condition_variable idle_;
	std::deque<held_content> files_;
	std::uint64_t may_fetch_;     // bytes
	std::uint32_t under_way_ = 0; // files
	std::uint32_t callbacks_ = 0; // that will use this object, or do
	bool running_ = false;        // a thread is in go()
	bool again_ = false;          // and has something new to look at
	bool ending_ = false;
};

} // namespace coop::client
