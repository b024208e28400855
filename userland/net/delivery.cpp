// SPDX-License-Identifier: MIT
// delivery.cpp - see delivery.hpp.
#include "delivery.hpp"

#include <algorithm>

namespace coop::net::core
{

thread_local const delivery::frame *delivery::top_ = nullptr;

bool delivery::on_its_stack() const
{
	for (const frame *f = top_; f; f = f->below)
		if (f->of == this)
			return true;
	return false;
}

void delivery::push_state(tm_state s, int status)
{
	event e{};
	e.state = s;
	e.what.status = status;
	(sync ? state_events_ : events_).push_back(e);
}

bool delivery::deliverable() const
{
	return delivering_ == 0 ? !events_.empty()
				: std::any_of(events_.begin(), events_.end(), [](const event &e) {
					  return !e.buffer->in_hand.load(std::memory_order_acquire);
				  });
}

bool delivery::take(batch &b, bool by_thread)
{
	batch &from = sync && by_thread ? state_events_ : events_;
	if (from.empty())
		return false;
	if (b.capacity() == 0)
		b.swap(spare_);
	if (sync && delivering_)
		take_apart(b, from);
	else
		b.swap(from);
	if (sync)
		for (const event &e : b)
			if (e.buffer && e.what.queued)
				e.buffer->in_hand.fetch_add(1, std::memory_order_relaxed);
	if (!b.empty())
		delivering_++;
	else if (spare_.capacity() < b.capacity())
		spare_.swap(b);
	return !b.empty();
}

// Another call is in handlers, on another thread or further down this stack. Its undelivered events
// of a buffer must precede all later events of that buffer, in particular its final one.
void delivery::take_apart(batch &b, batch &from)
{
	auto keep = from.begin();
	for (event &e : from) {
		buffer_state *s = e.buffer;
		if (s && (s->waits || s->in_hand.load(std::memory_order_acquire))) {
			s->waits = true;
			*keep++ = e;
		} else {
			b.push_back(e);
		}
	}
	from.erase(keep, from.end());
	for (const event &e : from)
		e.buffer->waits = false;
}

void delivery::done(batch &b)
{
	b.clear();
	if (spare_.capacity() < b.capacity())
		spare_.swap(b);
	delivering_--;
}

} // namespace coop::net::core
