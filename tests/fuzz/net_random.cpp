// SPDX-License-Identifier: MIT
// net_random.cpp - random numbers that are equal in every play, in place of the kernel's.
#include <sys/types.h>

#include "tests/fuzz/net_play.hpp"

u64 fuzz_net::random_state;

extern "C" ssize_t getrandom(void *p, std::size_t n, unsigned)
{
	u64 &state = fuzz_net::random_state;
	for (std::size_t i = 0; i < n; i++) {
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		static_cast<u8 *>(p)[i] = static_cast<u8>(state >> 33);
	}
	return static_cast<ssize_t>(n);
}
