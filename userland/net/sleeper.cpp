// SPDX-License-Identifier: MIT
// sleeper.cpp - see sleeper.hpp.
#include "sleeper.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "wait.hpp"

namespace coop::net::core
{

namespace
{

// How long a synchronously polling program may pause before the background thread helps. The longer
// it has polled, the longer the lease: each check takes a processor from it for microseconds.
constexpr std::chrono::milliseconds first_lease{3}, longest_lease{12};
// Polls within a lease by a program that does nothing else.
constexpr std::uint64_t many_polls = 1000;

} // namespace

sleeper::sleeper() : kick_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))
{
	if (kick_fd_ < 0)
		throw std::system_error(errno, std::generic_category(),
					"eventfd of a transfer machine");
}

sleeper::~sleeper()
{
	::close(kick_fd_);
}

void sleeper::lease(time_point now)
{
	how_ = how::leased;
	fd_ = -1;
	until_ = now + first_lease;
}

void sleeper::arm(int fd, time_point until)
{
	how_ = how::armed;
	progressed_ = 0;
	fd_ = fd;
	until_ = until;
}

bool sleeper::polled()
{
	const std::uint64_t polls = polls_.load(std::memory_order_relaxed);
	return std::exchange(polls_seen_, polls) != polls;
}

// Do not disturb a program that polled in the meantime: it takes the lock all the time.
bool sleeper::sleep()
{
	pollfd p[2] = {{kick_fd_, POLLIN, 0}, {fd_, POLLIN, 0}};
	time_point until = until_;
	for (auto next = 2 * first_lease;; next = std::min(2 * next, longest_lease)) {
		poll_until(p, fd_ >= 0 ? 2 : 1, until);
		const std::uint64_t polls = polls_.load(std::memory_order_relaxed);
		if (how_ != how::leased || p[0].revents || polls - polls_seen_ < many_polls)
			return p[0].revents != 0; // only this thread writes how_
		polls_seen_ = polls;
		until = clock::now() + next;
	}
}

void sleeper::awake(bool kicked)
{
	how_ = how::awake;
	if (!std::exchange(kicked_, false) && !kicked)
		return;
	// A thread that promised a kick may not have made it yet. Then the next sleep ends early,
	// once.
	std::uint64_t n;
	[[maybe_unused]] ssize_t r = ::read(kick_fd_, &n, sizeof(n));
}

void sleeper::kick()
{
	const std::uint64_t one = 1;
	[[maybe_unused]] ssize_t n = ::write(kick_fd_, &one, sizeof(one));
}

} // namespace coop::net::core
