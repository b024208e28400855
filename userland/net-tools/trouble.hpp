// SPDX-License-Identifier: MIT
// trouble.hpp - how a command of coopnet ends: a status for scripts, a sentence for people.
#pragma once

#include <optional>
#include <string>

namespace coop::net_tools
{

// Documented in --help and coopnet(1); never renumbered.
enum exit_status : int {
	exit_ok = 0,
	exit_failure = 1,
	exit_usage = 2,
};

struct failure {
	exit_status status = exit_failure;
	std::string text; ///< what is wrong, where, and what to do
};

/// Nothing: all is well.
using trouble = std::optional<failure>;

/// Whether what was printed has arrived: results that are lost are no success.
trouble printed();
/// "coopnet: TEXT" to standard error. @return the status.
int report(const failure &);

} // namespace coop::net_tools
