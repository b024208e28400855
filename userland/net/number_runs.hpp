// SPDX-License-Identifier: MIT
// number_runs.hpp - a set of numbers, stored as runs.
//
// Numbers of machines are taken from the top, so a few runs hold many, and the highest missing
// number is the one below a run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace coop::net::core
{

/// A set of numbers less than 2^32 - 1.
class number_runs
{
	template <class map> static auto run_of(map &runs, std::uint32_t n)
	{
		auto it = runs.upper_bound(n);
		return it == runs.begin() || (--it)->second < n ? runs.end() : it;
	}

public:
	/// `n` must not be in the set.
	void insert(std::uint32_t n)
	{
		std::uint32_t last = n;
		if (const auto above = runs_.find(n + 1); above != runs_.end()) {
			last = above->second;
			runs_.erase(above);
		}
		const auto below = n ? run_of(runs_, n - 1) : runs_.end();
		if (below != runs_.end())
			below->second = last;
		else
			runs_[n] = last;
	}
	/// `n` must be in the set.
	void erase(std::uint32_t n)
	{
		const auto run = run_of(runs_, n);
		const std::uint32_t last = run->second;
		if (run->first == n)
			runs_.erase(run);
		else
			run->second = n - 1;
		if (last != n)
			runs_[n + 1] = last;
	}
	/// The highest number up to `most` that is not in the set.
	std::optional<std::uint32_t> highest_missing(std::uint32_t most) const
	{
		const auto run = run_of(runs_, most);
		if (run == runs_.end())
			return most;
		return run->first ? std::optional(run->first - 1) : std::nullopt;
	}
	bool empty() const { return runs_.empty(); }

private:
	std::map<std::uint32_t, std::uint32_t>
		runs_; // first and last number; no two runs are adjacent
};

} // namespace coop::net::core
