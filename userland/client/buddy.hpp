// SPDX-License-Identifier: MIT
// buddy.hpp - runs of 1, 2, 4 ... 64 pages of an arena.
//
// The arena is divided into frames of 64 pages, the largest run. Two free halves join again at
// once, so small files that are evicted leave whole frames behind. Free runs of one order form a
// doubly linked list through two arrays of page numbers: every step takes constant time, and
// nothing is allocated after creation.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace coop::client
{

class buddy
{
public:
	static constexpr unsigned max_order = 6;
	static constexpr std::uint32_t frame_pages = 1u << max_order;
	static constexpr std::uint32_t none = 0xffffffffu;

	// Pages [first, first + frames * 64), all free; first is a multiple of 64.
	buddy(std::uint32_t first, std::uint32_t frames);
	// Number of the first page, or none.
	std::uint32_t alloc(unsigned order);
	void free(std::uint32_t page, unsigned order);
	std::uint32_t free_pages() const { return free_pages_; }
	// Nothing of the frame is in use.
	bool frame_is_free(std::uint32_t frame) const
	{
		return order_[std::size_t{frame} * frame_pages] == max_order;
	}
	std::uint32_t free_frame_count() const { return free_frames_; }
	// All such frames; those that alloc() takes first are first. Of an arena that begins at 0.
	std::vector<std::uint32_t> free_frames() const;
	bool owns(std::uint32_t page) const
	{
		return page >= first_ && page - first_ < next_.size();
	}

private:
	static constexpr std::uint8_t not_free = 0xff;

	void push(std::uint32_t at, unsigned order);
	void remove(std::uint32_t at, unsigned order);

	// All indices below are relative to first_.
	std::uint32_t first_;
	std::uint32_t free_pages_ = 0, free_frames_ = 0;
	std::array<std::uint32_t, max_order + 1> head_;
	std::vector<std::uint32_t> next_, prev_;
	std::vector<std::uint8_t> order_; // of the free run that begins here, or not_free
};

} // namespace coop::client
