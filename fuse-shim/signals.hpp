// SPDX-License-Identifier: MIT
// signals.hpp - SIGTERM, SIGINT and SIGHUP end a session cleanly.
//
// libfuse's loop waits for its workers, and a worker may wait for a daemon that does not answer. So
// the end has a time limit: after it the mount is detached and the process exits, which fails the
// waiting requests.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include <pthread.h>

namespace coop::shim
{

// Call before the first thread is created: all threads then block these signals but the one that
// waits for them.
void block_ending_signals();

class signal_watch
{
public:
	// Create it on the thread that runs the loop. end: asks the loop to stop. give_up: called
	// if the loop has not stopped within the limit; does not return.
	signal_watch(std::function<void()> end, std::function<void()> give_up);
	~signal_watch();
	signal_watch(const signal_watch &) = delete;
	signal_watch &operator=(const signal_watch &) = delete;

private:
	void watch();

	const std::function<void()> end_, give_up_;
	const pthread_t loop_;
	std::atomic<bool> ended_{false};
	std::thread thread_;
};

} // namespace coop::shim
