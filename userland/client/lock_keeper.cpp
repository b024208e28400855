// SPDX-License-Identifier: MIT
// lock_keeper.cpp - see lock_keeper.hpp.
#include "userland/client/lock_keeper.hpp"

#include <utility>

namespace coop::client
{

namespace
{

constexpr std::chrono::milliseconds pause{250};
constexpr unsigned pauses_of_doubt = 4;

} // namespace

void lock_keeper::wake()
{
	const std::lock_guard guard(mutex_);
	awake_ = true;
	if (!thread_.joinable() && !stop_)
		thread_ = std::thread([this] { run(); });
	else
		wake_.notify_all();
}

void lock_keeper::stop()
{
	{
		const std::lock_guard guard(mutex_);
		stop_ = true;
	}
	wake_.notify_all();
	if (thread_.joinable())
		thread_.join();
}

void lock_keeper::run()
{
	std::unique_lock lock(mutex_);
	while (!stop_) {
		// What came to the book after this calls wake() later.
		awake_ = !link_.locks().idle();
		wake_.wait(lock, [this] { return stop_ || awake_; });
		lock.unlock();
		look();
		lock.lock();
		wake_.wait_for(lock, pause, [this] { return stop_; });
	}
}

void lock_keeper::look()
{
	const auto silent = boot_clock::now() - link_.heard();
	// There is time for the answer before the locks are in doubt, and the daemon waits longer.
	if (silent >= link_.trust() / 2 && !asks_->exchange(true)) {
		auto c = link_.make(COOP_ST_PING, {});
		c->urgent = true;
		c->done = [asks = asks_](storage_link::outcome &) { *asks = false; };
		// Sent by the connection's thread: this one must not wait for a full socket.
		link_.submit_later(std::move(c));
	}
	if (link_.trusted()) {
		doubted_ = 0;
	} else if (in_doubt_ && doubted_++ % pauses_of_doubt == 0) {
		in_doubt_([this](const handle &fh) { return link_.locks().era(fh) != 0; });
	}
}

} // namespace coop::client
