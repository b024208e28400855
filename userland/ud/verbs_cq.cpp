// SPDX-License-Identifier: MIT
// verbs_cq.cpp - see verbs_cq.hpp.
#include "userland/ud/verbs_cq.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <unistd.h>

namespace coop::ud
{

namespace
{
constexpr unsigned acknowledge_at = 1024; // because it takes a lock

// Queues take turns, and processes begin anywhere, so no processor has the interrupts of all.
int next_vector(const ibv_context &context)
{
	static std::atomic<unsigned> next{static_cast<unsigned>(::getpid())};
	const int vectors = std::max(context.num_comp_vectors, 1);
	return static_cast<int>(next++ % static_cast<unsigned>(vectors));
}
} // namespace

completion_queues::~completion_queues()
{
	for (const auto &q : queues_)
		ibv_ack_cq_events(q->cq.get(), q->unacknowledged);
}

ibv_cq *completion_queues::reserve(std::uint32_t n)
{
	if (n > entries_) {
		errno = ENOSPC;
		return nullptr;
	}
	for (const auto &q : queues_) {
		if (!q->alone && n <= entries_ - q->promised) {
			q->promised += n;
			return q->cq.get();
		}
	}
	return add(entries_, n, false);
}

ibv_cq *completion_queues::reserve_alone(std::uint32_t n)
{
	if (n > entries_) {
		errno = ENOSPC;
		return nullptr;
	}
	return add(std::max(n, 1u), n, true);
}

// nullptr: errno says why.
ibv_cq *completion_queues::add(std::uint32_t entries, std::uint32_t promised, bool alone)
{
	auto q = std::make_unique<queue>();
	q->promised = promised;
	q->alone = alone;
	errno = 0;
	q->cq.reset(ibv_create_cq(context_, static_cast<int>(entries), q.get(), channel_,
				  next_vector(*context_)));
	if (!q->cq) {
		errno = errno ? errno : ENOMEM;
		return nullptr;
	}
	queues_.push_back(std::move(q));
	return queues_.back()->cq.get();
}

void completion_queues::give_back(ibv_cq *cq, std::uint32_t n)
{
	const auto it = std::find_if(queues_.begin(), queues_.end(),
				     [cq](const auto &q) { return q->cq.get() == cq; });
	if (it == queues_.end())
		return;
	(*it)->promised -= n;
	// A shared queue may have users with no reserved entries.
	if ((*it)->alone)
		queues_.erase(it);
}

std::size_t completion_queues::poll(std::span<ibv_wc> out, std::size_t each)
{
	std::size_t n = 0;
	for (const auto &q : queues_) {
		const std::size_t most = std::min(each, out.size() - n);
		const int got = ibv_poll_cq(q->cq.get(), static_cast<int>(most), out.data() + n);
		n += got > 0 ? static_cast<std::size_t>(got) : 0;
		if (n == out.size())
			break;
	}
	return n;
}

bool completion_queues::request_notify()
{
	bool all = true;
	for (const auto &q : queues_)
		all &= !ibv_req_notify_cq(q->cq.get(), 0);
	return all;
}

void completion_queues::count_event(void *cq_context)
{
	queue *q = static_cast<queue *>(cq_context);
	if (++q->unacknowledged < acknowledge_at)
		return;
	ibv_ack_cq_events(q->cq.get(), q->unacknowledged);
	q->unacknowledged = 0;
}

} // namespace coop::ud
