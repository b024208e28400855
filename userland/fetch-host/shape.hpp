// SPDX-License-Identifier: MIT
// shape.hpp - how many queue pairs and entries a host of the engine has.
#pragma once

#include <cstdint>

namespace coop::fetch_host
{

struct shape {
	unsigned page_shift;
	std::uint32_t fetches, queued;   // queue pairs to fetch with; fetches that wait for one
	std::uint32_t serves, serve_qps; // serves at a time; queue pairs, which they share evenly
	std::uint32_t serve_qkey;        // of those; only this host's own sends need it
	std::uint32_t max_sge;           // of a work request: GRH, a datagram, spill
	// The user asks host::may_send() before it takes data from the engine, so that little is
	// posted at once.
	bool bounded = false;
	const char *fetches_option, *serves_option; // what to lower when queue pairs run out

	std::uint32_t page_bytes() const { return 1u << page_shift; }
	std::uint32_t datagrams(std::uint32_t mtu) const // a page
	{
		return (page_bytes() + mtu - 1) / mtu;
	}
};

} // namespace coop::fetch_host
