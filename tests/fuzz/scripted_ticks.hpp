// SPDX-License-Identifier: MIT
// scripted_ticks.hpp - the processor's counter of a play; included before all else.
//
// The core checks its deadlines when that counter has advanced. Here it advances with every
// reading, so that each turn checks, and a play is the same on every machine. Except on x86 the
// counter stays the real one: then a deadline may take effect a turn later.
#pragma once

#if defined(__x86_64__)
#include <x86intrin.h>

namespace fuzz_net
{
unsigned long long read_counter();
} // namespace fuzz_net

#undef __rdtsc
#define __rdtsc ::fuzz_net::read_counter
#endif
