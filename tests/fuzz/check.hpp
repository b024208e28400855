// SPDX-License-Identifier: MIT
// check.hpp - how a fuzz program of the engine stops when a property fails.
//
// A failed property and a failed assertion of the engine both abort, so that libFuzzer keeps
// the input that led there.
#pragma once

#include <cstdio>
#include <cstdlib>

#define FUZZ_CHECK(cond)                                                                         \
	do {                                                                                     \
		if (!(cond)) {                                                                   \
			std::fprintf(stderr, "%s:%d: property failed: %s\n", __FILE__, __LINE__, \
				     #cond);                                                     \
			std::abort();                                                            \
		}                                                                                \
	} while (0)

extern "C" __attribute__((used)) inline void coop_assert_failed(const char *what, const char *file,
								int line)
{
	std::fprintf(stderr, "%s:%d: engine assertion: %s\n", file, line, what);
	std::abort();
}
