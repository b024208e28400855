// SPDX-License-Identifier: MIT
// page_sum.hpp - the checksum or tag of a page in a COMMIT, computed alike by both ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rpc/fetch/engine.h"

namespace coop::client
{

// The CRC32C or the tag of the page with this ordinal, as the event asks.
std::uint64_t page_sum(const coop_engine *, const coop_ev &, std::uint32_t ordinal,
		       const std::byte *page, unsigned page_shift);

} // namespace coop::client
