// SPDX-License-Identifier: MIT
// registrations.hpp - memory keys of buffers, for transports with a device for each machine.
//
// Memory is registered with a device (or a libfabric domain), each transfer machine has its own
// device, and a buffer may be added to any machine. So every buffer is registered with every device
// that is open: when the buffer is made, or when a machine opens its device, whichever is later. A
// buffer or device for which that fails is not made. Both may happen on any thread; neither holds
// the lock of a machine, and operations only look keys up.
//
// A device that was removed refuses everything. That is no reason to refuse a buffer: its machine
// fails, and operations on it get the error.
//
// Registrations are made and removed under the lock of the whole table: so nothing is registered
// with, or deregistered from, a device that is being closed. A look-up takes the buffer's lock
// only, for which others compete only while a device is opened or closed. The buffer's lock is
// taken after the table's.
#pragma once

#include <algorithm>
#include <cerrno>
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
	/// Registers a segment with a device. @return 0 or -errno. Called on any thread, by one at
	/// a time.
	using enter = std::function<int(const segment &, region &, key &)>;
	/// The same of all segments of a buffer, for devices that know buffers. It appends what
	/// find() is to give.
	using enter_whole = std::function<int(std::span<const segment>, std::vector<region> &,
					      std::vector<key> &)>;

	/// Adds a buffer. @return 0 and its registration, or -errno of a device that is open.
	int add(std::span<const segment> segments, void **registration)
	{
		std::list<buffer> one(1);
		buffer *b = &one.front();
		b->segments.assign(segments.begin(), segments.end());
		b->self = one.begin();
		std::lock_guard guard(lock_);
		buffers_.splice(buffers_.end(), one);
		for (auto &[machine, device] : devices_)
			if (const int r = join(*b, machine, device)) {
				erase(*b);
				return r;
			}
		*registration = b;
		return 0;
	}
	/// Null: no effect.
	void remove(void *registration)
	{
		if (!registration)
			return;
		std::lock_guard guard(lock_);
		erase(*static_cast<buffer *>(registration));
	}

	/// This machine has opened its device: registers all buffers with it. @return 0, or -errno:
	/// none is registered.
	int open(const void *machine, enter with)
	{
		return open_whole(machine, [with = std::move(with)](std::span<const segment> all,
								    auto &regions, auto &keys) {
			for (const segment &s : all)
				if (const int r =
					    with(s, regions.emplace_back(), keys.emplace_back()))
					return r;
			return 0;
		});
	}
	/// The same.
	int open_whole(const void *machine, enter_whole with)
	{
		std::lock_guard guard(lock_);
		device &d = devices_[machine];
		d.with = std::move(with);
		for (buffer &b : buffers_)
			if (const int r = join(b, machine, d)) {
				leave(machine);
				return r;
			}
		return 0;
	}
	/// From here on nothing is registered with the device. No effect if it is not open.
	void close(const void *machine)
	{
		std::lock_guard guard(lock_);
		if (const auto d = devices_.find(machine); d != devices_.end())
			d->second.with = nullptr;
	}
	/// Ends all registrations with the device. No effect if it is not open.
	void forget(const void *machine)
	{
		std::lock_guard guard(lock_);
		leave(machine);
	}

	/// The keys of a buffer's segments, in order, for a machine whose device is open. @return
	/// 0, or the -errno with which a removed device refused it.
	int find(const spi::memory &m, const void *machine, std::span<const key> &out)
	{
		buffer &b = *static_cast<buffer *>(m.registration);
		std::lock_guard guard(b.lock);
		const auto at = b.of(machine);
		if (at == b.held_for.end() || (*at)->machine != machine)
			return -ENODEV;
		out = (*at)->keys;
		return (*at)->status;
	}

private:
	struct buffer;
	struct held {
		const void *machine;
		buffer *of;
		std::vector<region> regions;
		std::vector<key> keys;
		int status = 0;
		std::size_t place = 0; // in the list of its device
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
	struct device {
		enter_whole with; // null: closed
		roster<held *> holds;
	};
	static std::size_t &place_of(held *h) { return h->place; }

	// The rest is called under the lock of the table.
	int join(buffer &b, const void *machine, device &d)
	{
		if (!d.with)
			return 0;
		auto h = std::make_unique<held>();
		h->machine = machine;
		h->of = &b;
		if (const int r = d.with(b.segments, h->regions, h->keys)) {
			if (r != -ENODEV && r != -EIO)
				return r;
			h->regions.clear();
			h->keys.clear();
			h->status = r;
		}
		d.holds.join(h.get(), place_of);
		std::lock_guard mine(b.lock);
		b.held_for.insert(b.of(machine), std::move(h));
		return 0;
	}
	void erase(buffer &b)
	{
		for (const auto &h : b.held_for)
			devices_.find(h->machine)->second.holds.leave(h.get(), place_of);
		buffers_.erase(b.self);
	}
	void leave(const void *machine)
	{
		const auto d = devices_.find(machine);
		if (d == devices_.end())
			return;
		for (const held *h : d->second.holds) {
			buffer &b = *h->of;
			std::lock_guard its(b.lock);
			b.held_for.erase(b.of(machine));
		}
		devices_.erase(d);
	}

	std::mutex lock_;
	std::list<buffer> buffers_;
	std::unordered_map<const void *, device> devices_;
};

} // namespace coop::net
