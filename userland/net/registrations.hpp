// SPDX-License-Identifier: MIT
// registrations.hpp - memory keys of buffers, for transports with a device for each machine.
//
// Memory is registered with a device (or a libfabric domain), each transfer machine has its own
// device, and a buffer may be added to any machine. So a buffer is registered for a machine at its
// first use there, and stays registered until the buffer or the machine is destroyed, whichever is
// first. Both may happen on any thread. A caller that asks for keys has the buffer in an operation
// and is the machine, so neither is destroyed in the meantime.
//
// Most calls find an existing registration: that takes the buffer's lock, for which others compete
// only when their machine is destroyed. Registrations are made and removed under the lock of the
// whole table: so nothing is registered with, or deregistered from, a device that is being closed.
// The buffer's lock is taken after the table's.
#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory.hpp"
#include "roster.hpp"

namespace coop::net
{

/// The registrations of one transport domain. A region keeps a segment registered, a key goes into
/// the scatter/gather entries of its work requests.
template <class region, class key> class registrations
{
public:
	/// Adds a buffer. @return its registration.
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
	/// Null: no effect.
	void remove(void *registration)
	{
		if (!registration)
			return;
		buffer &b = *static_cast<buffer *>(registration);
		std::lock_guard guard(lock_);
		for (const auto &h : b.held_for) {
			const auto of = by_machine_.find(h->machine);
			of->second.leave(h.get(), place_of);
			if (of->second.empty())
				by_machine_.erase(of);
		}
		buffers_.erase(b.self);
	}

	/// The keys of its segments, in order. `enter` registers one: 0 or -errno.
	template <class function>
	int find(const spi::memory &m, const void *machine, function &&enter,
		 std::span<const key> &out)
	{
		buffer &b = *static_cast<buffer *>(m.registration);
		{
			std::lock_guard guard(b.lock);
			if (const auto at = b.of(machine);
			    at != b.held_for.end() && (*at)->machine == machine) {
				out = (*at)->keys;
				return 0;
			}
		}
		std::lock_guard guard(lock_);
		auto h = std::make_unique<held>(held{machine, &b, {}, {}});
		for (const segment &s : b.segments)
			if (const int r =
				    enter(s, h->regions.emplace_back(), h->keys.emplace_back()))
				return r;
		out = h->keys;
		by_machine_[machine].join(h.get(), place_of);
		std::lock_guard mine(b.lock);
		b.held_for.insert(b.of(machine), std::move(h));
		return 0;
	}
	/// The device of this machine is about to be closed.
	void forget(const void *machine)
	{
		std::lock_guard guard(lock_);
		const auto of = by_machine_.find(machine);
		if (of == by_machine_.end())
			return;
		for (const held *h : of->second) {
			buffer &b = *h->of;
			std::lock_guard its(b.lock);
			b.held_for.erase(b.of(machine));
		}
		by_machine_.erase(of);
	}

private:
	struct buffer;
	struct held {
		const void *machine;
		buffer *of;
		std::vector<region> regions;
		std::vector<key> keys;
		std::size_t place = 0; // in the list of its machine
	};
	struct buffer {
		std::vector<segment> segments;
		std::mutex lock;
		std::vector<std::unique_ptr<held>> held_for; // sorted by machine
		typename std::list<buffer>::iterator self;

		auto of(const void *machine)
		{
			return std::lower_bound(held_for.begin(), held_for.end(), machine,
						[](const auto &h, const void *m) {
							return std::less<>()(h->machine, m);
						});
		}
	};
	static std::size_t &place_of(held *h) { return h->place; }

	std::mutex lock_;
	std::list<buffer> buffers_;
	std::unordered_map<const void *, roster<held *>> by_machine_;
};

} // namespace coop::net
