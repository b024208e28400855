// SPDX-License-Identifier: MIT
// thread.cpp - the node's thread: progress for applications that do not poll.
#include <algorithm>
#include <utility>

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "userland/ntrdma/node/drive.hpp"
#include "userland/ntrdma/node/node.hpp"

namespace coop::ntrdma
{

namespace
{

using namespace std::chrono_literals;

constexpr auto linger = 20us; // of polling after work was found
constexpr auto tend_every = 50ms;
constexpr auto slice = 100us;      // the least that the kernel takes
constexpr auto quiet_after = 10ms; // without bytes by TCP; until then the thread sleeps briefly

/// The thread's work is short and an application may spin until it is done, perhaps on the same
/// processor: with a short slice it runs as soon as it wakes. Kernels before 6.12 ignore it.
void ask_for_short_slices()
{
	struct {
		std::uint32_t size, policy;
		std::uint64_t flags;
		std::int32_t nice;
		std::uint32_t priority;
		std::uint64_t runtime, deadline, period;
	} attr{};
	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) || attr.policy != SCHED_OTHER)
		return;
	attr.runtime = std::chrono::nanoseconds{slice}.count();
	syscall(SYS_sched_setattr, 0, &attr, 0);
}

std::chrono::nanoseconds used(clockid_t clock)
{
	timespec t;
	return clock_gettime(clock, &t)
		       ? 0ns
		       : std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec};
}

/// Processor time of this process's other threads.
std::chrono::nanoseconds used_by_others()
{
	return used(CLOCK_PROCESS_CPUTIME_ID) - used(CLOCK_THREAD_CPUTIME_ID);
}

} // namespace

void node::kick()
{
	std::uint64_t one = 1;
	[[maybe_unused]] ssize_t n = write(bell_.get(), &one, sizeof(one));
}

void node::take_over()
{
	if (std::exchange(sleeps_, false))
		kick();
}

/// True if what a link by TCP owes may wait longer: the application got it owing a moment ago, and
/// nothing has come since.
bool node::holds(member &m)
{
	const queue_pair &pair = *m.pair;
	if (!m.far || !pair.answers_wait || !pair.owes() || pair.has_news() || pair.unfinished())
		return false;
	ticks now = std::chrono::steady_clock::now();
	if (m.owes_since == ticks{} || m.owed != pair.taken()) {
		m.owes_since = now;
		m.owed = pair.taken();
	}
	if (now - m.owes_since >= hold_most)
		return false;
	return holding_ = true;
}

bool node::progress(member &m)
{
	if (holds(m))
		return false;
	m.owes_since = {};
	bool found = m.pair->progress();
	// A program that does not poll in a loop may not post for long.
	if (m.far && !looped_)
		m.pair->tell();
	return found;
}

bool node::progress_all()
{
	bool found = !far_.empty() && serve_all_far();
	for (auto &[number, m] : members_)
		found |= progress(*m);
	return found;
}

/// For an application that polls: sends what it owes, and does what it has left since the look
/// before. One that polls has it done sooner; one that waits for its memory to change has not.
/// Returns whether it had left anything.
bool node::progress_what_is_left()
{
	if (!far_.empty())
		serve_all_far();
	bool found = false;
	for (auto &[number, m] : members_) {
		queue_pair &pair = *m->pair;
		// An answer that waits for a post of the application (TCP) is not left by it.
		bool stirs = m->by_tcp ? pair.has_news() || pair.unfinished() : pair.stirs();
		bool left = stirs && m->taken == pair.taken();
		// The rest of a large copy waits for nothing.
		if (left || m->by_tcp || pair.unfinished() || !pair.has_news())
			progress(*m);
		m->taken = pair.taken();
		found |= left;
	}
	return found;
}

/// True if a thread of the application may wait for an event.
bool node::awaited() const
{
	return std::any_of(members_.begin(), members_.end(), [](const auto &m) {
		const pair_options &o = m.second->pair->options();
		return o.send_queue->armed() || o.recv_queue->armed();
	});
}

/// Tells every peer whether to ring. False if one has stored something meanwhile.
bool node::arm(bool on)
{
	for (auto &[number, m] : members_)
		if (m->port && m->pair->linked())
			m->port->wait(on);
	if (!on)
		return true;
	std::atomic_thread_fence(std::memory_order_seq_cst);
	return !progress_all();
}

/// The time in ms after which links have to be tended without any event; -1: never.
int node::next_timeout()
{
	if (deaf_ || far_deaf_)
		return 50;
	int least = -1;
	for (auto &[number, m] : members_) {
		bool waits = m->stage == link_stage::calling || m->stage == link_stage::greeting ||
			     m->stage == link_stage::welcomed;
		if (waits)
			return 50;
		// Posting wakes nothing: whatever may get something outstanding is looked at now
		// and then.
		if (m->stage == link_stage::up || m->stage == link_stage::awaiting)
			least = static_cast<int>(std::min<std::int64_t>(500, bound_.count() / 4));
	}
	if (!(callers_.empty() && far_callers_.empty()) && least < 0)
		least = 500;
	return least;
}

/// Sleeps until something happens. True if a bell woke it; `heard`: a socket did. `held` is let go
/// meanwhile.
bool node::sleep(node_hold &held, drive &d, bool *heard)
{
	bool shares = sched_getcpu() == processor_, rung = false;
	auto slept = std::chrono::steady_clock::now();
	brief_ = holding_ || slept - far_stirred_ < quiet_after;
	int timeout = brief_ ? static_cast<int>(hold_most.count()) : next_timeout();
	std::chrono::nanoseconds used = shares ? used_by_others() : 0ns;
	sleeps_ = true;
	held.unlock();
	epoll_event events[16];
	int n = epoll_wait(epoll_.get(), events, 16, timeout);
	for (int i = 0; i < n; i++) {
		if (events[i].data.fd == news_of_link) {
			rung = true;
			continue;
		}
		if (events[i].data.fd != bell_.get()) {
			*heard = true;
			continue;
		}
		std::uint64_t count;
		[[maybe_unused]] ssize_t got = read(bell_.get(), &count, sizeof(count));
		rung = true;
	}
	used = shares ? used_by_others() - used : 0ns;
	d.woke(std::chrono::steady_clock::now() - slept, used);
	held.lock();
	sleeps_ = false;
	arm(false);
	return rung;
}

void node::run()
{
	ask_for_short_slices();
	drive d;
	bool rung = false, heard = false;
	ticks tended{}, busy{};
	for (;;) {
		node_hold held{lock_, std::try_to_lock};
		if (!held) {
			wanted_.store(true, std::memory_order_relaxed);
			held.lock();
			wanted_.store(false, std::memory_order_relaxed);
		}
		if (stop_)
			return;
		unsigned times = d.polled(polls_.load(std::memory_order_relaxed));
		looped_ = times >= drive::polls_least;
		holding_ = false;
		bool found = d.on() ? progress_what_is_left() : progress_all();
		ticks now = std::chrono::steady_clock::now();
		if (changed_ || heard || now - tended >= tend_every) {
			heard = false;
			changed_ = false;
			tended = now;
			tend(now);
		}
		if (far_reads_ != far_reads_seen_) {
			far_reads_seen_ = far_reads_;
			far_stirred_ = now;
		}
		if (found)
			busy = now;
		bool waits = (d.on() || looped_) && awaited();
		d.look({found, times, rung, waits}, now.time_since_epoch());
		rung = false;
		if (d.on() != driven_) {
			driven_ = d.on();
			for (auto &[number, m] : members_)
				m->pair->answers_wait = may_wait(*m);
		}
		if (driven_) {
			held.unlock();
			auto nap =
				far_.empty() ? d.nap() : std::min<drive::span>(d.nap(), hold_most);
			timespec t{0, nap.count()};
			pollfd bell{bell_.get(), POLLIN, 0};
			if (ppoll(&bell, 1, &t, nullptr) == 1) {
				std::uint64_t count;
				[[maybe_unused]] ssize_t n =
					read(bell_.get(), &count, sizeof(count));
			}
		} else if (!d.spins() && now - busy < linger) {
			held.unlock();
			sched_yield();
		} else if (arm(true)) {
			rung = sleep(held, d, &heard);
		} else {
			arm(false);
			// A thread that waits for the lock on this processor would not get it.
			bool contended = lock_.contended();
			held.unlock();
			if (contended)
				sched_yield();
		}
	}
}

} // namespace coop::ntrdma
