// SPDX-License-Identifier: MIT
// background.hpp - a thread for work that must not block a worker: calls into the kernel that wait
// for pages which a worker has to fill, and waits for storage.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace coop::shim
{

class background
{
public:
	background() = default;
	~background() { stop(); }

	void start();
	// Runs the queued work first.
	void stop();
	// Runs work in the order of the calls. Any thread. Before start() and after stop() it drops
	// the work: then no request of the kernel waits for it, and the caller may be the
	// connection's thread.
	void run(std::function<void()>);

private:
	void loop();

	std::mutex lock_;
	std::condition_variable wake_;
	std::deque<std::function<void()>> queue_;
	bool running_ = false;
	std::thread thread_;
};

} // namespace coop::shim
