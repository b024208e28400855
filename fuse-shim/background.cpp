// SPDX-License-Identifier: MIT
// background.cpp - see background.hpp.
#include "fuse-shim/background.hpp"

namespace coop::shim
{

void background::start()
{
	std::lock_guard guard(lock_);
	running_ = true;
	thread_ = std::thread([this] { loop(); });
}

void background::stop()
{
	{
		std::lock_guard guard(lock_);
		running_ = false;
	}
	wake_.notify_all();
	if (thread_.joinable())
		thread_.join();
}

void background::run(std::function<void()> what)
{
	std::lock_guard guard(lock_);
	if (!running_)
		return;
	queue_.push_back(std::move(what));
	wake_.notify_one();
}

void background::loop()
{
	std::unique_lock guard(lock_);
	for (;;) {
		wake_.wait(guard, [this] { return !running_ || !queue_.empty(); });
		if (queue_.empty())
			return;
		auto next = std::move(queue_.front());
		queue_.pop_front();
		guard.unlock();
		next();
		guard.lock();
	}
}

} // namespace coop::shim
