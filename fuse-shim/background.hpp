// SPDX-License-Identifier: MIT
// background.hpp - a thread for what must not hold a worker: calls into the
// kernel that wait for pages which a worker has to fill, and waits of its own.
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
	// Runs what is queued first.
	void stop();
	// In the order of the calls; any thread. Before start() and after stop() nothing is run: no
	// request of the kernel's waits for it then, and the caller may be the connection's thread.
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
