// SPDX-License-Identifier: MIT
// waiting.hpp - how the tests of ud wait: for a condition, and for the end of an operation.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "coop/net.hpp"

namespace coop::net
{

/// Whether the condition came true within a minute, which is far more than it needs.
inline bool until(const std::function<bool()> &f)
{
	using namespace std::chrono_literals;
	for (const auto end = clock::now() + 60s; clock::now() < end;) {
		if (f())
			return true;
		std::this_thread::sleep_for(1ms);
	}
	return false;
}

/// Counts the operations that have ended, and keeps the status of the last one.
struct noting final : buffer_handler {
	void on_buffer(const buffer_event &e) override
	{
		if (e.queued)
			return;
		status = e.status;
		ended++;
	}
	std::atomic<unsigned> ended{0};
	std::atomic<int> status{1};
};

} // namespace coop::net
