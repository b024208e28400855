// SPDX-License-Identifier: MIT
// program.hpp - coopfsd between its arguments and its end.
#pragma once

#include "userland/daemon/arguments.hpp"

namespace coop::daemon
{

// Serves until SIGTERM or SIGINT, which let running requests finish. SIGUSR1 writes the counters;
// SIGHUP reads the log level from the configuration again. Blocks these signals in the calling
// thread, which must be the only one. configure: read_config(). Returns the exit status: 0 told to
// end, 1 failed, 2 the arguments make no sense; an error is in the log.
[[nodiscard]] int run(arguments, void (*configure)(arguments &));

} // namespace coop::daemon
