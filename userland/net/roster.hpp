// SPDX-License-Identifier: MIT
// roster.hpp - an unordered list of members that need attention.
//
// Each member knows its place in the list, so joining and leaving take constant time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace coop::net
{

/// `member`: a pointer or a number; cheap to copy. Each has a std::size_t for its place, 0 while it
/// is on no list; `place_of(member)` returns a reference to it.
template <class member> class roster
{
public:
	template <class find> void join(member m, find place_of)
	{
		if (place_of(m))
			return;
		all_.push_back(m);
		place_of(m) = all_.size();
	}
	/// No effect if it is not on the list.
	template <class find> void leave(member m, find place_of)
	{
		const std::size_t place = std::exchange(place_of(m), 0);
		if (!place)
			return;
		const member last = all_.back();
		all_.pop_back();
		if (last == m)
			return;
		all_[place - 1] = last;
		place_of(last) = place;
	}
	bool empty() const { return all_.empty(); }
	/// The list must not change during an iteration.
	auto begin() const { return all_.begin(); }
	auto end() const { return all_.end(); }

private:
	std::vector<member> all_;
};

} // namespace coop::net
