// SPDX-License-Identifier: MIT
// change_order.hpp - one file's changes, one after another, also those whose callers have gone.
//
// A change of storage that was sent happens, or does not, whether or not its caller still waits.
// Was the caller killed, the next change must not be sent before that is known: the daemon may do
// them in either order. So the turn is not a lock of the thread that took it, but a hold that
// the call's reply inherits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "userland/client/asker.hpp"

namespace coop::client
{

class change_order
{
public:
	// The turn, until its last copy is destroyed, in whatever thread.
	using hold = std::shared_ptr<change_order>;

	// Waits for it. owner: of this, kept by the hold. patience: 0 is no end. Returns 0, -EINTR
	// (the asker has gone) or -ETIMEDOUT.
	[[nodiscard]] int take(std::shared_ptr<void> owner, std::chrono::milliseconds patience,
			       hold &out)
	{
		const auto begun = std::chrono::steady_clock::now();
		std::unique_lock lock(mutex_);
		while (!free_.wait_for(lock, asker::look_again, [this] { return !taken_; })) {
			lock.unlock();
			if (asker::has_gone())
				return -EINTR;
			if (patience.count() &&
			    std::chrono::steady_clock::now() - begun >= patience)
				return -ETIMEDOUT;
			lock.lock();
		}
		taken_ = true;
		lock.unlock();
		out = hold(this, [owner = std::move(owner)](change_order *o) { o->give_back(); });
		return 0;
	}

private:
	void give_back()
	{
		std::lock_guard lock(mutex_);
		taken_ = false;
		free_.notify_one();
	}

	std::mutex mutex_;
	std::condition_variable free_;
	bool taken_ = false;
};

} // namespace coop::client
