// SPDX-License-Identifier: MIT
// ether.hpp - `coop-verbs ether`: its options, its signals, and what it says when it ends.
#pragma once

#include <CLI/CLI.hpp>

#include "userland/ntrdma/ether/bridge.hpp"

namespace coop::ntrdma
{

struct ether_words {
	bridge_options options;
	unsigned bound_ms = 0; // 0: the environment's, or the usual one
};

/// Adds the subcommand, whose options go to `words`.
CLI::App *add_ether(CLI::App &, ether_words &words);
/// Runs until SIGTERM, SIGINT or SIGHUP; the exit status.
int run_ether(ether_words &);

} // namespace coop::ntrdma
