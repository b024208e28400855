// SPDX-License-Identifier: MIT
// endings.hpp - links, and a device, whose end has been noticed.
//
// Every part of a machine may notice the end of a link, also while it still uses the link or one of
// its works. So it only records the end here, and machine::settle() closes the link when the call
// is over.
#pragma once

#include <cerrno>
#include <vector>

#include "../roster.hpp"
#include "port.hpp"

namespace coop::net::fabric
{

/// Empties a list. @return its members.
template <class find> std::vector<link *> take_all(roster<link *> &some, find place_of)
{
	const std::vector<link *> all(some.begin(), some.end());
	for (link *l : all)
		some.leave(l, place_of);
	return all;
}

/// Owns the list of links to close and of links to say farewell on. Under the machine's lock.
class endings
{
public:
	/// The link has failed or ended. The first reason counts.
	void fail(link &l, int status)
	{
		if (l.state == link::state::dying)
			return;
		l.state = link::state::dying;
		l.status = l.greeted || status != -ECONNRESET ? status : -ECONNREFUSED;
		dying_.push_back(&l);
	}
	void violation(link &l) { fail(l, -EPROTO); }
	/// Something on the link has ended. If the link is to be left, it may have been the last.
	void ended_on(link &l)
	{
		if (l.leaving || l.left)
			leaving_.join(&l, link::leaving_place);
	}
	/// The device was removed.
	void lose_device(int status)
	{
		if (!device_)
			device_ = status;
	}

	/// Why the device is lost; 0: it is not.
	int device() const { return device_; }
	/// Whether settle() has anything to do.
	bool any() const { return !dying_.empty() || !leaving_.empty(); }
	/// The next link to close; null: none.
	link *next_dying()
	{
		if (dying_.empty())
			return nullptr;
		link *l = dying_.back();
		dying_.pop_back();
		return l;
	}
	/// Links that may be ready for farewell, removed from the list.
	std::vector<link *> take_leaving() { return take_all(leaving_, link::leaving_place); }
	/// The link is about to be destroyed.
	void forget(link &l) { leaving_.leave(&l, link::leaving_place); }

private:
	std::vector<link *> dying_;
	roster<link *> leaving_;
	int device_ = 0;
};

} // namespace coop::net::fabric
