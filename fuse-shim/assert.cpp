// SPDX-License-Identifier: MIT
// assert.cpp - a broken invariant of the engine ends the process: its memory may be
// in the hands of the network, and wrong data would be worse than none.
#include <cstdio>
#include <cstdlib>

#include <spdlog/spdlog.h>

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	spdlog::critical("{}:{}: broken invariant: {}", file, line, what);
	std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what);
	std::abort();
}
