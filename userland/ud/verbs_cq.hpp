// SPDX-License-Identifier: MIT
// verbs_cq.hpp - completion queues with room for every WR that can be posted.
//
// A completion queue that overflows kills all its queue pairs, so each of them
// reserves what it may owe when it is made. What one queue cannot hold goes to
// another one on the same channel: a device's limit on one queue limits no
// number of queue pairs. Who shall not stand behind others' completions gets a
// queue alone, in a set of such.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "userland/ud/verbs_device.hpp"

namespace coop::ud
{

class completion_queues
{
public:
	// entries: of one queue.
	completion_queues(ibv_context *context, ibv_comp_channel *channel, std::uint32_t entries) :
		context_(context),
		channel_(channel),
		entries_(entries)
	{
	}
	~completion_queues();
	completion_queues(const completion_queues &) = delete;
	completion_queues &operator=(const completion_queues &) = delete;

	// One with room for n more. nullptr: errno says why; ENOSPC: none can hold as many.
	ibv_cq *reserve(std::uint32_t n);
	// One that nobody else will get.
	ibv_cq *reserve_alone(std::uint32_t n);
	// As reserve() or reserve_alone() gave it, to somebody who has not used it.
	void give_back(ibv_cq *, std::uint32_t n);
	// In the order of their making, up to `each` of one queue.
	std::size_t poll(std::span<ibv_wc>, std::size_t each);
	// False: at least one device queue could not be asked.
	bool request_notify();
	// An event of the channel, as its cq_context; not necessarily of this set.
	static void count_event(void *cq_context);
	std::uint32_t entries() const { return entries_; }

private:
	struct queue {
		verbs_cq cq;
		std::uint32_t promised = 0;
		bool alone = false;
		unsigned unacknowledged = 0;
	};

	queue *add(std::uint32_t entries);

	ibv_context *context_;
	ibv_comp_channel *channel_;
	const std::uint32_t entries_;
	std::vector<std::unique_ptr<queue>> queues_;
};

} // namespace coop::ud
