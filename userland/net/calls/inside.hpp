// SPDX-License-Identifier: MIT
// inside.hpp - whether this thread runs a callback of a given object.
//
// A call that waits for the background thread must fail there instead. Callbacks of different
// objects can be nested, so each scope remembers the one outside of it.
#pragma once

namespace coop::net::core
{

class inside
{
public:
	explicit inside(const void *of) : of_(of), outer_(innermost) { innermost = this; }
	~inside() { innermost = outer_; }
	inside(const inside &) = delete;
	inside &operator=(const inside &) = delete;

	static bool of(const void *object)
	{
		for (const inside *i = innermost; i; i = i->outer_)
			if (i->of_ == object)
				return true;
		return false;
	}

private:
	static inline thread_local const inside *innermost = nullptr;

	const void *const of_;
	const inside *const outer_;
};

} // namespace coop::net::core
