// SPDX-License-Identifier: MIT
// page_memory.cpp - the sum of a page: the engine's tag, or the usual CRC32C (Castagnoli, initial
// value and result inverted) by isa-l, which uses the processor's instruction.
#include "userland/fetch-host/page_memory.hpp"

#include <cstring>
#include <vector>

#include <isa-l/crc.h>

namespace coop::fetch_host
{

std::uint64_t page_sum(const coop_engine *engine, const coop_ev &ev, page_memory &memory,
		       std::uint64_t cookie, std::uint32_t page, unsigned page_shift)
{
	const std::uint32_t size = 1u << page_shift;
	ud::sge list[most_sge];
	const std::uint32_t n = memory.pieces(cookie, page, 0, size, list);
	if (ev.sum == COOP_SUM_TAG) {
		if (n == 1)
			return coop_engine_tag(engine, &ev, page, list[0].addr);
		std::vector<std::byte> hold(size); // the tag takes one run of bytes
		for (std::uint32_t i = 0, at = 0; i < n; at += list[i++].length)
			std::memcpy(&hold[at], list[i].addr, list[i].length);
		return coop_engine_tag(engine, &ev, page, hold.data());
	}
	std::uint32_t crc = ~0u;
	for (std::uint32_t i = 0; i < n; i++)
		crc = crc32_iscsi(reinterpret_cast<unsigned char *>(list[i].addr),
				  static_cast<int>(list[i].length), crc);
	return ~crc;
}

} // namespace coop::fetch_host
