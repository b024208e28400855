// SPDX-License-Identifier: MIT
// documents.hpp - what the commands print with --json, as text. So the JSON library, which takes
// long to compile, stays out of the commands.
#pragma once

#include <string>
#include <vector>

#include "userland/cli/control.hpp"
#include "userland/cli/forest.hpp"
#include "userland/cli/frame.hpp"
#include "userland/cli/mounts.hpp"

namespace coop::cli
{

// seconds: the length of the interval in which the counters changed, and one line; 0: since the
// last reset, and indented.
std::string stats_document(const mount_entry &, const mount_stats &, double seconds);
// self: the node's own address, as in the control file.
std::string peers_document(const mount_entry &, const std::string &self,
			   const std::vector<peer_record> &);
std::string forest_document(const forest_record &);
std::string top_document(const std::vector<mount_view> &);

} // namespace coop::cli
