// SPDX-License-Identifier: MIT
// fatal.hpp - aborts a program that violated a rule in a way that cannot be repaired.
//
// Only for destructors of objects that the network or another thread still uses: continuing would
// mean a later write into freed memory.
#pragma once

#include <cstdio>
#include <exception>

namespace coop::net::core
{

[[noreturn]] inline void fatal(const char *what)
{
	std::fprintf(stderr, "libcoop-net: %s\n", what);
	std::terminate();
}

} // namespace coop::net::core
