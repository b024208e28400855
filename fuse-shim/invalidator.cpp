// SPDX-License-Identifier: MIT
// invalidator.cpp - the thread of invalidator.hpp. It handles repeated requests for a file once.
#include "fuse-shim/invalidator.hpp"

#include <utility>

namespace coop::shim
{

void invalidator::start(std::function<void(fuse_ino_t)> drop)
{
	std::lock_guard guard(lock_);
	running_ = true;
	drop_ = std::move(drop);
	thread_ = std::thread([this] { run(); });
}

void invalidator::stop()
{
	{
		std::lock_guard guard(lock_);
		running_ = false;
		waiting_.clear();
	}
	wake_.notify_all();
	if (thread_.joinable())
		thread_.join();
	for (const auto &f : std::exchange(after_, {}))
		f();
}

void invalidator::pages_stale(fuse_ino_t ino)
{
	{
		std::lock_guard guard(lock_);
		if (!running_)
			return;
		waiting_.insert(ino);
	}
	wake_.notify_one();
}

void invalidator::after(std::function<void()> then)
{
	{
		std::lock_guard guard(lock_);
		if (running_ && (busy_ || !waiting_.empty())) {
			after_.push_back(std::move(then));
			return;
		}
	}
	then();
}

void invalidator::run()
{
	std::unique_lock guard(lock_);
	for (;;) {
		wake_.wait(guard,
			   [this] { return !running_ || !waiting_.empty() || !after_.empty(); });
		if (!running_)
			return;
		auto list = std::exchange(waiting_, {});
		auto then = std::exchange(after_, {});
		busy_ = true;
		guard.unlock();
		for (fuse_ino_t ino : list)
			drop_(ino);
		for (const auto &f : then)
			f();
		guard.lock();
		busy_ = false;
	}
}

} // namespace coop::shim
