// SPDX-License-Identifier: MIT
// open_watch.cpp - see open_watch.hpp.
#include "userland/client/open_watch.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "userland/client/asker.hpp"

namespace coop::client
{

// A call of this thread stops waiting when the watch is to end.
struct open_watch::ending final : asker {
	explicit ending(const std::atomic<bool> &stop) : stop(stop) {}
	bool gone() override { return stop; }
	const std::atomic<bool> &stop;
};

open_watch::~open_watch()
{
	{
		const std::lock_guard guard(mutex_);
		stop_ = true;
	}
	wake_.notify_all();
	if (thread_.joinable())
		thread_.join();
}

void open_watch::begin_locked(inode &node)
{
	node.watched = true;
	const std::lock_guard guard(mutex_);
	fresh_.push_back({node.shared_from_this()});
	if (!thread_.joinable())
		thread_ = std::thread([this] { run(); });
	else if (fresh_.size() == 1)
		wake_.notify_all();
}

void open_watch::run()
{
	const ending ends(stop_);
	std::vector<watched> all;
	std::unique_lock lock(mutex_);
	for (;;) {
		if (all.empty())
			wake_.wait(lock, [this] { return stop_ || !fresh_.empty(); });
		wake_.wait_for(lock, pause, [this] { return stop_.load(); });
		if (stop_)
			return;
		std::move(fresh_.begin(), fresh_.end(), std::back_inserter(all));
		fresh_.clear();
		lock.unlock();
		look_at_all(all);
		lock.lock();
	}
}

void open_watch::look_at_all(std::vector<watched> &all)
{
	std::erase_if(all, [this](watched &w) {
		if (stop_)
			return false;
		{
			const std::lock_guard guard(w.node->lock);
			if (!w.node->opens || !w.node->kernel_version) {
				w.node->watched = false;
				return true;
			}
		}
		look_at(w);
		return false;
	});
}

// While a program has the file open for writing, each reply has a version of its own. Then the
// change time shows whether there was a change. The second look at one time counts as a change,
// because there may have been one since the first look at which the clock had not moved.
void open_watch::look_at(watched &w)
{
	constexpr std::uint64_t provisional = 1ull << 63;
	const ticket asked = inodes_.now();
	attributes now;
	if (storage_.getattr({0, 0, {}}, w.node->fh, now))
		return;
	const timespec &at = now.st.st_ctim;
	const bool same =
		w.looks && at.tv_sec == w.changed.tv_sec && at.tv_nsec == w.changed.tv_nsec;
	const bool first = !w.looks;
	w.looks = same ? std::min(w.looks + 1, 3u) : 1;
	w.changed = at;
	if (!(now.version & provisional) || (!first && w.looks < 3))
		inodes_.learn(*w.node, asked, now, nullptr);
}

} // namespace coop::client
