// SPDX-License-Identifier: MIT
// scripted_ticks.hpp - the processor's counter of a play; included before all else.
//
// The core looks at its deadlines when that counter has gone on. Here it does with every
// reading, so that each turn looks, and a play is the same wherever it runs. Elsewhere than on
// x86 the counter stays the real one: then a deadline may be seen a turn later.
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
