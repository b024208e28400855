// SPDX-License-Identifier: MIT
// node_driver.cpp - see node_driver.hpp.
#include "userland/client/node_driver.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>
#include <utility>

#include "userland/client/node.hpp"

namespace coop::client
{

namespace
{

// How long the background thread leaves the engine to threads that come and go.
constexpr std::uint64_t grace_us = 1000;
// A polling driver keeps its core for this long, then offers it to others at each turn:
// giving it up at once would cost the datagram that is about to come a time slice.
constexpr std::uint64_t hold_core_us = 20;
// A background thread that polled in vain this often, net, tries again one sleep in so many.
constexpr int poll_score_max = 8;
constexpr std::uint32_t poll_trial = 8;
// Above this many pages a transfer is bulk.
constexpr std::uint32_t small_pages = 8;

void relax()
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

void idle(std::uint64_t since_us)
{
	if (since_us < hold_core_us)
		relax();
	else
		::sched_yield();
}

int make_event()
{
	const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		throw std::system_error(errno, std::generic_category(), "node: eventfd");
	return fd;
}

void futex_wait_until(std::atomic<std::uint32_t> &word, std::uint32_t value, std::uint64_t us)
{
	const timespec at{static_cast<time_t>(us / 1000000),
			  static_cast<long>(us % 1000000 * 1000)};
	::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, value, &at, nullptr,
		  FUTEX_BITSET_MATCH_ANY);
}

std::uint32_t mean(std::uint32_t old, std::uint64_t sample)
{
	return static_cast<std::uint32_t>((old * std::uint64_t{3} + sample + 2) / 4);
}

} // namespace

void engine_mutex::lock()
{
	for (int i = 0; i < 100; i++) {
		if (mutex_.try_lock())
			return;
		relax();
	}
	waiting_.fetch_add(1, std::memory_order_relaxed);
	mutex_.lock();
	waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void engine_mutex::give_way()
{
	for (int i = 0; i < 20 && waiting_.load(std::memory_order_relaxed) != 0; i++)
		::sched_yield();
}

void node_driver::bed::kick()
{
	const std::uint64_t one = 1;
	if (asleep.load(std::memory_order_seq_cst))
		(void)!::write(event, &one, sizeof(one));
}

node_driver::node_driver(node &n, std::uint32_t poll_us) : node_(n), poll_us_(poll_us)
{
	foreground_bed_.event = make_event();
	background_bed_.event = make_event();
	thread_ = std::thread([this] { background(); });
}

node_driver::~node_driver()
{
	{
		const std::lock_guard lock(state_mutex_);
		stop_.store(true);
		parked_.notify_all();
	}
	background_bed_.kick();
	thread_.join();
	::close(foreground_bed_.event);
	::close(background_bed_.event);
}

bool node_driver::busy() const
{
	return in_flight_.load(std::memory_order_relaxed) != 0 ||
	       serving_.load(std::memory_order_relaxed) != 0 || node_.departures_.kept() != 0;
}

void node_driver::mirror()
{
	in_flight_.store(node_.fetches_.in_flight(), std::memory_order_relaxed);
	pages_in_flight_.store(node_.fetches_.pages_in_flight(), std::memory_order_relaxed);
	serving_.store(node_.serves_.in_progress(), std::memory_order_relaxed);
}

void node_driver::watch_traffic(std::uint64_t now)
{
	const block_serves &served = node_.serves_;
	const std::uint64_t requests = served.lookups() - seen_requests_;
	if (requests == 0)
		return;
	const std::uint64_t pages = served.pages_looked_up() - seen_pages_;
	seen_requests_ += requests;
	seen_pages_ += pages;
	const std::uint64_t gap = std::min<std::uint64_t>((now - last_request_) / requests, 10000);
	last_request_ = now;
	gap_us_.store(mean(gap_us_.load(std::memory_order_relaxed), gap),
		      std::memory_order_relaxed);
	pages_per_request_.store(
		mean(pages_per_request_.load(std::memory_order_relaxed), pages / requests),
		std::memory_order_relaxed);
}

std::uint64_t node_driver::foreground_polling() const
{
	const std::uint32_t pages = pages_in_flight_.load(std::memory_order_relaxed);
	return pages != 0 && pages <= small_pages ? poll_us_ : 0;
}

// The background thread has nothing to do: shall it poll for a while before it sleeps?
bool node_driver::polling_pays()
{
	// The gap contains the wake-up that polling would save, so it may be much longer than
	// polling lasts; whether it helps is then seen.
	if (gap_us_.load(std::memory_order_relaxed) > 10 * poll_us_ ||
	    pages_per_request_.load(std::memory_order_relaxed) > small_pages)
		return false;
	return poll_score_ >= 0 || ++sleeps_ % poll_trial == 0;
}

void node_driver::note_submitted()
{
	mirror();
	// A driver sleeps until the deadline that the engine had then: an earlier one wakes it.
	const std::uint64_t deadline = coop_engine_deadline(node_.host_.engine());
	for (bed *b : {&foreground_bed_, &background_bed_})
		if (deadline < b->until.load(std::memory_order_relaxed))
			b->kick();
}

bool node_driver::turn(std::uint64_t now)
{
	engine_mutex_.lock();
	const bool any = node_.pump(now);
	std::vector<block_fetches::ended> ended;
	std::function<void()> news;
	std::vector<wanted_pages> wanted = node_.serves_.take_wanted();
	std::vector<offered_pages> offers = std::exchange(node_.offers_to_take_, {});
	if (any) {
		news = std::exchange(node_.news_, nullptr);
		watch_traffic(now);
		mirror();
	}
	ended = node_.fetches_.take_ended(); // also what ended in another thread's call
	engine_mutex_.unlock();
	if (!ended.empty())
		report(std::move(ended));
	const bool relays = !wanted.empty();
	if (relays)
		node_.relay(std::move(wanted));
	for (const offered_pages &o : offers)
		node_.on_offered_(o);
	if (news)
		news();
	engine_mutex_.give_way();
	return any || relays;
}

void node_driver::report(std::vector<block_fetches::ended> ended)
{
	for (block_fetches::ended &e : ended)
		e.done(e.outcome);
	ended.clear();
	wake();
}

void node_driver::wake()
{
	// Pairs with the fence in sleep() and the mutex of a waiter that joins: either it sees
	// what was published, or it is seen here.
	std::atomic_thread_fence(std::memory_order_seq_cst);
	foreground_bed_.kick();
	if (waiters_.load(std::memory_order_seq_cst) != 0)
		wake_finished();
}

void node_driver::nudge()
{
	std::atomic_thread_fence(std::memory_order_seq_cst);
	foreground_bed_.kick();
	background_bed_.kick();
	tend();
}

void node_driver::wake_finished()
{
	const std::lock_guard lock(state_mutex_);
	for (waiter *w = first_, *next; w != nullptr; w = next) {
		next = w->next;
		if (!(*w->ready)())
			continue;
		unlink(*w);
		w->word.store(waiter::finished, std::memory_order_release);
		// The waiter takes state_mutex_ before it goes, so its word is still there.
		::syscall(SYS_futex, &w->word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
	}
}

void node_driver::unlink(waiter &w)
{
	(w.prev != nullptr ? w.prev->next : first_) = w.next;
	(w.next != nullptr ? w.next->prev : last_) = w.prev;
	w.linked = false;
	waiters_.fetch_sub(1, std::memory_order_relaxed);
}

// True: this thread drives. False: ready, or the deadline passed.
bool node_driver::become_driver(const std::function<bool()> &ready, std::uint64_t deadline_us)
{
	std::unique_lock lock(state_mutex_);
	if (role_.load(std::memory_order_relaxed) != role::foreground) {
		role_.store(role::foreground, std::memory_order_release);
		return true;
	}
	waiter w;
	w.ready = &ready;
	w.prev = last_;
	(last_ != nullptr ? last_->next : first_) = &w;
	last_ = &w;
	w.linked = true;
	waiters_.fetch_add(1, std::memory_order_seq_cst);
	lock.unlock();
	while (w.word.load(std::memory_order_acquire) == waiter::waiting && !ready() &&
	       clock_us() < deadline_us)
		futex_wait_until(w.word, waiter::waiting, deadline_us);
	lock.lock();
	if (w.linked)
		unlink(w);
	return w.word.load(std::memory_order_relaxed) == waiter::promoted;
}

void node_driver::hand_over()
{
	const std::lock_guard lock(state_mutex_);
	if (waiter *w = first_; w != nullptr) {
		unlink(*w);
		w->word.store(waiter::promoted, std::memory_order_release);
		::syscall(SYS_futex, &w->word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
		return; // the role goes with it
	}
	role_.store(role::nobody, std::memory_order_release);
	last_foreground_ = clock_us();
	if (busy() && !wanted_) {
		wanted_ = true;
		parked_.notify_one();
	}
}

void node_driver::tend()
{
	if (role_.load(std::memory_order_acquire) != role::nobody || !busy())
		return;
	const std::lock_guard lock(state_mutex_);
	if (role_.load(std::memory_order_relaxed) == role::nobody && !wanted_) {
		wanted_ = true;
		parked_.notify_one();
	}
}

void node_driver::sleep(bed &b, const std::function<bool()> &ready, std::uint64_t until)
{
	b.asleep.store(true, std::memory_order_seq_cst);
	engine_mutex_.lock();
	const bool armed = node_.endpoint_->arm();
	until = std::min(until, coop_engine_deadline(node_.host_.engine()));
	until = std::min(until, node_.serves_.next_deadline());
	for (const node::offered &o : node_.offered_)
		until = std::min(until, o.until);
	b.until.store(until, std::memory_order_relaxed);
	engine_mutex_.unlock();
	std::atomic_thread_fence(std::memory_order_seq_cst);
	const std::uint64_t now = clock_us();
	if (armed && until > now && !ready() &&
	    !node_.pages_settled_.load(std::memory_order_seq_cst)) {
		pollfd fds[2] = {{node_.endpoint_->fd(), POLLIN, 0}, {b.event, POLLIN, 0}};
		const std::uint64_t us = until - now;
		timespec t{static_cast<time_t>(us / 1000000),
			   static_cast<long>(us % 1000000 * 1000)};
		const bool forever = us > std::uint64_t{3600} * 1000000;
		if (::ppoll(fds, 2, forever ? nullptr : &t, nullptr) > 0 && fds[1].revents != 0) {
			std::uint64_t count;
			(void)!::read(b.event, &count, sizeof(count));
		}
	}
	b.asleep.store(false, std::memory_order_seq_cst);
	b.until.store(0, std::memory_order_relaxed);
}

void node_driver::drive_until(const std::function<bool()> &ready, std::uint64_t deadline_us)
{
	if (ready() || !become_driver(ready, deadline_us))
		return;
	std::uint64_t active = clock_us();
	while (!ready()) {
		const std::uint64_t now = clock_us();
		if (now >= deadline_us)
			break;
		if (turn(now))
			active = now;
		else if (now - active < foreground_polling())
			idle(now - active);
		else
			sleep(foreground_bed_, ready, deadline_us);
	}
	hand_over();
}

void node_driver::background()
{
	const std::function<bool()> relieved = [this] {
		return stop_.load(std::memory_order_relaxed) ||
		       role_.load(std::memory_order_acquire) != role::background;
	};
	std::unique_lock lock(state_mutex_);
	while (!stop_.load()) {
		const bool free = role_.load(std::memory_order_relaxed) == role::nobody;
		if (!free || (!wanted_ && clock_us() - last_foreground_ < grace_us)) {
			parked_.wait_for(lock, std::chrono::microseconds(grace_us));
			continue;
		}
		wanted_ = false;
		role_.store(role::background, std::memory_order_release);
		lock.unlock();
		std::uint64_t active = clock_us();
		bool polling = false;
		while (!relieved()) {
			const std::uint64_t now = clock_us();
			if (turn(now)) {
				if (polling)
					poll_score_ = std::min(poll_score_ + 2, poll_score_max);
				polling = false;
				active = now;
			} else if (!polling && now - active < poll_us_ && polling_pays()) {
				polling = true;
			} else if (polling && now - active < poll_us_) {
				idle(now - active);
			} else {
				if (polling)
					poll_score_ = std::max(poll_score_ - 1, -poll_score_max);
				polling = false;
				sleep(background_bed_, relieved, ~std::uint64_t{0});
				active = clock_us();
			}
		}
		lock.lock();
		wanted_ = false;
	}
}

} // namespace coop::client
