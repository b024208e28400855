// SPDX-License-Identifier: MIT
// replaced.hpp - files that a rename has just replaced, kept for a moment.
//
// A client looks a name up and then opens the file, in two requests. A rename between them may take
// the file's last name. On a local file system the open gets the old file all the same, because
// lookup and open are one step there. So the table of inodes keeps such a file for as long as those
// two requests may be apart on a busy machine. Its space is freed that much later: large files are
// not kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "userland/daemon/inodes.hpp"

namespace coop::daemon
{

class replaced_files
{
public:
	using clock = std::chrono::steady_clock;
	static constexpr std::chrono::seconds time{10};
	static constexpr std::uint64_t bytes_max = 64u << 20; // of all of them
	static constexpr std::size_t files_max = 1024;

	// bytes: what the file takes on disk.
	void keep(inode_ref, std::uint64_t bytes, clock::time_point now = clock::now());
	// Those whose time is up; the caller lets go of them, which may wait for a file system.
	std::vector<inode_ref> expire(clock::time_point now = clock::now());
	void clear();
	std::size_t size() const;

private:
	struct file {
		inode_ref node;
		std::uint64_t bytes;
		clock::time_point until;
	};
	bool over_locked(clock::time_point now) const;

	mutable std::mutex mutex_;
	std::deque<file> files_; // oldest first
	std::uint64_t bytes_ = 0;
};

} // namespace coop::daemon
