// SPDX-License-Identifier: MIT
// block_queues.hpp - S3-FIFO over blocks, weighted by bytes.
//
// A new block enters the small queue (a tenth of the store). At its end a block
// that was used again goes on to the main queue, any other leaves, and its
// fingerprint stays in the ghost queue for as long as as many bytes as the main
// queue holds have passed. What comes back meanwhile enters the main queue at
// once. At the end of the main queue a block that was used goes round again.
//
// Pinned and loading blocks go round too: they are never victims. Everything
// here runs under the store's mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_set>

#include "userland/client/block.hpp"

namespace coop::client
{

class block_queues
{
public:
	block_queues(std::uint64_t capacity_bytes, unsigned page_shift);
	// A number that the same block of the same content has every time.
	static std::uint64_t fingerprint(const content_key &key, std::uint64_t block_index)
	{
		return client::fingerprint(key, block_index);
	}
	void insert(block *);
	// The next victim, unless it is used before.
	void insert_last(block *);
	void remove(block *);
	// The block that would be looked at next for eviction; null: none.
	block *next() const;
	// Do peers hold all pages of the block that would be evicted next, and is it this large?
	bool next_is_copy(unsigned order) const;
	// The block to evict next, taken out of its queue, or null: everything is pinned.
	block *victim();

private:
	struct list {
		block *head = nullptr, *tail = nullptr; // new ones at the head
		std::uint64_t bytes = 0, count = 0;
	};
	struct ghost {
		std::uint64_t print, bytes;
	};
	list &of(queue_id id) { return id == queue_id::small ? small_ : main_; }
	void push(queue_id, block *);
	void unlink(block *);
	void remember(const block *);
	std::uint64_t weight(const block *b) const
	{
		return std::uint64_t{1} << (b->order + page_shift_);
	}

	list small_, main_;
	std::uint64_t small_limit_, ghost_limit_;
	std::deque<ghost> ghosts_;
	std::unordered_set<std::uint64_t> ghost_set_;
	std::uint64_t ghost_bytes_ = 0;
	unsigned page_shift_;
};

} // namespace coop::client
