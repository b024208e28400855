// SPDX-License-Identifier: MIT
// memory_keeper.cpp - see memory_keeper.hpp.
#include "userland/client/memory_keeper.hpp"

#include <chrono>

namespace coop::client
{

memory_keeper::memory_keeper(page_store &store) : thread_([this, &store] { loop(store); }) {}

memory_keeper::~memory_keeper()
{
	{
		const std::lock_guard lock(lock_);
		stop_ = true;
		wake_.notify_all();
	}
	thread_.join();
}

void memory_keeper::loop(page_store &store)
{
	using namespace std::chrono_literals;
	std::unique_lock lock(lock_);
	while (!wake_.wait_for(lock, 1s, [this] { return stop_; })) {
		lock.unlock();
		store.follow(look_at_memory());
		lock.lock();
	}
}

} // namespace coop::client
