// SPDX-License-Identifier: MIT
// asker.hpp - the process that a thread works for, and whether it has been killed.
//
// A killed process exits only after its pending request has been answered. So code that may wait
// long, above all for storage, checks from time to time whether the asker has gone, and gives up
// then. Each thread has at most one asker at a time.
#pragma once

#include <chrono>

namespace coop::client
{

class asker
{
public:
	// How often a waiting thread checks.
	static constexpr std::chrono::milliseconds look_again{100};

	// Becomes this thread's asker until it is destroyed.
	asker() : before_(current_) { current_ = this; }
	virtual ~asker() { current_ = before_; }
	asker(const asker &) = delete;
	asker &operator=(const asker &) = delete;

	// Whether this thread's asker has gone; false without one.
	static bool has_gone() { return current_ != nullptr && current_->gone(); }

private:
	virtual bool gone() = 0; // once true, always true

	asker *const before_;
	static inline thread_local asker *current_ = nullptr;
};

} // namespace coop::client
