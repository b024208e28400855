// SPDX-License-Identifier: MIT
// agenda.hpp - things that wait for a moment each, the earliest first.
//
// Thousands may wait, as when a machine connects to all the others, so none is looked for:
// each knows its place.
#pragma once

#include <map>

#include "coop/net/base.hpp"

namespace coop::net::fabric
{

template <class thing> class agenda
{
public:
	/// Where something stands; its own, and out of the agenda before it goes.
	class place
	{
	public:
		bool taken() const { return taken_; }

	private:
		friend class agenda;
		typename std::multimap<time_point, thing *>::iterator at_;
		bool taken_ = false;
	};

	/// It waits until `when`, and not any more for what it may have waited for.
	void put(thing &t, place &p, time_point when)
	{
		clear(p);
		p.at_ = all_.emplace(when, &t);
		p.taken_ = true;
	}
	/// It does not wait. Does nothing if it did not.
	void clear(place &p)
	{
		if (p.taken_)
			all_.erase(p.at_);
		p.taken_ = false;
	}
	time_point earliest() const { return all_.empty() ? never : all_.begin()->first; }
	/// Who has waited long enough, and stays in until it is put elsewhere; or null.
	thing *due(time_point now) const
	{
		return earliest() <= now ? all_.begin()->second : nullptr;
	}

private:
	std::multimap<time_point, thing *> all_;
};

} // namespace coop::net::fabric
