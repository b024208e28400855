// SPDX-License-Identifier: MIT
// buddy.cpp - see buddy.hpp. The number of a run's buddy differs from its own in exactly the bit of
// its order, so joining needs no search.
#include "userland/client/buddy.hpp"

namespace coop::client
{

buddy::buddy(std::uint32_t first, std::uint32_t frames) :
	first_(first),
	next_(std::size_t{frames} * frame_pages, none),
	prev_(std::size_t{frames} * frame_pages, none),
	order_(std::size_t{frames} * frame_pages, not_free)
{
	head_.fill(none);
	// Push from the end, so that allocation fills the arena from its start.
	for (std::uint32_t f = frames; f-- > 0;)
		push(f * frame_pages, max_order);
	free_pages_ = frames * frame_pages;
}

void buddy::push(std::uint32_t at, unsigned order)
{
	free_frames_ += order == max_order;
	order_[at] = static_cast<std::uint8_t>(order);
	prev_[at] = none;
	next_[at] = head_[order];
	if (head_[order] != none)
		prev_[head_[order]] = at;
	head_[order] = at;
}

void buddy::remove(std::uint32_t at, unsigned order)
{
	free_frames_ -= order == max_order;
	if (prev_[at] != none)
		next_[prev_[at]] = next_[at];
	else
		head_[order] = next_[at];
	if (next_[at] != none)
		prev_[next_[at]] = prev_[at];
	order_[at] = not_free;
}

std::uint32_t buddy::alloc(unsigned order)
{
	unsigned have = order;
	while (have <= max_order && head_[have] == none)
		have++;
	if (have > max_order)
		return none;
	const std::uint32_t at = head_[have];
	remove(at, have);
	while (have > order) {
		have--;
		push(at + (1u << have), have);
	}
	free_pages_ -= 1u << order;
	return first_ + at;
}

std::vector<std::uint32_t> buddy::free_frames() const
{
	std::vector<std::uint32_t> out;
	for (std::uint32_t at = head_[max_order]; at != none; at = next_[at])
		out.push_back(at / frame_pages);
	return out;
}

void buddy::free(std::uint32_t page, unsigned order)
{
	std::uint32_t at = page - first_;
	free_pages_ += 1u << order;
	while (order < max_order) {
		const std::uint32_t other = at ^ (1u << order);
		if (order_[other] != order)
			break;
		remove(other, order);
		at &= ~(1u << order);
		order++;
	}
	push(at, order);
}

} // namespace coop::client
