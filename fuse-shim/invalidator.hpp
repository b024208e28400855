// SPDX-License-Identifier: MIT
// invalidator.hpp - tells the kernel to drop pages of files that changed elsewhere.
//
// Dropping a page waits for its lock, which may be held for a read that a worker has to answer. So
// a separate thread does it, and no worker blocks.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include <fuse_lowlevel.h>

namespace coop::shim
{

class invalidator
{
public:
	invalidator() = default;
	~invalidator() { stop(); }

	// drop: makes the kernel drop the pages of one file; the kernel may have forgotten it.
	void start(std::function<void(fuse_ino_t)> drop);
	void stop();
	// Any thread. Before start() and after stop() it does nothing.
	void pages_stale(fuse_ino_t ino);
	// Calls the function when all earlier requests are done; at once if the thread does not
	// run.
	void after(std::function<void()>);

private:
	void run();

	std::function<void(fuse_ino_t)> drop_;
	std::mutex lock_; // guards the rest
	std::condition_variable wake_;
	std::unordered_set<fuse_ino_t> waiting_;
	std::vector<std::function<void()>> after_;
	bool running_ = false, busy_ = false;
	std::thread thread_;
};

} // namespace coop::shim
