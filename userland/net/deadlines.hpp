// SPDX-License-Identifier: MIT
// deadlines.hpp - operations with a deadline, the earliest first.
//
// A binary heap of slots. Each slot knows its index in the heap, so an operation that ends removes
// its deadline. Operations without a deadline cost nothing.
#pragma once

#include <utility>
#include <vector>

#include "slots.hpp"

namespace coop::net::core
{

class deadline_heap
{
public:
	time_point earliest() const { return heap_.empty() ? never : heap_[0]->deadline; }
	slot *first() const { return heap_.empty() ? nullptr : heap_[0]; }

	void insert(slot &s)
	{
		heap_.push_back(&s);
		put(heap_.size() - 1, &s);
		up(heap_.size() - 1);
	}
	/// No effect if the slot is not in the heap.
	void erase(slot &s)
	{
		const std::size_t at = s.heap_at;
		if (at == no_slot)
			return;
		s.heap_at = no_slot;
		slot *last = heap_.back();
		heap_.pop_back();
		if (last == &s)
			return;
		put(at, last);
		up(at);
		down(last->heap_at);
	}

private:
	void put(std::size_t at, slot *s)
	{
		heap_[at] = s;
		s->heap_at = static_cast<std::uint32_t>(at);
	}
	void swap(std::size_t a, std::size_t b)
	{
		slot *s = heap_[a];
		put(a, heap_[b]);
		put(b, s);
	}
	bool less(std::size_t a, std::size_t b) const
	{
		return heap_[a]->deadline < heap_[b]->deadline;
	}
	void up(std::size_t at)
	{
		for (; at > 0 && less(at, (at - 1) / 2); at = (at - 1) / 2)
			swap(at, (at - 1) / 2);
	}
	void down(std::size_t at)
	{
		for (;;) {
			std::size_t least = at;
			for (std::size_t child = 2 * at + 1; child <= 2 * at + 2; child++)
				if (child < heap_.size() && less(child, least))
					least = child;
			if (least == at)
				return;
			swap(at, least);
			at = least;
		}
	}

	std::vector<slot *> heap_;
};

} // namespace coop::net::core
