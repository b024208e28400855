// SPDX-License-Identifier: MIT
// signals.hpp - SIGTERM, SIGINT and SIGHUP end a session in order.
//
// The loop of libfuse waits for its workers, and a worker may be waiting for a
// daemon that does not answer. So ending has a limit: after it the mount is
// detached and the process ends, which fails what still waits.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include <pthread.h>

namespace coop::shim
{

// To be called before the first thread is made: the signals are left to the one that waits.
void block_ending_signals();

class signal_watch
{
public:
	// Made by the thread that runs the loop. end: asks the loop to stop. give_up: called when
	// it has not within the limit; does not return.
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
