// SPDX-License-Identifier: MIT
// ticks.cpp - the rate of the processor's counter against the clock.
//
// Measured over the life of the process, so the error shrinks as the process runs.
#include "ticks.hpp"

namespace coop::net::core
{

namespace
{

const struct start {
	ticks at = read_ticks();
	std::uint64_t ns = clock_ns();
} origin;

} // namespace

std::uint64_t ticks_to_ns(ticks n)
{
	const double passed = static_cast<double>(read_ticks() - origin.at);
	const double ns = static_cast<double>(clock_ns() - origin.ns);
	return passed > 0 ? static_cast<std::uint64_t>(static_cast<double>(n) * (ns / passed)) : 0;
}

} // namespace coop::net::core
