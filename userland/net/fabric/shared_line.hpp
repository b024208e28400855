// SPDX-License-Identifier: MIT
// shared_line.hpp - one queue of entries with many owners, in order of arrival.
//
// It gives the first entry of all and the first of each owner. Every operation takes constant time.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace coop::net::fabric
{

/// An owner's part of the queue; kept by the owner.
struct line_part {
	std::uint32_t first = 0, last = 0; // places; 0: none
	bool empty() const { return !first; }
};

template <class owner, class thing> class shared_line
{
public:
	bool empty() const { return !all_[0].after; }
	/// Owner of the first entry; the queue must not be empty.
	owner &whose() const { return *all_[all_[0].after].by; }
	thing &front() { return all_[all_[0].after].what; }
	const thing &front() const { return all_[all_[0].after].what; }
	/// `own`: the part of owner `o`.
	void push(owner &o, line_part &own, thing t)
	{
		place at;
		if (free_.empty()) {
			at = static_cast<place>(all_.size());
			all_.emplace_back();
		} else {
			at = free_.back();
			free_.pop_back();
		}
		entry &e = all_[at], &ends = all_[0];
		e.by = &o;
		e.what = std::move(t);
		e.before = ends.before;
		e.after = e.next = 0;
		all_[ends.before].after = at;
		ends.before = at;
		(own.last ? all_[own.last].next : own.first) = at;
		own.last = at;
	}
	/// Removes the first entry of this owner, which must have one.
	thing pop(line_part &own)
	{
		const place at = own.first;
		entry &e = all_[at];
		all_[e.before].after = e.after;
		all_[e.after].before = e.before;
		own.first = e.next;
		if (!e.next)
			own.last = 0;
		free_.push_back(at);
		thing t = std::move(e.what);
		if (empty()) { // free the memory of the peak size
			all_.resize(1);
			free_.clear();
		}
		return t;
	}

private:
	using place = std::uint32_t;
	struct entry {
		owner *by = nullptr;
		place before = 0, after = 0; // in the whole queue
		place next = 0;              // of the same owner
		thing what{};
	};

	std::deque<entry> all_ = std::deque<entry>(1); // the first entry links both ends
	std::vector<place> free_;
};

} // namespace coop::net::fabric
