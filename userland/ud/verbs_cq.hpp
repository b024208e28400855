// SPDX-License-Identifier: MIT
// verbs_cq.hpp - completion queues with room for every WR that can be posted.
//
// A completion queue that overflows kills all its queue pairs, so each queue pair
// reserves entries for all its WRs when it is made. What one completion queue cannot
// hold goes to another on the same channel, so that a device's limit on a queue does
// not limit the number of queue pairs. A queue pair that must not wait behind others'
// completions gets its own queue, in a separate set.
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
	// entries: per queue.
	completion_queues(ibv_context *context, ibv_comp_channel *channel, std::uint32_t entries) :
		context_(context),
		channel_(channel),
		entries_(entries)
	{
	}
	~completion_queues();
	completion_queues(const completion_queues &) = delete;
	completion_queues &operator=(const completion_queues &) = delete;

	// A queue with room for n more. nullptr: errno says why; ENOSPC: no queue can hold so many.
	ibv_cq *reserve(std::uint32_t n);
	// A queue for this caller alone.
	ibv_cq *reserve_alone(std::uint32_t n);
	// Returns a reservation of reserve() or reserve_alone() that was not used.
	void give_back(ibv_cq *, std::uint32_t n);
	// Polls the queues in the order of their creation, up to `each` entries per queue.
	std::size_t poll(std::span<ibv_wc>, std::size_t each);
	// False: the request failed for at least one queue.
	bool request_notify();
	// Counts an event of the channel, by its cq_context; not necessarily of this set.
	static void count_event(void *cq_context);
	std::uint32_t entries() const { return entries_; }

private:
	struct queue {
		verbs_cq cq;
		std::uint32_t promised = 0;
		bool alone = false;
		unsigned unacknowledged = 0;
	};

	ibv_cq *add(std::uint32_t entries, std::uint32_t promised, bool alone);

	ibv_context *context_;
	ibv_comp_channel *channel_;
	const std::uint32_t entries_;
	std::vector<std::unique_ptr<queue>> queues_;
};

} // namespace coop::ud
