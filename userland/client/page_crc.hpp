// SPDX-License-Identifier: MIT
// page_crc.hpp - CRC32C of a page, as both ends of a fetch compute it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coop::client
{

std::uint32_t page_crc(const std::byte *page, unsigned page_shift);

} // namespace coop::client
