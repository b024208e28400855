// SPDX-License-Identifier: MIT
// pages.cpp - see pages.hpp.
#include "pages.hpp"

#include <isa-l/crc.h>

namespace coop::net::ud
{

std::uint32_t page_checksum(const std::byte *page)
{
	// The library's prototype lacks a const; it only reads.
	auto *p = reinterpret_cast<unsigned char *>(const_cast<std::byte *>(page));
	return ~crc32_iscsi(p, static_cast<int>(page_bytes), ~0u);
}

} // namespace coop::net::ud
