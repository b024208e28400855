// SPDX-License-Identifier: MIT
// committer.cpp - see committer.hpp.
#include "userland/client/committer.hpp"

#include <algorithm>
#include <utility>

#include "userland/client/asker.hpp"

namespace coop::client
{

// A call of this thread stops waiting when the committer is to end.
struct committer::ending final : asker {
	explicit ending(const std::atomic<bool> &stop) : stop(stop) {}
	bool gone() override { return stop; }
	const std::atomic<bool> &stop;
};

committer::committer(kept_memory &memory, duties d) : memory_(memory), duties_(std::move(d)) {}

committer::~committer()
{
	{
		std::lock_guard guard(mutex_);
		stop_ = true;
	}
	wake_.notify_all();
	if (thread_.joinable())
		thread_.join();
}

void committer::began(inode &node)
{
	std::lock_guard guard(mutex_);
	if (std::exchange(node.keeps_listed, true))
		return;
	if (queue_.size() >= sweep_at_)
		sweep_locked();
	queue_.push_back(node.weak_from_this());
	if (!thread_.joinable()) {
		connections_ = duties_.connections();
		thread_ = std::thread([this] { run(); });
	}
	if (std::exchange(asleep_, false))
		wake_.notify_all();
}

void committer::hurry()
{
	std::lock_guard guard(mutex_);
	wake_.notify_all();
}

// Most files are committed by their close. Their entries are removed once there are many.
void committer::sweep_locked()
{
	std::erase_if(queue_, [](const std::weak_ptr<inode> &w) {
		const auto node = w.lock();
		if (node && node->changes.keeps())
			return false;
		if (node)
			node->keeps_listed = false;
		return true;
	});
	sweep_at_ = 2 * queue_.size() + 64;
	due_ = std::min(due_, queue_.size());
}

// Takes the next file that keeps writes out of the queue.
std::shared_ptr<inode> committer::next_locked()
{
	while (!queue_.empty() && (due_ || memory_.crowded())) {
		const auto node = queue_.front().lock();
		queue_.pop_front();
		due_ -= due_ != 0;
		if (!node)
			continue;
		node->keeps_listed = false;
		if (node->changes.keeps())
			return node;
	}
	return {};
}

void committer::run()
{
	const ending ends(stop_);
	auto look = std::chrono::steady_clock::now();
	bool idle = true;
	std::unique_lock lock(mutex_);
	while (!stop_) {
		if (queue_.empty() && idle) {
			asleep_ = true;
			wake_.wait(lock);
			asleep_ = false;
		} else if (queue_.empty() || (!due_ && !memory_.crowded()))
			wake_.wait_until(lock, look);
		if (const auto now = std::chrono::steady_clock::now(); now >= look) {
			look = now + look_again;
			sweep_locked();
			idle = !memory_.trim();
		}
		if (const auto now = duties_.connections(); now != connections_) {
			connections_ = now;
			due_ = queue_.size();
		}
		while (auto node = stop_ ? nullptr : next_locked()) {
			lock.unlock();
			const int err = duties_.commit(*node);
			const bool more = node->changes.keeps();
			lock.lock();
			if (more && !std::exchange(node->keeps_listed, true))
				queue_.push_back(node);
			if (err) { // storage is unreachable
				due_ += more;
				wake_.wait_for(lock, look_again, [this] { return stop_.load(); });
			}
		}
	}
}

} // namespace coop::client
