// SPDX-License-Identifier: MIT
// pages.cpp - see pages.hpp.
#include "pages.hpp"

#include <isa-l/crc.h>

namespace coop::net::ud
{

std::uint64_t page_sum(const coop_engine *engine, const coop_ev &ev, std::uint32_t ordinal,
		       const std::byte *page)
{
	if (ev.sum == COOP_SUM_TAG)
		return coop_engine_tag(engine, &ev, ordinal, page);
	// The library's prototype lacks a const; it only reads.
	auto *p = reinterpret_cast<unsigned char *>(const_cast<std::byte *>(page));
	return static_cast<std::uint32_t>(~crc32_iscsi(p, static_cast<int>(page_bytes), ~0u));
}

} // namespace coop::net::ud
