// SPDX-License-Identifier: MIT
// second_looks.hpp - asks the kernel to walk a path again, once a call.
//
// The kernel keeps names for a while, so a request may concern a file or directory to which the
// path does not lead any more. If we answer ESTALE, the kernel walks the path once more, and asks
// for every name on it. A call that used no name (of an open descriptor, or of the working
// directory) brings the same request again. So the thread's second request is taken as it is. What
// it looked up in between tells an open which attributes the kernel has.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <fuse_lowlevel.h>

namespace coop::shim
{

class second_looks
{
public:
	using clock = std::chrono::steady_clock;

	// What led to the second request, if the thread was told in the same call, about this file
	// or about another and has looked this one up since.
	struct look {
		explicit operator bool() const { return told; }
		bool told = false;
		// Of the file that it was told about, and has looked up again: its bumps then
		// (client::inode_table), and the version of the attributes in the reply; 0: none.
		std::optional<std::uint64_t> bumps{};
		std::uint64_t version = 0;
	};

	// The caller answers ESTALE to a request of this thread.
	void tell(pid_t thread, fuse_ino_t node, std::optional<std::uint64_t> bumps = {})
	{
		const auto now = clock::now();
		const std::lock_guard lock(mutex_);
		if (told_.size() >= most)
			std::erase_if(told_, [&](const auto &t) { return t.second.until <= now; });
		told_[thread] = {node, 0, now + call_lasts, {true, bumps}};
		some_ = true;
	}
	look second(pid_t thread, fuse_ino_t node) { return known(thread, node, false); }
	bool is_second(pid_t thread, fuse_ino_t node) { return second(thread, node).told; }
	// The same of a directory that has gone: what follows about it is the second, too. A call
	// may look a name up and then make it.
	bool has_gone(pid_t thread, fuse_ino_t dir) { return known(thread, dir, true).told; }
	// The thread looks a name up; node 0: there is no such name, and the call ends. version: of
	// the attributes in the reply.
	void looked_up(pid_t thread, fuse_ino_t node, std::uint64_t version = 0)
	{
		if (!some_)
			return;
		const std::lock_guard lock(mutex_);
		const auto it = told_.find(thread);
		if (it == told_.end())
			return;
		if (!node) {
			told_.erase(it);
			return;
		}
		it->second.looked_up = node;
		it->second.how.version = version;
	}

private:
	static constexpr std::size_t most = 1024;
	static constexpr std::chrono::seconds call_lasts{10}; // until the second request
	struct told {
		fuse_ino_t about, looked_up;
		clock::time_point until;
		look how;
	};
	look known(pid_t thread, fuse_ino_t node, bool keep)
	{
		if (!some_)
			return {};
		const std::lock_guard lock(mutex_);
		const auto it = told_.find(thread);
		if (it == told_.end() || (it->second.about != node && it->second.looked_up != node))
			return {};
		look how = it->second.how;
		if (it->second.about != node || it->second.looked_up != node)
			how = {true};
		const bool in_time = clock::now() < it->second.until;
		if (!keep || !in_time)
			told_.erase(it);
		some_ = !told_.empty();
		return in_time ? how : look{};
	}

	std::atomic<bool> some_{false};
	std::mutex mutex_;
	std::unordered_map<pid_t, told> told_;
};

} // namespace coop::shim
