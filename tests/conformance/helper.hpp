// SPDX-License-Identifier: MIT
// helper.hpp - another process with a transfer machine in it, to be killed.
//
// The program is conformance-peer. It sends back every message to its sender, and dies with
// its parent.
#pragma once

#include <string>
#include <sys/types.h>

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

	/// SIGKILL, and gone when it returns.
	void kill();
	/// Until then.
	pid_t pid() const { return pid_; }

private:
	pid_t pid_ = -1;
};

} // namespace conformance
