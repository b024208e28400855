// SPDX-License-Identifier: MIT
// kernel_copies.hpp - pages that left the page store because the kernel has them in its cache.
//
// The kernel's page cache keeps what a reader read. A second copy in the store is of use only to
// peers. So the store gives back the pages of a file that no other node has open as soon as the
// kernel has them, and notes here which. If a peer asks for them later, they are taken back out of
// the kernel's cache (kernel_loads.hpp).
//
// The kernel does not tell when it drops, replaces or changes a page. What comes back is therefore
// proved: a note has a sum of the page's bytes under a key of this mount, and a page with any other
// sum is not the page that left. So no order of invalidations, leases or writes matters here.
//
// A local reader that asks for a noted page shows that the kernel has dropped it. Such a page is
// kept in the store from then on: where the kernel's cache is short, for example in a small
// control group, the store is the larger cache.
//
// Notes are bounded; the oldest go first. A lost note costs a request to storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "userland/client/content_key.hpp"

namespace coop::client
{

struct kernel_copies_stats {
	std::uint64_t left = 0;      // pages that the store has given back, so far
	std::uint64_t came_back = 0; // of them, those that a local reader asked for again
	std::uint64_t noted = 0;     // pages that the kernel may hold alone, now
	std::uint64_t retrieved = 0; // pages taken out of the kernel for peers
	std::uint64_t lost = 0;      // pages that it did not have when they were to be taken
	std::uint64_t refuted = 0;   // pages that it had with other bytes
};

class kernel_copies
{
public:
	// Sums of a block's pages.
	struct sums {
		std::uint64_t of[64];
	};

	// most: blocks that are noted at a time.
	explicit kernel_copies(std::size_t most);

	// bytes: a multiple of 64.
	std::uint64_t sum(const std::byte *page, std::size_t bytes) const;

	// These pages of the block leave the store. s: their sums; null: no peer will ask.
	void note(const content_key &, std::uint64_t block_index, std::uint64_t file_size,
		  std::uint64_t pages, const sums *);
	// Of 'pages', those that a local reader has asked for although they were noted. They are
	// noted no more.
	std::uint64_t take_back(const content_key &, std::uint64_t block_index,
				std::uint64_t pages);
	// Noted pages of the block.
	std::uint64_t noted(const content_key &, std::uint64_t block_index) const;
	// Of 'pages', those that are noted with a sum. out: their sums; size: bytes of the file.
	std::uint64_t provable(const content_key &, std::uint64_t block_index, std::uint64_t pages,
			       sums *out = nullptr, std::uint64_t *size = nullptr) const;
	// The version is no longer the file's.
	void drop(const content_key &);
	// See page_store::advance(). touched: blocks that the change affects.
	void advance(const content_key &from, std::uint64_t to_version, std::uint64_t new_size,
		     const std::function<bool(std::uint64_t block_index)> &touched);
	// Pages of the block are being taken out of the kernel; each begin has its end.
	void begin(const content_key &, std::uint64_t block_index);
	void end(const content_key &, std::uint64_t block_index);
	bool under_way(const content_key &, std::uint64_t block_index) const;
	// The kernel was asked for the pages 'all': 'good' came as they had left, 'refuted'
	// otherwise.
	void answered(const content_key &, std::uint64_t block_index, std::uint64_t all,
		      std::uint64_t good, std::uint64_t refuted);
	kernel_copies_stats stats() const;

private:
	struct entry {
		std::uint64_t file_size = 0;
		std::uint64_t pages = 0; // a bit a page of the block
		std::unique_ptr<sums> proof;
		std::uint64_t serial = 0;
	};
	struct content { // notes of a file version
		content_key key;
		std::unordered_map<std::uint64_t, entry> blocks;
	};
	struct place {
		std::shared_ptr<content> of;
		std::uint64_t block, serial; // the entry has gone if it has another serial
	};

	entry *find(const content_key &, std::uint64_t block_index) const;
	void remove(const content_key &, std::uint64_t block_index, std::uint64_t pages);
	void erase(content &, std::uint64_t block_index);
	void forget_oldest();

	const std::size_t most_;
	std::uint64_t key_[8];
	mutable std::mutex mutex_; // guards all below; taken under the store's
	std::unordered_map<content_key, std::shared_ptr<content>, content_hash> notes_;
	std::size_t entries_ = 0;                               // in all of them
	std::deque<place> order_;                               // the oldest first
	std::unordered_map<std::uint64_t, unsigned> under_way_; // by fingerprint
	std::uint64_t serial_ = 0;
	kernel_copies_stats stats_;
};

} // namespace coop::client
