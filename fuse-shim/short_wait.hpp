// SPDX-License-Identifier: MIT
// short_wait.hpp - requests that must not hang while the daemon is silent.
//
// df(1), stat(1) of the mount point, and whoever looks at .coopfs to see what is wrong, get an
// answer then too: after a short wait, what was known last. Nothing else is answered so.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>

#include <sys/statvfs.h>

#include "userland/client/asker.hpp"

namespace coop::shim
{

// While it exists, this thread's calls of storage fail when the wait is over.
class short_wait
{
public:
	static constexpr std::chrono::seconds most{2};

	explicit short_wait(bool limited)
	{
		if (limited)
			limit_.emplace();
	}
	[[nodiscard]] bool is_over() const { return limit_ && limit_->was_over; }

private:
	struct limit final : client::asker {
		using clock = std::chrono::steady_clock;
		bool gone() override { return was_over |= clock::now() >= until; }
		const clock::time_point until = clock::now() + most;
		bool was_over = false;
	};
	std::optional<limit> limit_;
};

// The last figures of statfs(2).
class last_figures
{
public:
	bool known()
	{
		const std::lock_guard lock(mutex_);
		return figures_.has_value();
	}
	void learn(const struct statvfs &now)
	{
		const std::lock_guard lock(mutex_);
		figures_ = now;
	}
	bool last(struct statvfs &out)
	{
		const std::lock_guard lock(mutex_);
		if (figures_)
			out = *figures_;
		return figures_.has_value();
	}

private:
	std::mutex mutex_;
	std::optional<struct statvfs> figures_;
};

} // namespace coop::shim
