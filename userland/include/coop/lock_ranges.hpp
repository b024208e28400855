// SPDX-License-Identifier: MIT
// lock_ranges.hpp - the locks held on one file, split and joined as new ones come.
//
// The daemon decides about locks by it. A client keeps the same record of its own locks, to reclaim
// them after a restart of the daemon. Both must split and join ranges alike, so they share this
// code.
//
// Ranges are inclusive: [0, last_byte] is the whole file, however it grows. An owner has at most
// one lock on a byte in each of two spaces: flock(2) has its own, byte ranges of processes and of
// open file descriptions share the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace coop
{

// owner_type: comparable with ==.
template <class owner_type> class lock_ranges
{
public:
	static constexpr std::uint64_t last_byte = ~0ull;

	struct range {
		owner_type owner;
		std::uint64_t open_id;    // the open file that took it
		std::uint64_t start, end; // bytes, both included
		std::uint32_t kind;       // enum coop_st_lock_kind
		std::uint32_t pid;
		bool whole_file; // a lock of flock(2)
		bool exclusive;

		// Whether both are in one space and share a byte.
		bool meets(const range &o) const
		{
			return whole_file == o.whole_file && start <= o.end && o.start <= end;
		}
		// Whether the two conflict.
		bool forbids(const range &o) const
		{
			return meets(o) && !(owner == o.owner) && (exclusive || o.exclusive);
		}
	};

	const std::vector<range> &held() const { return held_; }
	bool empty() const { return held_.empty(); }

	// The first lock that conflicts with 'wanted', or null.
	const range *conflict(const range &wanted) const
	{
		const auto it = std::find_if(held_.begin(), held_.end(),
					     [&](const range &h) { return h.forbids(wanted); });
		return it == held_.end() ? nullptr : &*it;
	}

	// Replaces the owner's locks in that range by 'wanted', which must not conflict.
	void take(range wanted)
	{
		release(wanted);
		// Join adjacent ranges of one kind, so that locking a file byte by byte costs no
		// more memory than locking it at once.
		for (auto it = held_.begin(); it != held_.end();) {
			if (alike(*it, wanted) && touches(*it, wanted)) {
				wanted.start = std::min(wanted.start, it->start);
				wanted.end = std::max(wanted.end, it->end);
				it = held_.erase(it);
			} else {
				++it;
			}
		}
		held_.push_back(wanted);
	}

	// Releases the owner's locks in that range. True: there was one.
	bool release(const range &freed)
	{
		bool any = false;
		const std::size_t before = held_.size();
		for (std::size_t i = 0; i < before; i++) {
			range &h = held_[i];
			if (!(h.owner == freed.owner) || !h.meets(freed))
				continue;
			any = true;
			const bool head = h.start<freed.start, tail = h.end> freed.end;
			if (head && tail) {
				range rest = h;
				rest.start = freed.end + 1;
				h.end = freed.start - 1;
				held_.push_back(rest); // invalidates h
			} else if (head) {
				h.end = freed.start - 1;
			} else if (tail) {
				h.start = freed.end + 1;
			} else {
				h.start = 1, h.end = 0; // empty
			}
		}
		std::erase_if(held_, [](const range &h) { return h.start > h.end; });
		return any;
	}

	// Drops the locks for which gone(range) is true; returns their number.
	template <class predicate> std::size_t drop(predicate gone)
	{
		return std::erase_if(held_, gone);
	}

private:
	static bool alike(const range &a, const range &b)
	{
		return a.owner == b.owner && a.open_id == b.open_id && a.kind == b.kind &&
		       a.exclusive == b.exclusive && a.whole_file == b.whole_file;
	}
	static bool touches(const range &a, const range &b)
	{
		return (a.end != last_byte && a.end + 1 == b.start) ||
		       (b.end != last_byte && b.end + 1 == a.start);
	}

	std::vector<range> held_;
};

} // namespace coop
