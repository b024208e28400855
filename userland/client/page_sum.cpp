// SPDX-License-Identifier: MIT
// page_sum.cpp - the engine's tag, or CRC32C (Castagnoli, initial value and result inverted) by
// isa-l, which uses the processor's instruction.
#include "userland/client/page_sum.hpp"

#include <isa-l/crc.h>

namespace coop::client
{

std::uint64_t page_sum(const coop_engine *engine, const coop_ev &ev, std::uint32_t ordinal,
		       const std::byte *page, unsigned page_shift)
{
	if (ev.sum == COOP_SUM_TAG)
		return coop_engine_tag(engine, &ev, ordinal, page);
	// isa-l only reads; its prototype lacks the const.
	auto *p = reinterpret_cast<unsigned char *>(const_cast<std::byte *>(page));
	return static_cast<std::uint32_t>(~crc32_iscsi(p, 1 << page_shift, 0xffffffffu));
}

} // namespace coop::client
