// SPDX-License-Identifier: MIT
// asker.hpp - for whom a thread waits, and whether that one has gone.
//
// A process that is killed while it waits for an answer of ours ends no sooner than it has one.
// So what may wait for long, for storage above all, looks here now and then and gives up when
// nobody is left who wants the result. Each thread has at most one asker at a time.
#pragma once

#include <chrono>

namespace coop::client
{

class asker
{
public:
	// How often those who wait look.
	static constexpr std::chrono::milliseconds look_again{100};

	// Makes it this thread's, until it is destroyed.
	asker() : before_(current_) { current_ = this; }
	virtual ~asker() { current_ = before_; }
	asker(const asker &) = delete;
	asker &operator=(const asker &) = delete;

	// Whether this thread's has; false without one.
	static bool has_gone() { return current_ != nullptr && current_->gone(); }

private:
	virtual bool gone() = 0; // once true, always true

	asker *const before_;
	static inline thread_local asker *current_ = nullptr;
};

} // namespace coop::client
