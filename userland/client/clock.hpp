// SPDX-License-Identifier: MIT
// clock.hpp - the time that the engine of a node is driven by.
#pragma once

#include <cstdint>
#include <ctime>

namespace coop::client
{

// CLOCK_MONOTONIC.
inline std::uint64_t clock_us()
{
	timespec t;
	::clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<std::uint64_t>(t.tv_sec) * 1000000 +
	       static_cast<std::uint64_t>(t.tv_nsec) / 1000;
}

} // namespace coop::client
