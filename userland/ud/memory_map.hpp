// SPDX-License-Identifier: MIT
// memory_map.hpp - the memory that work requests may name, and its local keys.
//
// There are few regions, and thousands of look-ups per millisecond, nearly all of
// them for the same region as the one before.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "userland/ud/endpoint.hpp"

namespace coop::ud
{

class memory_map
{
public:
	// 0 or -errno.
	int add(void *base, std::size_t length, std::uint32_t lkey)
	{
		const auto start = reinterpret_cast<std::uintptr_t>(base);
		if (!length || start + length < start)
			return -EINVAL;
		regions_.push_back({start, start + length, lkey});
		return 0;
	}

	// The region that contains the whole entry; false: the entry names unregistered memory.
	bool find(const sge &entry, std::uint32_t &lkey) const
	{
		const auto start = reinterpret_cast<std::uintptr_t>(entry.addr);
		const std::uintptr_t end = start + entry.length;
		if (!entry.length || within(last_, start, end)) {
			lkey = regions_.empty() ? 0 : regions_[last_].lkey;
			return true;
		}
		for (std::size_t i = 0; i < regions_.size(); i++) {
			if (within(i, start, end)) {
				last_ = i;
				lkey = regions_[i].lkey;
				return true;
			}
		}
		return false;
	}

	bool holds(std::span<const sge> list) const
	{
		std::uint32_t lkey;
		for (const sge &entry : list)
			if (!find(entry, lkey))
				return false;
		return true;
	}

private:
	struct region {
		std::uintptr_t start, end;
		std::uint32_t lkey;
	};

	bool within(std::size_t i, std::uintptr_t start, std::uintptr_t end) const
	{
		return i < regions_.size() && start >= regions_[i].start &&
		       end <= regions_[i].end && start <= end;
	}

	std::vector<region> regions_;
	mutable std::size_t last_ = 0;
};

} // namespace coop::ud
