// SPDX-License-Identifier: MIT
// number_runs.hpp - a set of numbers, kept as the runs that they make.
//
// Numbers of machines are taken from the top, so few runs hold many, and the highest that is
// missing is the one below a run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace coop::net::core
{

/// Of numbers less than 2^32 - 1.
class number_runs
{
	template <class map> static auto run_of(map &runs, std::uint32_t n)
	{
		auto it = runs.upper_bound(n);
		return it == runs.begin() || (--it)->second < n ? runs.end() : it;
	}

public:
	/// It is not there.
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
	/// It is there.
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
	/// The highest up to `most` that is not there.
	std::optional<std::uint32_t> highest_missing(std::uint32_t most) const
	{
		const auto run = run_of(runs_, most);
		if (run == runs_.end())
			return most;
		return run->first ? std::optional(run->first - 1) : std::nullopt;
	}
	bool empty() const { return runs_.empty(); }

private:
	std::map<std::uint32_t, std::uint32_t> runs_; // from, to; no two of them touch
};

} // namespace coop::net::core
