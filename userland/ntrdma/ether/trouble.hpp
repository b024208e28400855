// SPDX-License-Identifier: MIT
// trouble.hpp - what the person who started `coop-verbs ether` has to put right.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>

namespace coop::ntrdma
{

/// what() says what failed, where, why, and what to do.
struct trouble : std::runtime_error {
	using std::runtime_error::runtime_error;
};

/// Throws trouble; `error` is an errno.
[[noreturn]] inline void give_up(const std::string &what, int error, const std::string &advice = {})
{
	throw trouble{what + ": " + std::strerror(error) + (advice.empty() ? "" : ": " + advice)};
}

} // namespace coop::ntrdma
