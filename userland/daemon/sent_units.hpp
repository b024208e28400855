// SPDX-License-Identifier: MIT
// sent_units.hpp - which member of a file version was last sent each unit of it, so that the next
// one can be told to ask that member.
//
// For each unit one range of pages is remembered: a member that was sent part of a unit is named
// for that part only. Whether the member still has the pages is not known.
//
// Not safe for concurrent use: guarded by the mutex of the audiences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "rpc/storage/forest.h"

namespace coop::daemon
{

class audience_client;

// A member, as it was when it was sent the bytes: its node's id is never used again.
struct unit_holder {
	const audience_client *client;
	std::uint32_t node;
};

// Pages of a file: first to end - 1.
struct page_range {
	std::uint64_t first, end;
};

class sent_units
{
public:
	// All pages of the range are being sent to this member. keep(holder): a holder that has
	// these pages and more stays noted.
	template <class function>
	void sent(const page_range &, const unit_holder &to, function keep);
	// Calls use(holder) for each unit that the range touches, while it returns true. False: it
	// did not, or a page of the range is not known to have been sent.
	template <class function> bool holders(const page_range &, function use) const;
	std::size_t size() const { return units_.size(); }
	void clear() { units_.clear(); }

private:
	struct record {
		unit_holder holder;
		std::uint8_t first, end; // pages of the unit
	};
	static constexpr std::uint64_t unit_pages = COOP_FOREST_UNIT_PAGES;
	// The part of the range in a unit, in pages of the unit.
	static record part_of(const page_range &r, std::uint64_t unit, const unit_holder &h)
	{
		const std::uint64_t start = unit * unit_pages;
		const std::uint64_t first = r.first > start ? r.first - start : 0;
		const std::uint64_t end = r.end - start < unit_pages ? r.end - start : unit_pages;
		return {h, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(end)};
	}
	std::unordered_map<std::uint64_t, record> units_; // by number
};

template <class function>
void sent_units::sent(const page_range &r, const unit_holder &to, function keep)
{
	for (std::uint64_t unit = r.first / unit_pages; unit * unit_pages < r.end; unit++) {
		const record now = part_of(r, unit, to);
		const auto [it, fresh] = units_.try_emplace(unit, now);
		record &have = it->second;
		if (fresh)
			continue;
		if (have.holder.node == to.node && now.first <= have.end && now.end >= have.first) {
			have.first = std::min(have.first, now.first);
			have.end = std::max(have.end, now.end);
		} else if (now.first < have.first || now.end > have.end || !keep(have.holder)) {
			have = now;
		}
	}
}

template <class function> bool sent_units::holders(const page_range &r, function use) const
{
	for (std::uint64_t unit = r.first / unit_pages; unit * unit_pages < r.end; unit++) {
		const auto it = units_.find(unit);
		if (it == units_.end())
			return false;
		const record want = part_of(r, unit, {}), &have = it->second;
		if (want.first < have.first || want.end > have.end || !use(have.holder))
			return false;
	}
	return true;
}

} // namespace coop::daemon
