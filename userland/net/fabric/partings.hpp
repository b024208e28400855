// SPDX-License-Identifier: MIT
// partings.hpp - closing links that are unused; the next use makes a new one.
//
// All links are in one line. The first one is examined when its time has come, and goes to the end
// again if it was used since. So a use costs a store, a link is examined once in a period, and
// there is no search. If a link was not used and nothing is under way on it, this side parts with
// it: it makes a new link for its next operation. The other side, unaware of that, ends what it had
// begun, and says farewell. When there is hardly room for another link, those at the head are
// examined before their time.
#pragma once

#include "peers.hpp"
#include "sends.hpp"

namespace coop::net::fabric
{

/// Owns the order of the links. Under the machine's lock.
class partings
{
public:
	partings(environment &e, peers &p, sends &s) : env_(e), peers_(p), sends_(s) {}

	/// A link has been made, or is about to be destroyed.
	void watch(link &);
	void unwatch(link &);
	/// There is hardly room for another link.
	void make_room();
	/// Begins nothing on this link any more. `idle`: what the peer has begun may end first.
	void part(link &, bool idle);
	void on_bye(link &, bool idle);
	void on_farewell(link &);
	/// Says farewell on the links whose last work has ended.
	void take_leaves();
	/// The machine stops: farewell ends a link, whatever waits there.
	void stop() { stopping_ = true; }

	time_point deadline() const { return first_ ? first_->look_at : never; }
	void expire(time_point now)
	{
		while (deadline() <= now)
			look(*first_);
	}

private:
	void look(link &);

	environment &env_;
	peers &peers_;
	sends &sends_;
	link *first_ = nullptr, *last_ = nullptr; ///< to be looked at, in order
	bool stopping_ = false;
};

} // namespace coop::net::fabric
