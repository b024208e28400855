// SPDX-License-Identifier: MIT
// page_list.hpp - the pages of a fetch by ordinal, and the extents that name them on the wire.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "rpc/fetch/engine.h"

namespace coop::fetch_host
{

struct page_list {
	std::uint32_t size = 0;
	std::array<std::uint64_t, COOP_MAX_PAGES> page; // by ordinal: its index in the file

	/// Appends `count` pages from `first` on, ascending, or as many as make `most` in all.
	/// @return how many; 0 also if the request has no extent left.
	std::uint32_t add(coop_fetch_req &req, std::uint64_t first, std::uint32_t count,
			  std::uint32_t most)
	{
		count = std::min(count, most - size);
		if (count == 0 || !coop_fetch_req_add(&req, first, count))
			return 0;
		append(first, count);
		return count;
	}
	/// The pages that a LOOKUP asks for.
	void assign(const coop_ev &ev)
	{
		size = 0;
		for (std::uint32_t e = 0; e < ev.n_ext && e < COOP_MAX_EXTENTS; e++)
			append(ev.ext[e].index,
			       std::min(ev.ext[e].count, std::uint32_t{COOP_MAX_PAGES} - size));
	}

private:
	void append(std::uint64_t first, std::uint32_t count)
	{
		for (std::uint32_t i = 0; i < count; i++)
			page[size++] = first + i;
	}
};

} // namespace coop::fetch_host
