// SPDX-License-Identifier: MIT
// boot_clock.hpp - the clock of promises between machines: it goes on while this machine is
// suspended.
//
// std::chrono::steady_clock is CLOCK_MONOTONIC, which stands still then. A client that measured a
// lease by it would believe the lease after a night in suspend, long after the daemon ended it.
// Whoever waits for something to happen on this machine uses steady_clock: a call in flight has not
// had its time while the machine slept.
#pragma once

#include <chrono>
#include <ctime>

namespace coop
{

struct boot_clock {
	using duration = std::chrono::nanoseconds;
	using rep = duration::rep;
	using period = duration::period;
	using time_point = std::chrono::time_point<boot_clock>;
	static constexpr bool is_steady = true;

	static time_point now() noexcept
	{
		timespec t;
		::clock_gettime(CLOCK_BOOTTIME, &t); // never fails: Linux has it
		return time_point(std::chrono::seconds(t.tv_sec) +
				  std::chrono::nanoseconds(t.tv_nsec));
	}
};

} // namespace coop
