// SPDX-License-Identifier: MIT
// event_loop.cpp - see event_loop.hpp.
#include "userland/daemon/event_loop.hpp"

#include <algorithm>

namespace coop::daemon
{

namespace
{

unsigned index(unsigned kind)
{
	return kind < event_loop::kinds_max ? kind : 0;
}

} // namespace

thread_local event_loop::seat *event_loop::here_ = nullptr;

event_loop::event_loop(unsigned threads, std::chrono::milliseconds patience) :
	patience_(patience),
	stays_(asio::make_work_guard(io_))
{
	for (unsigned i = 0; i < std::max(1u, threads); i++)
		seats_.push_back(std::make_unique<seat>());
}

event_loop::~event_loop()
{
	stop();
}

void event_loop::start()
{
	for (const auto &s : seats_)
		threads_.emplace_back([this, at = s.get()] { serve(*at); });
	threads_.emplace_back([this] { watch(); });
}

void event_loop::grow(unsigned threads)
{
	std::lock_guard lock(mutex_);
	while (!over_ && seats_.size() < threads) {
		seats_.push_back(std::make_unique<seat>());
		threads_.emplace_back([this, at = seats_.back().get()] { serve(*at); });
	}
}

void event_loop::stop()
{
	{
		std::lock_guard lock(mutex_);
		over_ = true; // threads_ stays as it is from here on
	}
	io_.stop();
	wake_.notify_all();
	watch_.notify_all();
	for (std::thread &t : threads_)
		t.join();
	threads_.clear();
}

// ---- the threads -------------------------------------------------------------

void event_loop::serve(seat &mine)
{
	here_ = &mine;
	std::unique_lock lock(mutex_);
	while (!over_) {
		if (!leader_) {
			leader_ = &mine;
			lock.unlock();
			lead(mine);
			lock.lock();
			if (leader_ == &mine)
				leader_ = nullptr;
		} else if (calls_) {
			calls_--;
			lock.unlock();
			while (io_.poll_one())
				;
			lock.lock();
		} else {
			idle_++;
			wake_.wait(lock);
			idle_--;
		}
	}
}

// Leads until the loop ends or another thread leads.
void event_loop::lead(seat &mine)
{
	unsigned in_a_row = 0;
	do {
		if (io_.poll_one()) {
			if (++in_a_row > 1)
				call();
		} else {
			in_a_row = 0;
			if (!io_.run_one())
				return;
		}
	} while (leader_ == &mine);
}

// A call stays pending until a thread takes it: a thread that is not idle yet may be about to be.
void event_loop::call()
{
	{
		std::lock_guard lock(mutex_);
		if (calls_ + 1 >= seats_.size())
			return;
		calls_++;
		if (!idle_)
			return;
	}
	wake_.notify_one();
}

bool event_loop::is_busy() const
{
	const seat *const leader = leader_;
	return !leader || leader->turns & 1;
}

// ---- handlers ----------------------------------------------------------------

event_loop::handling::handling(event_loop &loop)
{
	here_->turns++;
	if (!loop.unwatched_ || loop.leader_ != here_)
		return;
	{
		std::lock_guard lock(loop.mutex_);
		loop.unwatched_ = false;
	}
	loop.watch_.notify_one();
}

event_loop::handling::~handling()
{
	here_->turns++;
	here_->kind = 0;
}

void event_loop::doing(unsigned kind)
{
	if (here_)
		here_->kind = index(kind);
}

bool event_loop::blocks(unsigned kind)
{
	std::atomic<unsigned> &of_kind = blocked_[index(kind)];
	const unsigned left = of_kind;
	if (left)
		of_kind = left - 1; // two at once may count as one
	return left;
}

// ---- the watcher -------------------------------------------------------------

void event_loop::watch()
{
	const seat *seen = nullptr;
	std::uint64_t turn = 0;
	std::unique_lock lock(mutex_);
	while (!over_) {
		seat *const now = leader_;
		const std::uint64_t at = now ? now->turns.load() : 0;
		const bool same = now == seen && at == turn;
		seen = now;
		turn = at;
		if (same && at & 1) {
			blocked_[now->kind] = handed_over;
			leader_ = nullptr;
			wake_.notify_one();
		} else if (same) {
			unwatched_ = true;
			// A handler that began before unwatched_ was set has not seen it.
			if (now == leader_ && (!now || now->turns == at)) {
				watch_.wait(lock, [&] { return over_ || !unwatched_; });
				continue;
			}
			unwatched_ = false;
		}
		watch_.wait_for(lock, patience_);
	}
}

} // namespace coop::daemon
