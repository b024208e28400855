// SPDX-License-Identifier: MIT
// trouble.hpp - the result of a command: an exit status for scripts, a sentence for people.
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
	std::string text; ///< the error, where, and what to do
};

/// Empty: success.
using trouble = std::optional<failure>;

/// Checks that the output was written: lost results are a failure.
trouble printed();
/// "coopnet: TEXT" to standard error. @return the status.
int report(const failure &);

} // namespace coop::net_tools
