// SPDX-License-Identifier: MIT
// page_crc.cpp - the usual CRC32C (Castagnoli, initial value and result inverted)
// by isa-l, which uses the processor's instruction.
#include "userland/client/page_crc.hpp"

#include <isa-l/crc.h>

namespace coop::client
{

std::uint32_t page_crc(const std::byte *page, unsigned page_shift)
{
	// isa-l reads only; its prototype lacks the const.
	auto *p = reinterpret_cast<unsigned char *>(const_cast<std::byte *>(page));
	return ~crc32_iscsi(p, 1 << page_shift, 0xffffffffu);
}

} // namespace coop::client
