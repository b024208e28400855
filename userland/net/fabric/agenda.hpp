// SPDX-License-Identifier: MIT
// agenda.hpp - things that each wait for a point in time, the earliest first.
//
// Thousands may wait, for example when a machine connects to all others, so there is no search:
// each thing knows its place.
#pragma once

#include <map>

#include "coop/net/base.hpp"

namespace coop::net::fabric
{

template <class thing> class agenda
{
public:
	/// The place of a thing, owned by it; clear it before it is destroyed.
	class place
	{
	public:
		bool taken() const { return taken_; }

	private:
		friend class agenda;
		typename std::multimap<time_point, thing *>::iterator at_;
		bool taken_ = false;
	};

	/// The thing waits until `when`, in place of any earlier time.
	void put(thing &t, place &p, time_point when)
	{
		clear(p);
		p.at_ = all_.emplace(when, &t);
		p.taken_ = true;
	}
	/// The thing waits no longer. No effect if it did not wait.
	void clear(place &p)
	{
		if (p.taken_)
			all_.erase(p.at_);
		p.taken_ = false;
	}
	time_point earliest() const { return all_.empty() ? never : all_.begin()->first; }
	/// The first thing whose time has come, or null. It stays in until it is put elsewhere.
	thing *due(time_point now) const
	{
		return earliest() <= now ? all_.begin()->second : nullptr;
	}

private:
	std::multimap<time_point, thing *> all_;
};

} // namespace coop::net::fabric
