// SPDX-License-Identifier: MIT
// progress.cpp - which thread calls the transport, and which calls the handlers.
//
// With automatic delivery the background thread does both, and blocks while there is nothing to do.
// With synchronous delivery a thread that calls pending() or deliver_all() does both. The
// background thread then sleeps in short leases: if nothing has polled during a lease, it takes
// over (progress and timers, but no buffer events) until a thread polls again. notify() makes it
// take over at once. So a polling program shares neither lock nor descriptor with another thread,
// and a program that has stopped polling still answers its peers.
#include <algorithm>
#include <cerrno>

#include "machine.hpp"

namespace coop::net::core
{

namespace
{

// Items that a transport handles before other threads get the lock.
constexpr unsigned budget = 64;
// Consecutive turns with work before deadlines are checked again.
constexpr unsigned busy_turns_most = 16;
// In ticks of the processor's counter: a few microseconds if it counts cycles, 10 at 25 MHz.
#if defined(__aarch64__)
constexpr ticks look_every = 256;
#else
constexpr ticks look_every = 8192;
#endif

} // namespace

time_point machine::next_deadline()
{
	if (!station_.live())
		return never;
	return std::min(operations_.deadline(), station_.transport->deadline());
}

// Computing the next deadline costs more than a poll, so a thread that polls without a pause first
// reads the processor's counter. A thread that waits uses next_deadline().
bool machine::deadlines_due()
{
	if (station_.stamp() - looked_ < look_every)
		return false;
	operations_.time_messages();
	looked_ = station_.stamp();
	const time_point due = next_deadline();
	return due != never && now() >= due;
}

// Makes progress. True: there may be more work.
bool machine::turn()
{
	const tm_state s = state();
	if (!station_.live() || s < tm_state::starting || s > tm_state::stopping)
		return false;
	operations_.flush();
	sleeper_.count_progress();
	bool busy = station_.transport->progress(budget) != 0;
	if (busy && !station_.over && ++busy_turns_ < busy_turns_most)
		return true;
	busy_turns_ = 0;
	if (deadlines_due()) {
		while (slot *late = operations_.expired())
			cancel(*late, -ETIMEDOUT);
		if (!station_.over && station_.transport->deadline() <= now())
			station_.transport->expire(now());
		busy = true;
	}
	return busy || station_.over;
}

// Whether the sleeping thread has to wake.
bool machine::sleeper_wanted()
{
	if (exit_ || delivery_.for_thread())
		return true;
	if (notify_ && (delivery_.deliverable() || sleeper_.leased()))
		return true;
	return sleeper_.outdated([this] { return next_deadline(); });
}

void machine::run()
{
	time_point idle_since = never;
	batch b;
	for (;;) {
		{
			hold h(*this);
			const bool polled = sleeper_.polled();
			const bool lead = !delivery_.sync || notify_ || !polled;
			const bool busy = lead && turn();
			settle();
			if (notify_ && delivery_.deliverable())
				std::exchange(notify_, nullptr)->signal();
			if (delivery_.take(b, true)) {
				idle_since = never;
			} else if (exit_) {
				return;
			} else if (busy) {
				idle_since = never;
				continue;
			} else if (!lead) {
				sleeper_.lease(now());
			} else {
				if (!delivery_.sync && spin_.count() > 0) {
					if (idle_since == never)
						idle_since = now();
					if (now() - idle_since < spin_)
						continue;
				}
				spi::transport_machine *t = station_.transport.get();
				if (t && !t->arm())
					continue;
				sleeper_.arm(t ? t->fd() : -1, next_deadline());
			}
		}
		if (!b.empty()) {
			deliver(b);
			continue;
		}
		const bool kicked = sleeper_.sleep();
		std::lock_guard guard(lock_);
		sleeper_.awake(kicked);
	}
}

// Calls the handlers of a batch that was taken.
void machine::deliver(batch &b)
{
	const bool senders = delivery_.call(b, [this](const event &e) {
		if (handler_)
			handler_->on_state({&handle_, e.state, e.what.status});
		std::lock_guard guard(lock_);
		told_ = e.state;
		changed_.notify_all();
	});

	hold h(*this);
	operations_.time_messages();
	operations_.flush(); // messages that handlers have added
	if (senders)
		for (const event &e : b)
			if (e.sender)
				peers_.unuse(*e.sender);
	delivery_.done(b);
	if (delivery_.idle() && state() == tm_state::undefined)
		changed_.notify_all();
}

// Looks for events on behalf of the program, under the lock. @return whether there are any.
bool machine::poll()
{
	if (!delivery_.sync)
		return false;
	sleeper_.count_poll();
	if (!delivery_.deliverable()) {
		turn();
		settle();
	}
	return delivery_.deliverable();
}

std::size_t machine::deliver_all()
{
	batch b;
	{
		hold h(*this);
		if (!poll() || !delivery_.take(b, false))
			return 0;
	}
	const std::size_t n = b.size();
	deliver(b);
	return n;
}

} // namespace coop::net::core
