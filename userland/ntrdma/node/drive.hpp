// SPDX-License-Identifier: MIT
// drive.hpp - who drives a node's queue pairs: the application, by polling, or the node's thread.
//
// It judges by what the thread finds each time that it looks, and asks the clock for nothing, so a
// test runs it without threads. Two programs are hard to tell apart. One polls for all that comes.
// The other polls for its own sends only, and waits for a peer's write by a look at the memory. So
// whichever polls in a loop is left to drive, until it leaves work for the time between two looks;
// the more often it did, the longer until it is left to drive again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

namespace coop::ntrdma
{

class drive
{
public:
	using span = std::chrono::nanoseconds;

	static constexpr span nap_least = std::chrono::microseconds{20};
	static constexpr span nap_usual = std::chrono::microseconds{200};
	static constexpr span nap_most = std::chrono::milliseconds{2};
	static constexpr span poll_every = std::chrono::microseconds{10}; // or it does not loop
	static constexpr span idle = std::chrono::milliseconds{5}; // without a poll: it has stopped
	static constexpr unsigned polls_least = 8;  // between two wakes: it polls in a loop
	static constexpr unsigned wakes_most = 256; // between two times that it is left to drive
	static constexpr unsigned good_looks = 8;   // it drives well
	/// Sleeps for which a program that was seen to spin is believed to.
	static constexpr int spins_for = 64;

	/// What the thread found.
	struct finding {
		bool worked; // it has done work; while the application drives, what that had left
		unsigned polls; // of the application since the look before
		bool rung;      // a peer, or the application, has woken the thread
		bool waits;     // a thread of the application may wait for an event
	};

	/// Polls of the application since the call before; `total` is their count.
	unsigned polled(std::uint64_t total)
	{
		return static_cast<unsigned>(total - std::exchange(polls_, total));
	}

	void look(const finding &f, span now)
	{
		if (f.polls)
			last_poll_ = now;
		if (f.waits) {
			on_ = false;
		} else if (!on_) {
			if (!f.rung || f.polls < polls_least || ++wakes_ < patience_)
				return;
			on_ = true;
			good_ = 0;
			nap_ = nap_least;
		} else if (f.worked) {
			on_ = false;
			wakes_ = 0;
			patience_ = std::min(patience_ * 2, wakes_most);
		} else if (now - last_poll_ > idle) {
			on_ = false;
		} else if (f.polls * poll_every >= nap_) {
			nap_ = std::min(nap_ * 2, nap_most);
			if (++good_ % good_looks == 0)
				patience_ = std::max(patience_ / 2, 1u);
		} else {
			nap_ = nap_usual; // answers that it owes wait for so long
		}
	}

	/// The thread has slept for `slept`, in which the process's other threads used `used` of
	/// processor time; 0 if the one that called last runs on another processor.
	void woke(span slept, span used)
	{
		if (used * 4 > slept)
			spins_ = spins_for;
		else if (spins_)
			spins_--;
	}

	/// The application drives.
	bool on() const { return on_; }
	/// Until the next look, while it does.
	span nap() const { return nap_; }
	/// It spins on the thread's own processor. There the thread never yields: the application
	/// would have to wait for it, and Linux makes a thread that has yielded wait for the next
	/// tick.
	bool spins() const { return spins_; }

private:
	bool on_ = false;
	unsigned wakes_ = 0, patience_ = 1; // before it is left to drive
	unsigned good_ = 0;
	int spins_ = 0;
	std::uint64_t polls_ = 0;
	span nap_ = nap_least, last_poll_{};
};

} // namespace coop::ntrdma
