// SPDX-License-Identifier: MIT
// channel.cpp - an eventfd in semaphore mode.
//
// The descriptor is non-blocking; wait() uses poll, so that a deadline works and two waiters cannot
// both block in a read.
#include "coop/net/channel.hpp"

#include <cerrno>
#include <poll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

#include "wait.hpp"

namespace coop::net
{

channel::channel() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE))
{
	if (fd_ < 0)
		throw std::system_error(errno, std::generic_category(), "eventfd of a channel");
}

channel::~channel()
{
	::close(fd_);
}

void channel::signal() noexcept
{
	const std::uint64_t one = 1;
	// Fails only after 2^64 - 2 signals without a wait.
	[[maybe_unused]] ssize_t n = ::write(fd_, &one, sizeof(one));
}

bool channel::try_wait() noexcept
{
	std::uint64_t one;
	return ::read(fd_, &one, sizeof(one)) == sizeof(one);
}

int channel::wait(time_point deadline) noexcept
{
	for (;;) {
		if (try_wait())
			return 0;
		if (deadline != never && clock::now() >= deadline)
			return -ETIMEDOUT;
		pollfd p{fd_, POLLIN, 0};
		core::poll_until(&p, 1, deadline);
	}
}

} // namespace coop::net
