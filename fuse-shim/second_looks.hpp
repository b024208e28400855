// SPDX-License-Identifier: MIT
// second_looks.hpp - asks the kernel to walk a path again, once a call.
//
// The kernel keeps names for a while, so a request may concern a file or directory to which the
// path does not lead any more. If we answer ESTALE, the kernel walks the path once more, and asks
// for every name on it. A call that used no name (of an open descriptor, or of the working
// directory) brings the same request again. So the thread's second request is taken as it is.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <unordered_map>

#include <fuse_lowlevel.h>

namespace coop::shim
{

class second_looks
{
public:
	using clock = std::chrono::steady_clock;

	// The caller answers ESTALE to a request of this thread.
	void tell(pid_t thread, fuse_ino_t node)
	{
		const auto now = clock::now();
		const std::lock_guard lock(mutex_);
		if (told_.size() >= most)
			std::erase_if(told_, [&](const auto &t) { return t.second.until <= now; });
		told_[thread] = {node, 0, now + call_lasts};
		some_ = true;
	}
	// True: the thread was told so in the same call, about this file, or it has looked this one
	// up since.
	bool is_second(pid_t thread, fuse_ino_t node) { return known(thread, node, false); }
	// The same of a directory that has gone: what follows about it is the second, too. A call
	// may look a name up and then make it.
	bool has_gone(pid_t thread, fuse_ino_t dir) { return known(thread, dir, true); }
	// The thread looks a name up; node 0: there is no such name, and the call ends.
	void looked_up(pid_t thread, fuse_ino_t node)
	{
		if (!some_)
			return;
		const std::lock_guard lock(mutex_);
		const auto it = told_.find(thread);
		if (it != told_.end() && node)
			it->second.looked_up = node;
		else if (it != told_.end())
			told_.erase(it);
	}

private:
	static constexpr std::size_t most = 1024;
	static constexpr std::chrono::seconds call_lasts{10}; // until the second request
	struct told {
		fuse_ino_t about, looked_up;
		clock::time_point until;
	};
	bool known(pid_t thread, fuse_ino_t node, bool keep)
	{
		if (!some_)
			return false;
		const std::lock_guard lock(mutex_);
		const auto it = told_.find(thread);
		if (it == told_.end() || (it->second.about != node && it->second.looked_up != node))
			return false;
		const bool in_time = clock::now() < it->second.until;
		if (!keep || !in_time)
			told_.erase(it);
		some_ = !told_.empty();
		return in_time;
	}

	std::atomic<bool> some_{false};
	std::mutex mutex_;
	std::unordered_map<pid_t, told> told_;
};

} // namespace coop::shim
