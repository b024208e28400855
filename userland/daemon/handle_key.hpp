// SPDX-License-Identifier: MIT
// handle_key.hpp - the secret from which the MACs of file handles are made.
//
// Clients keep handles over a restart of the daemon, so the secret stays: it is derived from the
// cluster key, or without one kept in the state directory. Whoever knows it can name any file of
// the export's file system.
#pragma once

#include "coop/cluster_key.hpp"
#include "userland/daemon/state_directory.hpp"

namespace coop::daemon
{

// Throws std::runtime_error if the file of the state directory may be another user's.
[[nodiscard]] digest handle_key(const secret &cluster, const state_directory &);

} // namespace coop::daemon
