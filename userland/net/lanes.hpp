// SPDX-License-Identifier: MIT
// lanes.hpp - a queue in which messages of high priority overtake others.
//
// Two queues, each first in, first out. The high one goes first, but after high_run of it in a row
// one of the others is next, so none waits forever.
#pragma once

#include <utility>

#include "transport.hpp"

namespace coop::net
{

/// `queue`: as std::deque, of which it uses what it has.
template <class queue> class lanes
{
public:
	bool empty() const { return high_.empty() && normal_.empty(); }
	auto size() const { return high_.size() + normal_.size(); }
	template <class item> void push_back(item &&i, bool high)
	{
		(high ? high_ : normal_).push_back(std::forward<item>(i));
	}
	/// The next one; it may be another one after push_back().
	decltype(auto) front() { return (high_next() ? high_ : normal_).front(); }
	/// Removes what front() returns.
	void pop_front()
	{
		const bool high = high_next();
		(high ? high_ : normal_).pop_front();
		run_ = high && !normal_.empty() ? run_ + 1 : 0;
	}

private:
	bool high_next() const
	{
		return !high_.empty() && (normal_.empty() || run_ < spi::high_run);
	}

	queue high_, normal_;
	unsigned run_ = 0; // taken from high_ in a row while others waited
};

} // namespace coop::net
