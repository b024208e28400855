// SPDX-License-Identifier: MIT
// page_memory.cpp - the sum of a page: the engine's tag, or the usual CRC32C (Castagnoli, initial
// value and result inverted) by isa-l, which uses the processor's instruction.
#include "userland/fetch-host/page_memory.hpp"

#include <cstring>

#include <isa-l/crc.h>

namespace coop::fetch_host
{

std::uint64_t page_sum(const coop_engine *engine, const coop_ev &ev, page_memory &memory,
		       std::uint64_t cookie, std::uint32_t page, unsigned page_shift)
{
	const std::uint32_t size = 1u << page_shift;
	ud::sge list[most_sge];
	const std::uint32_t n = memory.pieces(cookie, page, 0, size, list);
	unsigned char hold[1u << COOP_PAGE_MAX_SHIFT];
	auto *bytes = static_cast<unsigned char *>(list[0].addr);
	if (n > 1) {
		bytes = hold;
		for (std::uint32_t i = 0, at = 0; i < n; at += list[i++].length)
			std::memcpy(hold + at, list[i].addr, list[i].length);
	}
	if (ev.sum == COOP_SUM_TAG)
		return coop_engine_tag(engine, &ev, page, bytes);
	return static_cast<std::uint32_t>(~crc32_iscsi(bytes, static_cast<int>(size), ~0u));
}

} // namespace coop::fetch_host
