// SPDX-License-Identifier: MIT
// delivery.hpp - events of a transfer machine until its handlers have returned.
//
// Owns the events that wait and the order of those in handlers. Handlers are called without the
// lock, from a batch taken under it; all else is guarded by the lock of the machine. With automatic
// delivery one list has all events; with synchronous delivery the program takes buffer events, and
// the background thread takes state events.
#pragma once

#include <utility>
#include <vector>

#include "buffer_state.hpp"
#include "coop/net/transfer_machine.hpp"
#include "peers.hpp"

namespace coop::net::core
{

/// An event to be delivered: of a buffer, or of a state, which is queued among them.
struct event {
	buffer_event what;
	buffer_state *buffer; // null: a state event
	buffer_handler *handler;
	peer *sender; // counted in uses until it is delivered
	tm_state state;
};
using batch = std::vector<event>;

class delivery
{
public:
	/// With synchronous delivery; constant from start() on.
	bool sync = false;

	void push(const event &e) { events_.push_back(e); }
	void push_state(tm_state, int status);
	/// Whether take() would find buffer events.
	bool deliverable() const;
	/// Whether the background thread has events to deliver.
	bool for_thread() const { return !(sync ? state_events_ : events_).empty(); }

	/// Moves events to `b`, which is empty, for call(). @return whether there are any.
	bool take(batch &b, bool by_thread);
	/// Calls the handlers of a batch, without the lock, and `state_event(event)` for state
	/// events. @return whether any event has a sender.
	template <class function> bool call(batch &, function state_event) const;
	/// After call(), under the lock.
	void done(batch &);
	/// No batch is in handlers.
	bool idle() const { return delivering_ == 0; }

	/// Whether the caller is a handler of this machine.
	bool on_its_stack() const;
	/// The same, and other handlers of the batch follow.
	bool more_follows() const { return top_ && top_->of == this && top_->more; }

private:
	/// A call() on this thread's stack.
	struct frame {
		const delivery *of;
		const frame *below;
		bool more; // handlers follow the one that runs
	};
	static thread_local const frame *top_;

	void take_apart(batch &, batch &from);

	batch events_, state_events_;
	batch spare_;             // capacity for the next batch
	unsigned delivering_ = 0; // number of batches in handlers
};

template <class function> bool delivery::call(batch &b, function state_event) const
{
	frame here{this, top_, true};
	top_ = &here;
	bool senders = false;
	for (event &e : b) {
		here.more = &e != &b.back();
		if (!e.buffer) {
			state_event(e);
			continue;
		}
		e.what.buffer = e.buffer->handle;
		senders |= e.sender != nullptr;
		// The final event returns the buffer to the program: do not touch it again.
		const bool last = !e.what.queued;
		if (last)
			e.buffer->let_go();
		e.handler->on_buffer(e.what);
		if (!last && sync)
			e.buffer->in_hand.fetch_sub(1, std::memory_order_release);
	}
	top_ = here.below;
	return senders;
}

} // namespace coop::net::core
