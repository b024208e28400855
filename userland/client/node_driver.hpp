// SPDX-License-Identifier: MIT
// node_driver.hpp - who drives a node's engine, and when it sleeps.
//
// Three may want to: threads that wait for a fetch (foreground), and one
// background thread for when none does. One of the waiting threads drives; the
// others sleep on a word of their own, and the driver wakes exactly those whose
// condition came true. A driver whose own condition is true hands over to a
// waiting thread, or, if anything is under way, to the background thread.
//
// A foreground thread takes over from the background thread without telling it:
// who pumps is settled by the engine mutex, the role only says who goes on. The
// background thread, when it wakes up and finds its role gone, parks itself, and
// stays parked while foreground threads come and go in quick succession: so a
// loop of lone reads costs no switch to it.
//
// Polling: a wake-up costs ten times the flight of a datagram. So a driver polls
// for a while before it sleeps, but only while recent traffic says that this
// pays: small requests that come close together. Bulk transfers sleep at once,
// since what arrives meanwhile is then handled in one go. And the background
// thread keeps a score of how often polling met something: when it rarely does,
// it polls only now and then, to find out.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "userland/client/block_fetches.hpp"
#include "userland/client/clock.hpp"

namespace coop::client
{

class node;

// A mutex whose holder, if it takes it again and again, lets others in between.
class engine_mutex
{
public:
	void lock();
	void unlock() { mutex_.unlock(); }
	// Called by the driver between two turns, not holding it.
	void give_way();

private:
	std::mutex mutex_;
	std::atomic<std::uint32_t> waiting_{0};
};

class node_driver
{
public:
	node_driver(node &, std::uint32_t poll_us);
	// Background thread ended; nobody may be in drive_until().
	~node_driver();
	node_driver(const node_driver &) = delete;
	node_driver &operator=(const node_driver &) = delete;

	engine_mutex &mutex() { return engine_mutex_; }
	void drive_until(const std::function<bool()> &ready, std::uint64_t deadline_us);
	void tend();
	// Pages that peers wait for have settled: the engine has work. Any thread.
	void nudge();
	void wake();
	// After a fetch was submitted, under the engine mutex. Then, not holding it, report() what
	// ended at once.
	void note_submitted();
	void report(std::vector<block_fetches::ended>);
	std::uint32_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
	// One turn: true if anything moved.
	bool turn(std::uint64_t now);

private:
	enum class role : std::uint8_t { nobody, background, foreground };

	// Where a driver sleeps; another thread ends the sleep through the eventfd.
	struct bed {
		int event = -1;
		std::atomic<bool> asleep{false};
		std::atomic<std::uint64_t> until{0};
		void kick();
	};
	struct waiter {
		enum : std::uint32_t { waiting, finished, promoted };
		const std::function<bool()> *ready;
		std::atomic<std::uint32_t> word{waiting}; // futex
		waiter *prev = nullptr, *next = nullptr;
		bool linked = false;
	};

	bool become_driver(const std::function<bool()> &ready, std::uint64_t deadline_us);
	void hand_over();
	void wake_finished();
	void unlink(waiter &);
	void sleep(bed &, const std::function<bool()> &ready, std::uint64_t until);
	void background();
	std::uint64_t foreground_polling() const;
	bool polling_pays();
	void mirror();
	void watch_traffic(std::uint64_t now);
	bool busy() const;

	node &node_;
	const std::uint32_t poll_us_;
	engine_mutex engine_mutex_;
	bed foreground_bed_, background_bed_;

	// Mirrors of the node's state, written under the engine mutex.
	std::atomic<std::uint32_t> in_flight_{0}, pages_in_flight_{0}, serving_{0};
	// Of requests from peers: running means of the time between two and of their pages.
	std::atomic<std::uint32_t> gap_us_{1000}, pages_per_request_{1};
	std::uint64_t last_request_ = 0, seen_requests_ = 0, seen_pages_ = 0;

	// The background thread's own: how polling went, and sleeps since it was tried.
	int poll_score_ = 0;
	std::uint32_t sleeps_ = 0;

	std::mutex state_mutex_;               // never taken inside the engine mutex
	std::atomic<role> role_{role::nobody}; // written under state_mutex_
	waiter *first_ = nullptr, *last_ = nullptr;
	std::atomic<std::uint32_t> waiters_{0};
	std::uint64_t last_foreground_ = 0; // when one stopped driving
	bool wanted_ = false;               // the background thread shall drive now
	std::condition_variable parked_;
	std::atomic<bool> stop_{false};
	std::thread thread_; // last
};

} // namespace coop::client
