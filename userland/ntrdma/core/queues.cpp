// SPDX-License-Identifier: MIT
// queues.cpp - completion queues and shared receive queues; see queues.hpp.
#include "userland/ntrdma/core/queues.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "userland/ntrdma/core/queue_pair.hpp"

namespace coop::ntrdma
{

void completion_queue::add(queue_pair &pair)
{
	for (member &m : pairs_)
		if (m.pair == &pair) {
			m.uses++;
			return;
		}
	pairs_.push_back({&pair, 1});
}

void completion_queue::remove(queue_pair &pair)
{
	auto m = std::find_if(pairs_.begin(), pairs_.end(),
			      [&](const member &m) { return m.pair == &pair; });
	if (m != pairs_.end() && --m->uses == 0)
		pairs_.erase(m);
}

void completion_queue::catch_up(const queue_pair &ending)
{
	first_ = 0;
	for (const member &m : pairs_) {
		if (m.pair != &ending && m.pair->state() != pair_state::error)
			m.pair->take_all();
		first_ += m.pair->unpolled();
	}
}

std::size_t completion_queue::poll(std::span<completion> out)
{
	std::size_t n = go_round(out);
	if (n || !first_ || out.empty())
		return n;
	first_ = 0;
	return go_round(out);
}

std::size_t completion_queue::go_round(std::span<completion> out)
{
	std::size_t n = 0;
	for (std::size_t i = 0; i < pairs_.size() && n < out.size(); i++) {
		if (next_ >= pairs_.size())
			next_ = 0;
		queue_pair &pair = *pairs_[next_++].pair;
		// What is there already comes first: making progress may take a large copy.
		std::size_t got = pair.reap(*this, out.subspan(n), first_ != 0);
		if (!got && pair.stirs() && pair.progress())
			got = pair.reap(*this, out.subspan(n), first_ != 0);
		first_ -= std::min(got, first_);
		n += got;
	}
	return n;
}

bool completion_queue::unfinished() const
{
	return std::any_of(pairs_.begin(), pairs_.end(),
			   [](const member &m) { return m.pair->unfinished(); });
}

std::size_t completion_queue::waiting() const
{
	std::size_t n = 0;
	for (const member &m : pairs_)
		n += m.pair->waiting(*this);
	return n;
}

void completion_queue::request_notice(arm a)
{
	armed_ = armed_ == arm::any ? armed_ : a;
	bool solicited_only = armed_ == arm::solicited;
	if (std::any_of(pairs_.begin(), pairs_.end(), [&](const member &m) {
		    return m.pair->has_noticeable(*this, solicited_only);
	    }))
		note(true);
}

void completion_queue::note(bool solicited)
{
	if (armed_ == arm::none || (armed_ == arm::solicited && !solicited))
		return;
	armed_ = arm::none;
	watcher_.completed(*this);
}

shared_receives::shared_receives(watcher &w, std::uint32_t domain, std::uint32_t depth) :
	watcher_{w},
	domain_{domain},
	depth_{std::bit_ceil(std::max(depth, 1u))},
	ring_(depth_)
{
}

void shared_receives::set_limit(std::uint32_t limit)
{
	limit_ = limit;
	if (limit_ && post_ - take_ < limit_) {
		limit_ = 0;
		watcher_.few_receives(*this);
	}
}

int shared_receives::post(const recv_request &r)
{
	if (post_ - take_ == depth_)
		return -ENOMEM;
	copy_request(ring_[post_++ & (depth_ - 1)], r);
	return 0;
}

void shared_receives::take(recv_request &r)
{
	copy_request(r, ring_[take_++ & (depth_ - 1)]);
	if (limit_ && post_ - take_ < limit_) {
		limit_ = 0;
		watcher_.few_receives(*this);
	}
}

} // namespace coop::ntrdma
