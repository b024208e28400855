// SPDX-License-Identifier: MIT
// sleeper.hpp - the sleep of a machine's background thread, and what wakes it.
//
// The thread sleeps armed, until the transport's descriptor or a deadline, or, if the program
// polls, in short leases: each one that saw many polls is followed by another without taking the
// lock. Owns the event descriptor that wakes it. All but the count of polls is guarded by the lock
// of the machine; sleep() is for the thread alone, without the lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "coop/net/base.hpp"
#include "transport.hpp"

namespace coop::net::core
{

class sleeper
{
public:
	/// @throw std::system_error.
	sleeper();
	~sleeper();
	sleeper(const sleeper &) = delete;
	sleeper &operator=(const sleeper &) = delete;

	// Before sleep(), under the lock.
	void lease(time_point now);
	void arm(int fd, time_point until);

	/// @return whether it was kicked.
	[[nodiscard]] bool sleep();
	/// After sleep(), under the lock.
	void awake(bool kicked);

	/// It sleeps, and no thread has undertaken to wake it.
	bool asleep() const { return how_ != how::awake && !kicked_; }
	bool leased() const { return how_ == how::leased; }
	/// Other threads poll in its place, and the transport is no longer obliged to wake it, or a
	/// deadline is earlier than it knows.
	template <class function> bool outdated(function next_deadline) const
	{
		return how_ == how::armed &&
		       (progressed_ >= spi::armed_calls || next_deadline() < until_);
	}
	/// The caller will kick() once it has released the lock.
	void promise_kick() { kicked_ = true; }
	void kick();

	/// The transport's progress() is called.
	void count_progress() { progressed_++; }
	/// The program polls.
	void count_poll()
	{
		polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
	}
	/// For the thread: whether the program has polled since the last call or lease.
	bool polled();

private:
	enum class how : std::uint8_t { awake, leased, armed };

	std::atomic<std::uint64_t> polls_{0}; // changes under the lock
	std::uint64_t polls_seen_ = 0;        // of the thread
	how how_ = how::awake;
	std::uint16_t progressed_ = 0; // calls of progress() since arm()
	bool kicked_ = false;
	time_point until_{};
	int fd_ = -1;
	const int kick_fd_;
};

} // namespace coop::net::core
