// SPDX-License-Identifier: MIT
// lanes.hpp - how many threads work in the file system of each export, so that one that hangs does
// not take them all.
//
// A call in a file system that hangs keeps its thread. So each export has a lane: what it asks of
// its file system enters the lane, or waits outside it without a thread while as many threads as
// usual work there already. Some threads never enter a lane: they take input, and answer what
// touches no file (PING, UNLOCK, LEASE_RETURN).
//
// One export may have all other threads while no other asks for any, less a few if there are
// others. look() finds lanes that do not get on and starts a thread for each that is stuck there.
// So the other exports soon have as many as before; the most that an export can tie up is one lane
// full, and this bounds the number of threads.
//
// Changes of one file's content run one after the other in any case. So at most half of a lane is
// for those of one file; a file that hangs then leaves the rest to others.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "userland/daemon/event_loop.hpp"

namespace coop::daemon
{

class lanes;

class lane
{
public:
	using clock = std::chrono::steady_clock;
	struct state {
		unsigned working = 0;          // threads in the lane
		std::size_t waiting = 0;       // outside it
		std::chrono::seconds stuck{0}; // since one of them has left it, or since it entered
	};

	lane(lanes &all, std::string name) : name_(std::move(name)), all_(all) {}
	lane(const lane &) = delete;
	lane &operator=(const lane &) = delete;

	// While a visit that got in lives, its thread is in the lane.
	class visit
	{
	public:
		explicit visit(lane &l, unsigned file = no_file);
		~visit();
		visit(const visit &) = delete;
		visit &operator=(const visit &) = delete;
		explicit operator bool() const { return in_; }

	private:
		friend lane;
		struct entered {
		};
		visit(lane &l, unsigned file, entered);
		lane *const in_; // null: there was no room
		const unsigned file_;
		const lane *const before_;
	};
	// Of changes of this file's content; files may share a number.
	static unsigned file(std::string_view handle);
	static constexpr unsigned no_file = ~0u;

	// Runs the work on another thread when there is room. owner: see forget().
	void wait(std::function<void()> work, const void *owner = nullptr, unsigned file = no_file);
	// Runs it now if there is room, else later.
	template <class function> void run(function work, const void *owner = nullptr)
	{
		if (const visit now(*this); now)
			work();
		else
			wait(std::move(work), owner);
	}
	// Work of this owner that waits outside will not run.
	void forget(const void *owner);
	// This thread is in the lane.
	bool is_here() const { return here_ == this; }
	std::size_t waiting() const;
	state look() const;
	const std::string &name() const { return name_; }

private:
	friend lanes;
	static constexpr std::size_t files = 1024;
	struct waiter {
		std::function<void()> work;
		const void *owner;
		unsigned file;
	};
	bool enter(unsigned file);
	void leave(unsigned file);
	bool admit_locked();

	const std::string name_;
	lanes &all_;
	std::atomic<unsigned> working_{0};
	std::atomic<std::uint64_t> visits_{0}; // that have ended
	std::array<std::atomic<unsigned>, files> changing_{};
	// Guarded by the lanes' mutex:
	std::deque<waiter> waiting_; // oldest first
	std::uint64_t seen_ = 0;     // visits_ when it last got on, at ...
	clock::time_point since_{};
	clock::time_point told_{}; // of that in the log

	static inline thread_local const lane *here_ = nullptr;
};

class lanes
{
public:
	// Threads that never enter a lane, and that one export leaves to the others.
	static constexpr unsigned kept = 2;
	// A lane that has not got on for so long is stuck.
	static constexpr std::chrono::milliseconds stuck_time{1000};

	// usual: threads for one export.
	lanes(event_loop &loop, unsigned usual) : loop_(loop), usual_(usual), room_(usual) {}
	lanes(const lanes &) = delete;
	lanes &operator=(const lanes &) = delete;

	// Before the first is used.
	lane &add(std::string name);
	// Threads that the loop needs from the start.
	static unsigned threads(unsigned usual) { return usual + kept; }
	// Call it about once a second: tells of stuck lanes and makes room for the others.
	void look(lane::clock::time_point now = lane::clock::now());
	// What still waits will not run.
	void drop();
	const std::vector<std::unique_ptr<lane>> &all() const { return lanes_; }

private:
	friend lane;
	unsigned changes_most() const { return std::max(usual_ / 2, 1u); }
	unsigned most() const
	{
		return lanes_.size() > 1 && usual_ > kept ? usual_ - kept : usual_;
	}
	void admit_locked();
	bool is_stuck_locked(lane &, lane::clock::time_point now);

	event_loop &loop_;
	const unsigned usual_;
	std::vector<std::unique_ptr<lane>> lanes_;
	std::atomic<unsigned> room_; // threads that may be in lanes
	std::atomic<unsigned> working_{0};
	std::atomic<std::size_t> waiting_{0};
	mutable std::mutex mutex_; // guards what waits
	std::size_t next_ = 0;     // the lane whose turn it is
};

} // namespace coop::daemon
