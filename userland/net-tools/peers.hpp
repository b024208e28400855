// SPDX-License-Identifier: MIT
// peers.hpp - what many end points take: of this process, and connected, of the server's.
#pragma once

#include "client.hpp"

namespace coop::net_tools
{

/// End points that nothing was sent to.
struct endpoint_figures {
	unsigned count;
	double bytes, make_ns, find_ns; ///< of one
};
trouble measure_endpoints(client &, unsigned count, endpoint_figures &);

/// Machines of this process that the server has heard of.
struct connected_figures {
	unsigned count;
	double bytes; ///< of one: by so much the server's resident memory has grown
};
/// @param patience without any sign of life.
trouble measure_connected(client &, unsigned count, std::chrono::milliseconds patience,
			  connected_figures &);

} // namespace coop::net_tools
