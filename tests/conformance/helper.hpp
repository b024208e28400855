// SPDX-License-Identifier: MIT
// helper.hpp - another process with a transfer machine in it, to be killed.
//
// The program is conformance-peer. It sends back every message to its sender, shows memory to
// read and to write, and dies with its parent.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "target.hpp"

namespace conformance
{

class helper
{
public:
	/// Starts it and waits until its machine has started. @throw std::system_error.
	helper(const target &, const std::string &address);
	~helper() { kill(); }
	helper(const helper &) = delete;
	helper &operator=(const helper &) = delete;

	/// It does nothing any more, and has not gone either.
	void freeze();
	/// It goes on.
	void thaw();
	/// SIGKILL, and gone when it returns.
	void kill();
	/// Until then.
	pid_t pid() const { return pid_; }

	static constexpr std::size_t bulk = 1 << 20;
	/// Descriptors of as many bytes, good for once.
	std::vector<std::byte> readable, writable;

private:
	pid_t pid_ = -1;
};

} // namespace conformance
