// SPDX-License-Identifier: MIT
// helper.hpp - another process with a transfer machine, for tests to kill.
//
// The program is conformance-peer. It echoes every message, offers memory to read and to write,
// and dies with its parent.
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
	/// Starts the process and waits until its machine has started. @throw std::system_error.
	helper(const target &, const std::string &address);
	~helper() { kill(); }
	helper(const helper &) = delete;
	helper &operator=(const helper &) = delete;

	/// Stops the process with SIGSTOP.
	void freeze();
	/// Lets it continue.
	void thaw();
	/// SIGKILL; the process is gone on return.
	void kill();
	/// Valid until then.
	pid_t pid() const { return pid_; }

	static constexpr std::size_t bulk = 1 << 20;
	/// Descriptors of as many bytes, valid once.
	std::vector<std::byte> readable, writable;

private:
	pid_t pid_ = -1;
};

} // namespace conformance
