// SPDX-License-Identifier: MIT
// unique_fd.hpp - a file descriptor that its owner closes.
#pragma once

#include <unistd.h>
#include <utility>

namespace coop
{

class unique_fd
{
public:
	unique_fd() = default;
	explicit unique_fd(int fd) : fd_(fd) {}
	unique_fd(unique_fd &&o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
	/// Closes what it has had.
	unique_fd &operator=(unique_fd &&o) noexcept
	{
		const unique_fd old(std::exchange(fd_, std::exchange(o.fd_, -1)));
		return *this;
	}
	~unique_fd()
	{
		if (fd_ >= 0)
			::close(fd_);
	}
	int get() const { return fd_; }
	[[nodiscard]] int release() { return std::exchange(fd_, -1); }
	explicit operator bool() const { return fd_ >= 0; }

private:
	int fd_ = -1;
};

} // namespace coop
