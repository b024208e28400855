// SPDX-License-Identifier: MIT
// channel.hpp - a counter that one thread raises and another waits for.
//
// It is an eventfd, so a program can wait for it together with other descriptors.
#pragma once

#include "base.hpp"

namespace coop::net
{

/// A counting semaphore with a file descriptor. Thread-safe.
/// @par Source
/// eventfd(2); in Motr, too, a transfer machine notifies through a channel.
class COOP_NET_API channel
{
public:
	/// @throw std::system_error EMFILE, ENFILE, ENOMEM.
	channel();
	~channel();
	channel(const channel &) = delete;
	channel &operator=(const channel &) = delete;

	/// Raises the count by one.
	void signal() noexcept;
	/// Decrements the count if it is not 0. @return whether it did.
	[[nodiscard]] bool try_wait() noexcept;
	/// Waits until the count is not 0 and decrements it. @return 0 or -ETIMEDOUT.
	[[nodiscard]] int wait(time_point deadline = never) noexcept;
	/// Readable while the count is not 0. Do not read from it: call try_wait().
	int fd() const noexcept { return fd_; }

private:
	int fd_;
};

} // namespace coop::net
