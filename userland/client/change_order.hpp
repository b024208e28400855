// SPDX-License-Identifier: MIT
// change_order.hpp - serialises the changes of one file, also those whose callers were killed.
//
// A change that was sent to storage may happen even if its caller no longer waits. If the caller
// was killed, the next change must not be sent before the reply: the daemon may execute the two in
// either order. So the turn is not a lock of the thread that took it, but a hold that passes to the
// handler of the late reply.
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
	// The turn; it ends when its last copy is destroyed, in any thread.
	using hold = std::shared_ptr<change_order>;

	// Waits for the turn. owner: of this object, kept alive by the hold. patience: 0 means no
	// limit. Returns 0, -EINTR (the asker has gone) or -ETIMEDOUT.
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
