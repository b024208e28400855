// SPDX-License-Identifier: MIT
// block_queues.cpp - see block_queues.hpp. The ghost queue holds numbers
// only; two blocks of one fingerprint cost a wrong guess, not a wrong page.
#include "userland/client/block_queues.hpp"

namespace coop::client
{

block_queues::block_queues(std::uint64_t capacity_bytes, unsigned page_shift) :
	small_limit_(capacity_bytes / 10),
	ghost_limit_(capacity_bytes - capacity_bytes / 10),
	page_shift_(page_shift)
{
}

void block_queues::push(queue_id id, block *b)
{
	list &l = of(id);
	b->queue = id;
	b->queue_prev = nullptr;
	b->queue_next = l.head;
	if (l.head != nullptr)
		l.head->queue_prev = b;
	else
		l.tail = b;
	l.head = b;
	l.bytes += weight(b);
	l.count++;
}

void block_queues::unlink(block *b)
{
	list &l = of(b->queue);
	(b->queue_prev != nullptr ? b->queue_prev->queue_next : l.head) = b->queue_next;
	(b->queue_next != nullptr ? b->queue_next->queue_prev : l.tail) = b->queue_prev;
	l.bytes -= weight(b);
	l.count--;
	b->queue = queue_id::none;
}

void block_queues::insert(block *b)
{
	const bool returns = ghost_set_.erase(fingerprint(b->key, b->index())) != 0;
	b->uses.store(0, std::memory_order_relaxed);
	push(returns ? queue_id::main : queue_id::small, b);
}

void block_queues::insert_last(block *b)
{
	b->uses.store(0, std::memory_order_relaxed);
	b->queue = queue_id::small;
	b->queue_next = nullptr;
	b->queue_prev = small_.tail;
	(small_.tail != nullptr ? small_.tail->queue_next : small_.head) = b;
	small_.tail = b;
	small_.bytes += weight(b);
	small_.count++;
}

block *block_queues::next() const
{
	const bool small = small_.count != 0 && (small_.bytes > small_limit_ || main_.count == 0);
	return small ? small_.tail : main_.tail;
}

bool block_queues::next_is_copy(unsigned order) const
{
	const block *b = next();
	return b != nullptr && b->order >= order && b->idle() && b->only_here() == 0 &&
	       b->uses.load(std::memory_order_relaxed) <= (b->queue == queue_id::small ? 1 : 0);
}

void block_queues::remove(block *b)
{
	if (b->queue != queue_id::none)
		unlink(b);
}

void block_queues::remember(const block *b)
{
	const std::uint64_t print = fingerprint(b->key, b->index());
	ghosts_.push_back({print, weight(b)});
	ghost_set_.insert(print);
	ghost_bytes_ += weight(b);
	while (ghost_bytes_ > ghost_limit_) {
		ghost_set_.erase(ghosts_.front().print);
		ghost_bytes_ -= ghosts_.front().bytes;
		ghosts_.pop_front();
	}
}

block *block_queues::victim()
{
	// Blocks passed over in each queue; when a whole queue was passed, it has no victim.
	std::uint64_t passed_small = 0, passed_main = 0;
	for (;;) {
		const bool small_left = passed_small < small_.count;
		const bool main_left = passed_main < main_.count;
		if (!small_left && !main_left)
			return nullptr;
		if (small_left && (small_.bytes > small_limit_ || !main_left)) {
			block *b = small_.tail;
			unlink(b);
			if (!b->idle()) {
				push(queue_id::small, b);
				passed_small++;
			} else if (b->uses.load(std::memory_order_relaxed) > 1) {
				b->uses.store(0, std::memory_order_relaxed);
				push(queue_id::main, b);
			} else {
				remember(b);
				return b;
			}
		} else {
			block *b = main_.tail;
			unlink(b);
			const std::uint8_t uses = b->uses.load(std::memory_order_relaxed);
			if (!b->idle()) {
				push(queue_id::main, b);
				passed_main++;
			} else if (uses > 0) {
				b->uses.store(static_cast<std::uint8_t>(uses - 1),
					      std::memory_order_relaxed);
				push(queue_id::main, b);
			} else {
				return b;
			}
		}
	}
}

} // namespace coop::client
