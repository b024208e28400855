// SPDX-License-Identifier: MIT
// page_store.hpp - the page cache of a user-space node.
//
// One arena in a memfd, mapped: FUSE replies and what peers ask for go to the kernel
// straight from it. It is cut into blocks (block.hpp); small files take small blocks.
//
// Eviction is S3-FIFO over blocks, weighted by bytes. Fetching a block or reading
// its pages for the first time is no use of it; reading them again is, and so is
// a request of a peer. So a scan, however long, passes through the small queue.
//
// The kernel caches what a reader read, but at the end of its list that is reclaimed first, and it
// does not tell what it drops. So while memory is to spare the store keeps what no other node is
// known to hold: a second copy costs memory, and the loss of the only one costs storage a read.
// What a peer holds too leaves the store once the kernel has it (given()): kernel_copies.hpp. Its
// memory, which is there already, then serves the next block. Where memory lacks, all that the
// kernel holds leaves first.
//
// One mutex guards index, queues and free runs; its sections are a hash look-up
// or the eviction of the few blocks that make room. States of pages are changed
// without it. Memory is made present outside the mutex, when pages are claimed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rpc/fetch/engine.h"
#include "userland/client/arena.hpp"
#include "userland/client/block.hpp"
#include "userland/client/block_queues.hpp"
#include "userland/client/buddy.hpp"
#include "userland/client/kernel_copies.hpp"
#include "userland/client/memory_state.hpp"

namespace coop::client
{

struct store_stats {
	std::uint64_t capacity, used; // bytes
	std::uint64_t present;        // bytes that the system has given, used or not
	std::uint64_t blocks, evicted_blocks, evicted_pages;
	std::uint64_t no_room; // times that get() found everything pinned
};

class page_store
{
public:
	// bytes: most that is kept; rounded up to whole blocks of 64 pages, at least four.
	// ahead: how much more than is in use an idle processor keeps present, so that readers
	// need not wait for fresh memory. Throws std::system_error. Must outlive every pin.
	static std::unique_ptr<page_store> create(std::size_t bytes, unsigned page_shift,
						  std::size_t ahead = 0);
	~page_store();
	page_store(const page_store &) = delete;
	page_store &operator=(const page_store &) = delete;

	int memfd() const { return arena_.fd(); }
	std::byte *base() const { return arena_.base(); }
	// Bytes mapped: the capacity and a small reserve behind it. When everything is pinned,
	// get() hands out a private block of the reserve: good while it is pinned, found by
	// no other reader, given back to the system after (but see keep_memory()).
	std::size_t size() const { return arena_.size(); }
	unsigned page_shift() const { return page_shift_; }
	// Pins the block if the store has it. used: counts as a use for eviction.
	block_ref find(const content_key &, std::uint64_t block_index, bool used = true);
	// The same, made if it is not there (no use for eviction); file_size bounds its size.
	// Empty: wholly past the end of the file, or everything is pinned and the reserve is out
	// too, which passes as soon as a pin goes.
	block_ref get(const content_key &, std::uint64_t block_index, std::uint64_t file_size);
	// Is the pinned block of this content, be it in the store or no more?
	bool is_of(const block &, const content_key &) const;
	// The file went from one version to the next by a local write of [offset, offset + length)
	// and, if the sizes differ, by a change of size: untouched blocks follow, touched ones
	// are dropped. old_size, new_size: bytes.
	void advance(const content_key &from, std::uint64_t to_version, std::uint64_t offset,
		     std::uint64_t length, std::uint64_t old_size, std::uint64_t new_size);
	// Forgets a version (pins stay good).
	void drop(const content_key &);
	// Forgets everything that is not pinned.
	void drop_all();
	// One step, of a second or so, towards what the machine can spare: where memory lacks the
	// store evicts as much and gives it back, and takes no more until there is plenty again.
	// Otherwise it gives back some of what it does not use.
	void follow(const memory_state &);
	// A device has registered the memory and holds its physical pages: from now on nothing is
	// given back to the system.
	void keep_memory()
	{
		const std::lock_guard lock(mutex_); // punch() runs under it
		arena_.keep();
	}
	bool keeps_memory() const { return arena_.kept(); }
	store_stats stats() const;

	// What to do with pages that the kernel has as well.
	enum class copies : std::uint8_t {
		keep,  // both copies
		spare, // both of what no peer holds, while memory is to spare; else as prove
		prove, // the kernel's alone, noted so that a peer can get it
		drop,  // the kernel's alone: no peer will ask
	};
	// The kernel has got these pages of the block by a reply. company: other nodes have the
	// file open, so the block stays.
	void given(block_ref, std::uint64_t pages, bool company);
	// Pages of the block have come back out of the kernel for a peer. A small part of the store
	// keeps such blocks for the next peer; with copies::spare they stay like others.
	void retrieved(block_ref);
	// The file is closed here: what the kernel holds of it leaves.
	void closed(const content_key &);
	// Set while no other thread uses the store. At first: keep.
	void set_copies(copies what) { copies_ = what; }
	kernel_copies &in_kernel() { return in_kernel_; }
	const kernel_copies &in_kernel() const { return in_kernel_; }

	// Called when pages of a watched block have stopped loading, on the thread that loaded
	// them: short, and without a call into the store. Null: not called. Set while no block is
	// loading.
	void set_watcher(std::function<void()> w) { watcher_ = std::move(w); }

	// Asked under the store's mutex before an idle block is evicted to make room for another,
	// not where memory lacks: short, and without a call into the store. True: it has pinned the
	// block, which stays until let_go(). Set while no other thread uses the store.
	void set_leaver(std::function<bool(block &)> l) { leaver_ = std::move(l); }
	// The block is evicted next. Unless it was taken by a peer, a use in the meantime or later
	// keeps it.
	void let_go(block_ref, bool taken);
	// May a block that a peer offers be made here: at the cost of none, or of one that peers
	// hold too?
	bool takes_offer(const content_key &, std::uint64_t block_index,
			 std::uint64_t file_size) const;

	// A block's alone: its last pin has gone after the store forgot it; much of it is about to
	// be filled.
	void release_forgotten(block *);
	void need_memory(const block &);
	void settled() const
	{
		if (watcher_)
			watcher_();
	}

private:
	page_store(std::uint32_t frames, unsigned page_shift, std::size_t ahead);
	block *&bucket(const content_key &key, std::uint64_t index)
	{
		return buckets_[block_queues::fingerprint(key, index) & (buckets_.size() - 1)];
	}
	std::uint32_t pages_of(std::uint64_t block_index, std::uint64_t file_size) const;
	block *lookup(const content_key &key, std::uint64_t index) const
	{
		block *b = buckets_[block_queues::fingerprint(key, index) & (buckets_.size() - 1)];
		while (b != nullptr && !(b->index() == index && b->key == key))
			b = b->hash_next;
		return b;
	}
	void link(block *);
	void unlink(block *);
	void forget(block *);
	void free_memory(block *);
	std::uint32_t used_pages() const { return kept_pages_ - runs_.free_pages(); }
	std::uint32_t alloc(unsigned order);
	std::uint32_t make_room(unsigned order);
	void evict_down_to(std::uint32_t pages);
	bool may_leave(const block &) const;
	void leave(block_ref);
	void leave_one();
	void leave_down_to(std::uint32_t pages);
	void pin_siblings(block *first, std::vector<block_ref> &out) const;
	struct place {
		content_key key;
		std::uint64_t block;
		std::uint32_t pages; // of the arena
	};
	std::vector<std::uint32_t> unused_frames(bool all);
	void evict(block *);

	std::function<void()> watcher_;
	std::function<bool(block &)> leaver_;
	const unsigned page_shift_;
	const std::uint32_t kept_pages_, ahead_frames_;
	arena arena_;
	copies copies_ = copies::keep;
	std::atomic<bool> short_{false}; // memory lacks, or has lacked and is not ample yet
	std::atomic<bool> nearly_full_{false};
	kernel_copies in_kernel_;
	mutable std::mutex mutex_;
	// All below under mutex_.
	buddy runs_, reserve_;
	block_queues queues_;
	std::vector<block *> buckets_;                                    // chained by hash_next
	std::unordered_map<content_key, block *, content_hash> contents_; // first of the siblings
	std::vector<block *> by_page_; // the block that begins at this page
	std::deque<place> retrieved_;  // the oldest first
	std::uint32_t retrieved_pages_ = 0;
	std::uint32_t limit_; // pages in use, at most; less than all while memory lacks
	store_stats stats_{};
};

} // namespace coop::client
