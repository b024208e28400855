// SPDX-License-Identifier: MIT
// channel.hpp - a counter that one thread raises and another waits for.
//
// An eventfd, so that a program can wait for it together with its other descriptors.
#pragma once

#include "base.hpp"

namespace coop::net
{

/// A counting semaphore with a file descriptor. Any thread may call anything.
/// @par Source
/// eventfd(2); what transfer_machine::notify() signals in Motr is a channel, too.
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
	/// Takes one from the count if it is not 0. @return whether it did.
	[[nodiscard]] bool try_wait() noexcept;
	/// Takes one from the count, waiting until there is one. @return 0 or -ETIMEDOUT.
	[[nodiscard]] int wait(time_point deadline = never) noexcept;
	/// Readable while the count is not 0. Read nothing from it: call try_wait().
	int fd() const noexcept { return fd_; }

private:
	int fd_;
};

} // namespace coop::net
