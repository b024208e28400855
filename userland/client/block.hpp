// SPDX-License-Identifier: MIT
// block.hpp - up to 64 pages of one file version in the page store, contiguous in the file
// (aligned to 64 pages) and in memory; and the pins that keep it.
//
// A page that is valid never changes: a write makes a new version, and what it
// touched is dropped, not overwritten. So a pinned block may be read by any thread,
// without a lock, until its pin goes.
//
// A page is absent, loading (one owner fills it) or valid. claim() makes the
// caller the owner of what was absent; the owner must publish() or abandon().
// The states are two words, valid and loading. valid only grows. A bit of
// loading is set by the thread that claims the page and cleared by the same thread after
// it has set valid (or has not): so a page that is in neither word is absent.
//
// A load has a level (rpc/fetch/PROTOCOL.md, Waiting): peers wait for it only if theirs is greater.
// The block keeps the greatest level of all its loads so far, which is never too small for one of
// them. A page whose load has gone to storage has COOP_LEVEL_STORAGE: that load waits for no peer.
//
// A block notes which of its pages a peer is known to hold too: it came from there, or was sent
// there. These are hints: the peer may have dropped them.
//
// It notes as well which pages the kernel has been given: its page cache keeps them, unless it is
// short of room (kernel_copies.hpp).
//
// Pins and the store's own hold meet in one word: the pin count, and a bit that
// says that the store has forgotten the block. The thread that brings the word to
// "forgotten, no pins" frees the block, exactly once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "rpc/base/types.h"
#include "rpc/storage/forest.h"
#include "userland/client/content_key.hpp"

namespace coop::client
{

// counted: when they came here first.
enum class origin : std::uint8_t { peer, storage, counted };

class block;

// A pin: the block's memory stays as it is until the last pin goes, also if the
// store forgets the block meanwhile.
class block_ref
{
public:
	block_ref() = default;
	explicit block_ref(block *adopted) : b_(adopted) {}
	block_ref(block_ref &&o) noexcept : b_(o.b_) { o.b_ = nullptr; }
	block_ref &operator=(block_ref &&o) noexcept;
	block_ref(const block_ref &) = delete;
	block_ref &operator=(const block_ref &) = delete;
	~block_ref();
	block_ref clone() const;
	explicit operator bool() const { return b_ != nullptr; }
	block *operator->() const { return b_; }
	block &operator*() const { return *b_; }
	block *get() const { return b_; }

private:
	block *b_ = nullptr;
};

class page_store;

enum class queue_id : std::uint8_t {
	none, // private or forgotten: no eviction
	small,
	main,
};

class block final
{
public:
	static constexpr std::uint8_t max_uses = 3;
	static constexpr std::uint8_t max_chances = 2;

	// Made with one pin. memory: room for the pages, 'offset' bytes into the store's memfd.
	block(page_store &owner, std::byte *memory, std::uint64_t offset, unsigned page_shift,
	      std::uint64_t index, std::uint32_t pages, std::uint64_t file_size) :
		index_(index),
		memory_(memory),
		offset_(offset),
		file_size_(file_size),
		owner_(owner),
		pages_(pages),
		page_shift_(page_shift)
	{
	}
	block(const block &) = delete;
	block &operator=(const block &) = delete;

	std::uint64_t index() const { return index_; } // block number in the file: first page / 64
	std::uint32_t pages() const { return pages_; } // pages that it has room for, <= 64
	// Bytes of the file, as page_store::get() was told.
	std::uint64_t file_size() const { return file_size_.load(std::memory_order_relaxed); }
	std::byte *data(std::uint32_t page) const
	{
		return memory_ + (std::size_t{page} << page_shift_);
	}
	std::uint64_t arena_offset(std::uint32_t page) const // in the memfd
	{
		return offset_ + (std::uint64_t{page} << page_shift_);
	}
	// A bit a page.
	std::uint64_t valid() const { return valid_.load(std::memory_order_acquire); }
	std::uint64_t loading() const { return loading_.load(std::memory_order_acquire); }
	// Of 'want', those that were absent and are now the caller's to fill, by a load of this
	// level.
	std::uint64_t claim(std::uint64_t want, std::uint32_t level = COOP_LEVEL_NO_ROLE);
	// The owner asks storage for them, or no longer does.
	void at_storage(std::uint64_t pages, bool there);
	// Storage has named nodes for them: they are loaded from these, with this level.
	void redirected(std::uint64_t pages, std::uint32_t level);
	// Those being loaded for which a load of this level may wait.
	std::uint64_t awaitable(std::uint32_t level) const;
	// The store's watcher is called once, after pages have stopped loading. A caller that looks
	// at the states after this misses nothing.
	void watch() { watched_.store(true, std::memory_order_seq_cst); }
	// The owner has filled them. A thread that finds them valid sees what was written before.
	void publish(std::uint64_t pages, origin from);
	void abandon(std::uint64_t pages);
	// Until none of 'pages' is loading, or the deadline. Returns valid().
	std::uint64_t wait(std::uint64_t pages, std::chrono::steady_clock::time_point deadline);
	// For a read of 'pages': those whose origin has not been reported yet, which are now
	// reported. If all were reported before, the read counts as a use for eviction.
	void take_fresh(std::uint64_t pages, std::uint64_t &from_peer, std::uint64_t &from_storage);

	// block_ref's alone: the caller holds a pin.
	void pin() { pins_.fetch_add(1, std::memory_order_relaxed); }
	void unpin();

	// This peer (engine id) holds these pages too.
	void held_by(std::uint32_t peer, std::uint64_t pages)
	{
		holder_.store(peer, std::memory_order_relaxed);
		elsewhere_.fetch_or(pages, std::memory_order_relaxed);
	}
	// No peer holds these pages any more, or none has had them at this version.
	void held_here_only(std::uint64_t pages = ~std::uint64_t{0})
	{
		elsewhere_.fetch_and(~pages, std::memory_order_relaxed);
	}
	// Valid pages of which no other holder is known.
	std::uint64_t only_here() const
	{
		return valid() & ~elsewhere_.load(std::memory_order_relaxed);
	}
	// The last known holder of some of its pages; COOP_NONE: none.
	std::uint32_t holder() const
	{
		return elsewhere_.load(std::memory_order_relaxed) != 0
			       ? holder_.load(std::memory_order_relaxed)
			       : COOP_NONE;
	}
	// The kernel has these pages too. Returns all that it was given.
	std::uint64_t given(std::uint64_t pages)
	{
		return given_.fetch_or(pages, std::memory_order_relaxed) | pages;
	}
	// Is a copy of every valid page in the kernel, as far as known, and none on its way?
	bool in_kernel() const
	{
		const std::uint64_t loading = loading_.load(std::memory_order_acquire);
		return loading == 0 && (valid() & ~given_.load(std::memory_order_relaxed)) == 0;
	}
	// The block stays in the store: the kernel has dropped pages of it before, or a peer has
	// asked for what had left.
	void stay() { stays_.store(true, std::memory_order_relaxed); }
	bool stays() const { return stays_.load(std::memory_order_relaxed); }
	// How often the pages may still be offered to a peer before they are dropped.
	std::uint8_t chances() const { return chances_.load(std::memory_order_relaxed); }
	void set_chances(std::uint8_t n) { chances_.store(n, std::memory_order_relaxed); }

	void count_use();
	void set_file_size(std::uint64_t size)
	{
		file_size_.store(size, std::memory_order_relaxed);
	}
	// Under the store's mutex no new first pin can appear, so an idle block stays idle.
	bool idle() const
	{
		return (pins_.load(std::memory_order_acquire) & ~forgotten) == 0 && loading() == 0;
	}
	// True: no pin is left, the caller frees the block.
	bool forget() { return pins_.fetch_or(forgotten, std::memory_order_acq_rel) == 0; }

	// Everything from here to the next comment is the store's, under its mutex.
	content_key key{};
	block *hash_next = nullptr;
	block *sibling_prev = nullptr, *sibling_next = nullptr; // same content
	block *queue_prev = nullptr, *queue_next = nullptr;
	std::uint32_t first_page = 0; // of the arena
	std::uint8_t order = 0;
	queue_id queue = queue_id::none;

	std::atomic<std::uint8_t> uses{0}; // since it entered its queue, at most max_uses

private:
	static constexpr std::uint32_t forgotten = 0x80000000u;
	// A claim of this part of a block makes all its memory present in one call. For a page here
	// and there a fault each costs less, and the reader does not wait for the rest.
	static constexpr std::uint32_t much = 4;

	void settle(std::uint64_t pages);

	const std::uint64_t index_;
	std::byte *const memory_;
	const std::uint64_t offset_;
	std::atomic<std::uint64_t> valid_{0}, loading_{0};
	std::atomic<std::uint64_t> fresh_peer_{0}, fresh_storage_{0};
	std::atomic<std::uint64_t> at_storage_{0};       // of those loading
	std::atomic<std::uint64_t> redirected_{0};       // of those loading
	std::atomic<std::uint32_t> redirected_level_{0}; // the greatest so far
	std::atomic<std::uint64_t> elsewhere_{0};
	std::atomic<std::uint64_t> given_{0};
	std::atomic<bool> stays_{false};
	std::atomic<std::uint32_t> holder_{COOP_NONE};
	std::atomic<std::uint8_t> chances_{max_chances};
	std::atomic<std::uint32_t> level_{0};
	std::atomic<bool> watched_{false};
	std::atomic<std::uint64_t> file_size_;
	std::atomic<std::uint32_t> pins_{1};  // made for the caller of get()
	std::atomic<std::uint32_t> epoch_{0}; // futex: changes when loading_ loses bits
	std::atomic<std::uint32_t> waiters_{0};
	page_store &owner_;
	const std::uint32_t pages_;
	const unsigned page_shift_;
};

inline block_ref &block_ref::operator=(block_ref &&o) noexcept
{
	if (this != &o) {
		if (b_ != nullptr)
			b_->unpin();
		b_ = o.b_;
		o.b_ = nullptr;
	}
	return *this;
}

inline block_ref::~block_ref()
{
	if (b_ != nullptr)
		b_->unpin();
}

inline block_ref block_ref::clone() const
{
	if (b_ != nullptr)
		b_->pin();
	return block_ref(b_);
}

// Zeroes what lies past the end of the file in the block's last page, if that is among 'pages'.
void zero_tail(const block &, std::uint64_t pages, std::uint64_t file_size, unsigned page_shift);

} // namespace coop::client
