// SPDX-License-Identifier: MIT
// machine_progress.cpp - which thread calls the transport, and which calls the handlers.
//
// With automatic delivery the background thread does both, and blocks while there is nothing to do.
// With synchronous delivery a thread that calls pending() or deliver_all() does both. The
// background thread then sleeps in short leases: if nothing has polled during a lease, it takes
// over (progress and timers, but no buffer events) until a thread polls again. notify() makes it
// take over at once. So a polling program shares neither lock nor descriptor with another thread,
// and a program that has stopped polling still answers its peers.
// answers its peers.
#include <algorithm>
#include <cerrno>
#include <unistd.h>

#include "buffer_state.hpp"
#include "machine.hpp"
#include "wait.hpp"

namespace coop::net::core
{

namespace
{

// How long a synchronously polling program may pause before the background thread helps. The longer
// it has polled, the longer the lease: each check takes a processor from it for microseconds.
constexpr std::chrono::milliseconds lease{3}, longest_lease{12};
// Polls within a lease by a program that does nothing else.
constexpr std::uint64_t many_polls = 1000;
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

// Machines whose callbacks are on this thread's stack.
struct frame {
	const machine *m;
	const frame *below;
	bool more; // callbacks follow the one that runs
};
thread_local const frame *top_frame = nullptr;

} // namespace

bool machine::on_its_stack() const
{
	for (const frame *f = top_frame; f; f = f->below)
		if (f->m == this)
			return true;
	return false;
}

bool machine::more_follows() const
{
	return top_frame && top_frame->m == this && top_frame->more;
}

// Messages added by callbacks are sent at the latest when the last callback of the batch returns.
void machine::flush()
{
	if (std::exchange(held_back_, false) && transport_ && !transport_over_)
		transport_->flush();
}

time_point machine::next_deadline()
{
	if (!transport_ || transport_over_)
		return never;
	return std::min(deadlines_.earliest(), transport_->deadline());
}

// Computing the next deadline costs more than a poll, so a thread that polls without a pause first
// reads the processor's counter. A thread that waits uses next_deadline().
bool machine::deadlines_due()
{
	if (stamp() - looked_ < look_every)
		return false;
	time_messages();
	looked_ = stamp();
	const time_point due = next_deadline();
	return due != never && now() >= due;
}

// Makes progress. True: there may be more work.
bool machine::turn()
{
	const tm_state s = state();
	if (!transport_ || transport_over_ || s < tm_state::starting || s > tm_state::stopping)
		return false;
	flush();
	polled_++;
	bool busy = transport_->progress(budget) != 0;
	if (busy && !transport_over_ && ++busy_turns_ < busy_turns_most)
		return true;
	busy_turns_ = 0;
	if (deadlines_due()) {
		expire_operations();
		if (!transport_over_ && transport_->deadline() <= now())
			transport_->expire(now());
		busy = true;
	}
	return busy || transport_over_;
}

// Whether the sleeping thread has to wake.
bool machine::sleeper_wanted()
{
	if (exit_ || !state_events_.empty())
		return true;
	if (sync_ ? notify_ && (deliverable() || sleeping_ == sleeping::leased) : !events_.empty())
		return true;
	// Other threads poll in its place, and the transport is no longer obliged to wake it:
	// change to leases, or arm again.
	return sleeping_ == sleeping::armed &&
	       (polled_ >= spi::armed_calls || next_deadline() < sleep_until_);
}

void machine::kick()
{
	const std::uint64_t one = 1;
	[[maybe_unused]] ssize_t n = ::write(kick_fd_, &one, sizeof(one));
}

// Do not disturb a program that polled in the meantime: it takes the lock all the time.
void machine::sleep(std::uint64_t &polls_seen)
{
	pollfd p[2] = {{kick_fd_, POLLIN, 0}, {sleep_fd_, POLLIN, 0}};
	const bool leased = sleeping_ == sleeping::leased; // only this thread writes it
	time_point until = sleep_until_;
	for (auto next = 2 * lease;; next = std::min(2 * next, longest_lease)) {
		poll_until(p, sleep_fd_ >= 0 ? 2 : 1, until);
		const std::uint64_t polls = polls_.load(std::memory_order_relaxed);
		if (!leased || p[0].revents || polls - polls_seen < many_polls)
			break;
		polls_seen = polls;
		until = clock::now() + next;
	}
	std::lock_guard guard(lock_);
	sleeping_ = sleeping::no;
	std::uint64_t n;
	if (kicked_) {
		// The writer may be between lock and write; then this read finds nothing, and the
		// next sleep ends early, once.
		[[maybe_unused]] ssize_t r = ::read(kick_fd_, &n, sizeof(n));
		kicked_ = false;
	} else if (p[0].revents) {
		[[maybe_unused]] ssize_t r = ::read(kick_fd_, &n, sizeof(n));
	}
}

void machine::run()
{
	std::uint64_t polls_seen = 0;
	time_point idle_since = never;
	batch b;
	for (;;) {
		{
			hold h(*this);
			const bool lead = !sync_ || notify_ || polls_ == polls_seen;
			polls_seen = polls_;
			const bool busy = lead && turn();
			settle();
			if (sync_ && notify_ && deliverable())
				std::exchange(notify_, nullptr)->signal();
			take(b, sync_ ? state_events_ : events_);
			if (!b.empty()) {
				delivering_++;
				idle_since = never;
			} else if (exit_) {
				return;
			} else if (busy) {
				idle_since = never;
				continue;
			} else if (!lead) {
				sleeping_ = sleeping::leased;
				sleep_fd_ = -1;
				sleep_until_ = now() + lease;
			} else {
				if (!sync_ && spin_.count() > 0) {
					if (idle_since == never)
						idle_since = now();
					if (now() - idle_since < spin_)
						continue;
				}
				if (transport_ && !transport_->arm())
					continue;
				sleeping_ = sleeping::armed;
				polled_ = 0;
				sleep_fd_ = transport_ ? transport_->fd() : -1;
				sleep_until_ = next_deadline();
			}
		}
		if (b.empty())
			sleep(polls_seen);
		else
			deliver(b);
	}
}

void machine::take(batch &b, batch &from)
{
	if (from.empty())
		return;
	if (b.capacity() == 0)
		b.swap(spare_);
	if (sync_ && delivering_)
		take_apart(b, from);
	else
		b.swap(from);
	if (sync_)
		for (const event &e : b)
			if (e.buffer && e.what.queued)
				e.buffer->in_hand.fetch_add(1, std::memory_order_relaxed);
}

// Another call is in handlers, on another thread or further down this stack. Its undelivered events
// of a buffer must precede all later events of that buffer, in particular its final one.
void machine::take_apart(batch &b, batch &from)
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

// Whether deliver_all() would deliver something now.
bool machine::deliverable() const
{
	return delivering_ == 0 ? !events_.empty()
				: std::any_of(events_.begin(), events_.end(), [](const event &e) {
					  return !e.buffer->in_hand.load(std::memory_order_acquire);
				  });
}

// Calls the handlers of a batch that was taken while delivering_ was raised.
void machine::deliver(batch &b)
{
	frame here{this, top_frame, true};
	top_frame = &here;
	bool senders = false;
	for (event &e : b) {
		here.more = &e != &b.back();
		if (e.buffer) {
			e.what.buffer = e.buffer->handle;
			senders |= e.sender != nullptr;
			// The final event returns the buffer to the program: do not touch it again.
			const bool last = !e.what.queued;
			if (last)
				e.buffer->let_go();
			e.handler->on_buffer(e.what);
			if (!last && sync_)
				e.buffer->in_hand.fetch_sub(1, std::memory_order_release);
			continue;
		}
		if (handler_)
			handler_->on_state({&handle_, e.state, e.what.status});
		std::lock_guard guard(lock_);
		told_ = e.state;
		changed_.notify_all();
	}
	top_frame = here.below;

	hold h(*this);
	time_messages();
	flush();
	if (senders)
		for (const event &e : b)
			if (e.sender)
				unuse(*e.sender);
	b.clear();
	if (spare_.capacity() < b.capacity())
		spare_.swap(b);
	if (--delivering_ == 0 && state() == tm_state::undefined)
		changed_.notify_all();
}

bool machine::pending()
{
	hold h(*this);
	if (!sync_)
		return false;
	count_poll();
	if (!deliverable()) {
		turn();
		settle();
	}
	return deliverable();
}

std::size_t machine::deliver_all()
{
	batch b;
	{
		hold h(*this);
		if (!sync_)
			return 0;
		count_poll();
		if (!deliverable()) {
			turn();
			settle();
		}
		take(b, events_);
		if (b.empty()) {
			if (b.capacity() > spare_.capacity())
				spare_.swap(b);
			return 0;
		}
		delivering_++;
	}
	const std::size_t n = b.size();
	deliver(b);
	return n;
}

int machine::notify(channel &c)
{
	hold h(*this);
	if (!sync_)
		return -EBADFD;
	notify_ = &c;
	return 0;
}

} // namespace coop::net::core
