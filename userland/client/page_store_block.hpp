// SPDX-License-Identifier: MIT
// page_store_block.hpp - one block of the page store: its state of pages, and the
// links by which the store finds and evicts it.
//
// Page states are two words, valid and loading. valid only grows. A bit of
// loading is set by whoever claims the page and cleared by the same after it has
// set valid (or has not): so a page that is in neither word is absent.
//
// Pins and the store's own hold meet in one word: the pin count, and a bit that
// says that the store has forgotten the block. Whoever brings the word to
// "forgotten, no pins" frees the block, exactly once.
#pragma once

#include <atomic>
#include <cstdint>

#include "userland/client/page_store.hpp"

namespace coop::client
{

class block_impl;

// What a block needs of its store.
class block_owner
{
public:
	// When the last pin of a forgotten one goes.
	virtual void release_forgotten(block_impl *) = 0;
	// Before much of it is filled.
	virtual void need_memory(const block_impl &) = 0;

protected:
	~block_owner() = default;
};

enum class queue_id : std::uint8_t {
	none, // private or forgotten: no eviction
	small,
	main,
};

class block_impl final : public block
{
public:
	static constexpr std::uint32_t forgotten = 0x80000000u;
	static constexpr std::uint8_t max_uses = 3;
	// A claim of that part of a block is worth making all its memory present at once; for a
	// page here and there a fault each costs less, and the reader does not wait for the rest.
	static constexpr std::uint32_t much = 4;

	block_impl(block_owner &owner, std::byte *memory, std::uint64_t offset, unsigned page_shift,
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

	std::uint64_t index() const override { return index_; }
	std::uint32_t pages() const override { return pages_; }
	std::uint64_t file_size() const override
	{
		return file_size_.load(std::memory_order_relaxed);
	}
	std::byte *data(std::uint32_t page) const override
	{
		return memory_ + (std::size_t{page} << page_shift_);
	}
	std::uint64_t arena_offset(std::uint32_t page) const override
	{
		return offset_ + (std::uint64_t{page} << page_shift_);
	}
	std::uint64_t valid() const override { return valid_.load(std::memory_order_acquire); }
	std::uint64_t loading() const override { return loading_.load(std::memory_order_acquire); }
	std::uint64_t claim(std::uint64_t want) override;
	void publish(std::uint64_t pages, origin from) override;
	void abandon(std::uint64_t pages) override;
	std::uint64_t wait(std::uint64_t pages,
			   std::chrono::steady_clock::time_point deadline) override;
	void take_fresh(std::uint64_t pages, std::uint64_t &from_peer,
			std::uint64_t &from_storage) override;
	void pin() override { pins_.fetch_add(1, std::memory_order_relaxed); }
	void unpin() override;

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
	block_impl *hash_next = nullptr;
	block_impl *sibling_prev = nullptr, *sibling_next = nullptr; // same content
	block_impl *queue_prev = nullptr, *queue_next = nullptr;
	std::uint32_t first_page = 0; // of the arena
	std::uint8_t order = 0;
	queue_id queue = queue_id::none;

	std::atomic<std::uint8_t> uses{0}; // since it entered its queue, at most max_uses

private:
	void settle(std::uint64_t pages);

	const std::uint64_t index_;
	std::byte *const memory_;
	const std::uint64_t offset_;
	std::atomic<std::uint64_t> valid_{0}, loading_{0};
	std::atomic<std::uint64_t> fresh_peer_{0}, fresh_storage_{0};
	std::atomic<std::uint64_t> file_size_;
	std::atomic<std::uint32_t> pins_{1};  // made for the caller of get()
	std::atomic<std::uint32_t> epoch_{0}; // futex: changes when loading_ loses bits
	std::atomic<std::uint32_t> waiters_{0};
	block_owner &owner_;
	const std::uint32_t pages_;
	const unsigned page_shift_;
};

} // namespace coop::client
