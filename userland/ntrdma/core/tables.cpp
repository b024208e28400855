// SPDX-License-Identifier: MIT
// tables.cpp - regions and their keys; see tables.hpp.
#include "userland/ntrdma/core/tables.hpp"

#include <algorithm>

namespace coop::ntrdma
{

std::optional<std::uint32_t> region_table::add(std::uint8_t *base, std::uint64_t length,
					       std::uint64_t iova, std::uint32_t domain,
					       std::uint32_t rights)
{
	// Slot 0 stays empty, so that no key is 0.
	if (regions_.empty())
		regions_.emplace_back();
	std::uint32_t slot;
	// The longest free slot of at least 1024 comes first, so that the 16 bits of its
	// generation last for 64 million registrations before a key is seen twice.
	if (!free_.empty() && (free_.size() > 1024 || regions_.size() == most)) {
		slot = free_.front();
		free_.pop_front();
	} else if (regions_.size() < most) {
		slot = static_cast<std::uint32_t>(regions_.size());
		regions_.emplace_back();
	} else {
		return std::nullopt;
	}
	region &r = regions_[slot];
	r = {iova, length, base, domain, rights, static_cast<std::uint16_t>(r.generation + 1),
	     true, 0,      false};
	used_++;
	return slot << 16 | r.generation;
}

region *region_table::find(std::uint32_t key)
{
	std::uint32_t slot = key >> 16;
	if (slot >= regions_.size())
		return nullptr;
	region &r = regions_[slot];
	return r.used && r.generation == (key & 0xffff) ? &r : nullptr;
}

bool region_table::remove(std::uint32_t key)
{
	region *r = find(key);
	if (!r)
		return false;
	r->used = false;
	free_.push_back(key >> 16);
	used_--;
	return true;
}

std::optional<place> region_table::check(std::uint32_t key, std::uint32_t domain,
					 std::uint64_t addr, std::uint64_t length,
					 std::uint32_t rights)
{
	region *r = find(key);
	if (!r || r->closing || r->domain != domain || (r->rights & rights) != rights)
		return std::nullopt;
	// No sum here can overflow: each side is compared after a subtraction that was proven.
	if (addr < r->iova || addr - r->iova > r->length || length > r->length - (addr - r->iova))
		return std::nullopt;
	return place{r->base + (addr - r->iova), length};
}

std::uint32_t region_table::of(std::uint32_t domain) const
{
	return static_cast<std::uint32_t>(
		std::count_if(regions_.begin(), regions_.end(),
			      [&](const region &r) { return r.used && r.domain == domain; }));
}

} // namespace coop::ntrdma
