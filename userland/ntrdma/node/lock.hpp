// SPDX-License-Identifier: MIT
// lock.hpp - the lock of a node: held for a moment, a million times a second.
//
// It costs one locked instruction where a std::mutex costs two: unlock() is a plain store, and then
// a look for sleepers that the processor may carry out before the store. So a sleeper may be
// overlooked, and sleeps for a millisecond at most.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace coop::ntrdma
{

class node_lock
{
public:
	node_lock() = default;
	node_lock(const node_lock &) = delete;
	node_lock &operator=(const node_lock &) = delete;

	void lock()
	{
		if (!try_lock()) [[unlikely]]
			wait();
	}
	bool try_lock() { return !held_.exchange(1, std::memory_order_acquire); }
	void unlock()
	{
		held_.store(0, std::memory_order_release);
		if (sleepers_.load(std::memory_order_relaxed)) [[unlikely]]
			wake();
	}

	/// True if another thread sleeps until it gets the lock.
	bool contended() const { return sleepers_.load(std::memory_order_relaxed) != 0; }

private:
	void wait();
	void wake();

	std::atomic<std::uint32_t> held_{0};
	std::atomic<std::uint32_t> sleepers_{0};
};

using node_hold = std::unique_lock<node_lock>;

} // namespace coop::ntrdma
