// SPDX-License-Identifier: MIT
// open_watch.hpp - a thread that looks at the versions of open files about once a second.
//
// The kernel answers reads of a file that stays open from its pages, and does not ask us. So this
// looks for changes of other nodes, and the kernel drops the pages that a change made stale. While
// we hold a lease on the file, a look costs no request: its recall makes the next look ask storage.
// Looks follow one another, so many open files without a lease make the pause longer, not the load
// higher.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "userland/client/inode.hpp"

namespace coop::client
{

class open_watch
{
public:
	static constexpr std::chrono::seconds pause{1};

	open_watch(storage &s, inode_table &t) : storage_(s), inodes_(t) {}
	~open_watch();
	open_watch(const open_watch &) = delete;
	open_watch &operator=(const open_watch &) = delete;

	// The kernel has pages of the file, which is open, or will get some. It is watched until it
	// has been closed, or the kernel has no more. Call with the inode's lock held.
	void add_locked(inode &node)
	{
		if (!node.watched)
			begin_locked(node);
	}

private:
	struct ending;
	struct watched {
		std::shared_ptr<inode> node;
		timespec changed{}; // the change time that the last look saw
		unsigned looks = 0; // that saw it
	};

	void begin_locked(inode &);
	void run();
	void look_at_all(std::vector<watched> &);
	void look_at(watched &);

	storage &storage_;
	inode_table &inodes_;
	std::mutex mutex_; // guards the next two; taken under an inode's lock
	std::vector<watched> fresh_;
	std::thread thread_; // started with the first file
	std::condition_variable wake_;
	std::atomic<bool> stop_{false};
};

} // namespace coop::client
