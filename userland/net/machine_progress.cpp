// SPDX-License-Identifier: MIT
// machine_progress.cpp - who calls the transport, and who calls the handlers.
//
// With automatic delivery the background thread does both, and blocks when there is nothing.
// With synchronous delivery whoever calls pending() or deliver_all() does both. The
// background thread then sleeps through short leases: if at the end of one nobody has
// polled since its beginning, it takes the lead (progress, timers, no buffer events) until
// somebody polls again. notify() makes it take the lead at once. So a polling program shares
// neither lock nor descriptor with another thread, and one that has stopped polling still
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

// How long a program that polls synchronously may pause before the background thread helps; the
// longer, the longer it has polled: each look takes a processor from it for microseconds.
constexpr std::chrono::milliseconds lease{3}, longest_lease{12};
// Polls within a lease of a program that does nothing else.
constexpr std::uint64_t many_polls = 1000;
// Things a transport handles before others get the lock.
constexpr unsigned budget = 64;
// Turns that found something, one after the other, before deadlines are looked at again.
constexpr unsigned busy_turns_most = 16;
// Of the processor's counter: some microseconds where it counts cycles, 10 where it has 25 MHz.
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

// What callbacks have added leaves at the latest when the last of their batch returns.
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

// To compute when the next one is costs more than to poll once, so those who poll without a
// pause look at the counter of the processor first. Whoever waits looks by next_deadline().
bool machine::deadlines_due()
{
	if (stamp() - looked_ < look_every)
		return false;
	time_messages();
	looked_ = stamp();
	const time_point due = next_deadline();
	return due != never && now() >= due;
}

// Makes progress. True: there may be more.
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

// Whether the thread sleeps and must not.
bool machine::sleeper_wanted()
{
	if (exit_ || !state_events_.empty())
		return true;
	if (sync_ ? notify_ && (deliverable() || sleeping_ == sleeping::leased) : !events_.empty())
		return true;
	// Others poll in its place, and the transport need not wake it any more: it is to go by
	// leases, or to arm anew.
	return sleeping_ == sleeping::armed &&
	       (polled_ >= spi::armed_calls || next_deadline() < sleep_until_);
}

void machine::kick()
{
	const std::uint64_t one = 1;
	[[maybe_unused]] ssize_t n = ::write(kick_fd_, &one, sizeof(one));
}

// A program that has polled in the meantime is not disturbed: it has the lock all the time.
void machine::sleep(std::uint64_t &polls_seen)
{
	pollfd p[2] = {{kick_fd_, POLLIN, 0}, {sleep_fd_, POLLIN, 0}};
	const bool leased = sleeping_ == sleeping::leased; // nobody else writes it
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
		// The writer may be between the lock and the write; then this read finds
		// nothing, and the next sleep ends early, once.
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

// Another call is in handlers, of another thread or below on this one's stack. What it has not
// told yet of a buffer comes before all else of that buffer, above all before its end.
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

// Calls the handlers of what was taken while delivering_ was raised.
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
			// Of the last the buffer is the program's: it is not looked at again.
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
