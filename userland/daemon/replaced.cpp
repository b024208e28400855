// SPDX-License-Identifier: MIT
// replaced.cpp - see replaced.hpp. Files are released without the lock held: that may close them.
#include "userland/daemon/replaced.hpp"

#include <utility>
#include <vector>

namespace coop::daemon
{

bool replaced_files::over_locked(clock::time_point now) const
{
	return !files_.empty() &&
	       (files_.size() > files_max || bytes_ > bytes_max || files_.front().until <= now);
}

void replaced_files::keep(inode_ref node, std::uint64_t bytes, clock::time_point now)
{
	if (bytes > bytes_max)
		return;
	{
		std::lock_guard lock(mutex_);
		files_.push_back({std::move(node), bytes, now + time});
		bytes_ += bytes;
	}
	expire(now);
}

std::vector<inode_ref> replaced_files::expire(clock::time_point now)
{
	std::vector<inode_ref> gone;
	std::lock_guard lock(mutex_);
	while (over_locked(now)) {
		bytes_ -= files_.front().bytes;
		gone.push_back(std::move(files_.front().node));
		files_.pop_front();
	}
	return gone;
}

void replaced_files::clear()
{
	std::deque<file> gone;
	std::lock_guard lock(mutex_);
	gone.swap(files_);
	bytes_ = 0;
}

std::size_t replaced_files::size() const
{
	std::lock_guard lock(mutex_);
	return files_.size();
}

} // namespace coop::daemon
