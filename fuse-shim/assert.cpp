// SPDX-License-Identifier: MIT
// assert.cpp - aborts when an invariant of the engine is broken: the network may be using its
// memory, and wrong data would be worse than none.
#include <cstdio>
#include <cstdlib>

#include <spdlog/spdlog.h>

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	spdlog::critical("{}:{}: broken invariant: {}", file, line, what);
	std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what);
	std::abort();
}
