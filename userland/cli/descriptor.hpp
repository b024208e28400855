// SPDX-License-Identifier: MIT
// descriptor.hpp - a file descriptor that its owner closes.
//
// Negative: none; errno then still has the reason if it comes from a failed call.
#pragma once

#include <unistd.h>

namespace coop::cli
{

class descriptor
{
public:
	explicit descriptor(int fd) : fd_(fd) {}
	~descriptor()
	{
		if (fd_ >= 0)
			::close(fd_);
	}
	descriptor(const descriptor &) = delete;
	descriptor &operator=(const descriptor &) = delete;
	int get() const { return fd_; }

private:
	int fd_;
};

} // namespace coop::cli
