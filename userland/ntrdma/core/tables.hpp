// SPDX-License-Identifier: MIT
// tables.hpp - the holder's tables: which memory a key opens, for whom and for what.
//
// Every operation, own or a peer's, is checked here by the side that holds the memory, immediately
// before it touches a byte. A key is slot << 16 | generation: the key of a region that is gone
// opens nothing, also after its slot was taken again.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "userland/ntrdma/core/port.hpp"
#include "userland/ntrdma/core/types.hpp"

namespace coop::ntrdma
{

struct region {
	std::uint64_t iova = 0; // address by which requests name its first byte
	std::uint64_t length = 0;
	std::uint8_t *base = nullptr;
	std::uint32_t domain = 0;
	std::uint32_t rights = 0; // access
	std::uint16_t generation = 0;
	bool used = false;
	std::uint32_t grants = 0; // reads that a peer is pulling from it
	bool closing = false;     // only those go on; it opens nothing new
};

class region_table
{
public:
	static constexpr std::uint32_t most = 1u << 16;

	/// The key, or nothing if the table is full.
	std::optional<std::uint32_t> add(std::uint8_t *base, std::uint64_t length,
					 std::uint64_t iova, std::uint32_t domain,
					 std::uint32_t rights);
	/// False if no region has that key.
	bool remove(std::uint32_t key);
	region *find(std::uint32_t key);
	/// Where [addr, addr + length) is, if `key` opens it to `domain` with all of `rights`.
	/// An empty range is checked like any other.
	std::optional<place> check(std::uint32_t key, std::uint32_t domain, std::uint64_t addr,
				   std::uint64_t length, std::uint32_t rights);
	std::uint32_t size() const { return used_; }
	/// Regions of a protection domain.
	std::uint32_t of(std::uint32_t domain) const;

private:
	std::vector<region> regions_;
	std::deque<std::uint32_t> free_; // the longest free first
	std::uint32_t used_ = 0;
};

} // namespace coop::ntrdma
