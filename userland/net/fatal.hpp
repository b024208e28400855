// SPDX-License-Identifier: MIT
// fatal.hpp - the end of a program that broke a promise nothing can mend.
//
// Only for destructors of what is in use by the network or by another thread: to go on
// would be a write into freed memory, later and elsewhere.
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
