// SPDX-License-Identifier: MIT
// peers.hpp - memory cost of many end points: in this process, and when connected, in the server.
#pragma once

#include "client.hpp"

namespace coop::net_tools
{

/// End points without traffic.
struct endpoint_figures {
	unsigned count;
	double bytes, make_ns, find_ns; ///< of one
};
trouble measure_endpoints(client &, unsigned count, endpoint_figures &);

/// Machines of this process that have reached the server.
struct connected_figures {
	unsigned count;
	double bytes; ///< growth of the server's resident memory for each
};
/// @param patience without any sign of life.
trouble measure_connected(client &, unsigned count, std::chrono::milliseconds patience,
			  connected_figures &);

} // namespace coop::net_tools
