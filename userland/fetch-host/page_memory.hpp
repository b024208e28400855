// SPDX-License-Identifier: MIT
// page_memory.hpp - where the bytes of a page lie.
//
// The engine sees no memory: it says "bytes so and so of page 5 of this fetch". For the client
// that is a place in a block of the page store, for libcoop-net it may be several buffers.
#pragma once

#include <cstddef>
#include <span>

#include "rpc/fetch/engine.h"
#include "userland/ud/endpoint.hpp"

namespace coop::fetch_host
{

constexpr std::uint32_t most_sge = 16; // of a work request

class page_memory
{
public:
	/// Entries for [offset, offset + length) of the page with this ordinal, in order. They
	/// stay as they are until the fetch or serve has ended. @return their number, which
	/// out.size(), at least (shape::max_sge - 2) / 2, must be enough for.
	virtual std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
				     std::uint32_t length, std::span<ud::sge> out) = 0;

protected:
	~page_memory() = default;
};

/// What a COMMIT says of the bytes of a page, as both ends compute it: CRC32C or tag, as the
/// event wants it.
std::uint64_t page_sum(const coop_engine *, const coop_ev &, page_memory &, std::uint64_t cookie,
		       std::uint32_t page, unsigned page_shift);

} // namespace coop::fetch_host
