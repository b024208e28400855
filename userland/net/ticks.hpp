// SPDX-License-Identifier: MIT
// ticks.hpp - a counter for the duration of operations.
//
// The statistics need two readings for each operation, and reading the clock costs twice as much as
// reading the processor's counter. Readings are converted to nanoseconds only on request, at the
// rate at which both have run since the process started to count.
#pragma once

#include "coop/net/base.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace coop::net::core
{

using ticks = std::uint64_t;

inline std::uint64_t clock_ns()
{
	return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
						  clock::now().time_since_epoch())
						  .count());
}

inline ticks read_ticks()
{
#if defined(__x86_64__)
	return __rdtsc();
#elif defined(__aarch64__)
	ticks t;
	asm volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#else
	return clock_ns();
#endif
}

/// `n` ticks in nanoseconds.
std::uint64_t ticks_to_ns(ticks n);

} // namespace coop::net::core
