// SPDX-License-Identifier: MIT
// registrations.hpp - keys of buffers' memory, for transports whose machines have a device each.
//
// Memory is registered with a device (or a domain of libfabric), each transfer machine has its
// own, and a buffer may be added to any of them: so it is registered for a machine when that
// first needs it, and stays so until the buffer or the machine goes, whichever is first.
// Either happens on any thread; whoever asks for keys has the buffer in an operation and is
// the machine, so neither goes meanwhile.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "memory.hpp"

namespace coop::net
{

/// Of one transport domain. A region is what keeps a segment registered, a key what its
/// entries in work requests carry.
template <class region, class key> class registrations
{
public:
	/// A buffer. @return what becomes its registration.
	void *add(std::span<const segment> segments)
	{
		std::list<buffer> one(1);
		buffer *b = &one.front();
		b->segments.assign(segments.begin(), segments.end());
		b->self = one.begin();
		std::lock_guard guard(lock_);
		buffers_.splice(buffers_.end(), one);
		return b;
	}
	/// Null: nothing.
	void remove(void *registration)
	{
		if (!registration)
			return;
		std::lock_guard guard(lock_);
		buffers_.erase(static_cast<buffer *>(registration)->self);
	}

	/// The keys of its segments, in their order. `enter` registers one: 0 or -errno.
	template <class function>
	int find(const spi::memory &m, const void *machine, function &&enter,
		 std::span<const key> &out)
	{
		buffer &b = *static_cast<buffer *>(m.registration);
		std::lock_guard guard(lock_);
		for (const held &h : b.by_machine)
			if (h.machine == machine) {
				out = h.keys;
				return 0;
			}
		held h{machine, {}, {}};
		for (const segment &s : b.segments)
			if (const int r = enter(s, h.regions.emplace_back(), h.keys.emplace_back()))
				return r;
		b.by_machine.push_back(std::move(h));
		out = b.by_machine.back().keys;
		return 0;
	}
	/// What its regions were entered at is about to go.
	void forget(const void *machine)
	{
		std::lock_guard guard(lock_);
		for (buffer &b : buffers_)
			b.by_machine.remove_if([&](const held &h) { return h.machine == machine; });
	}

private:
	struct held {
		const void *machine;
		std::vector<region> regions;
		std::vector<key> keys;
	};
	struct buffer {
		std::vector<segment> segments;
		std::list<held> by_machine; // few
		typename std::list<buffer>::iterator self;
	};

	std::mutex lock_;
	std::list<buffer> buffers_;
};

} // namespace coop::net
