// SPDX-License-Identifier: MIT
// caller.hpp - the process behind a FUSE request, and whether it is being killed.
//
// The kernel sends an INTERRUPT for any signal, once for each request, and does not say which.
// A handler of a signal must not make a read of a file fail, so only what kills the process
// counts: the kernel then has SIGKILL pending for each of its threads.
#pragma once

#include <atomic>

#include <fuse_lowlevel.h>

#include "userland/client/asker.hpp"

namespace coop::shim
{

class caller_process final : public client::asker
{
public:
	explicit caller_process(fuse_req_t);

private:
	bool gone() override;

	const pid_t thread_; // 0: in a pid namespace that we cannot see
	// Set by another worker. That one may be late, when the reply is out and this object gone,
	// so the flag is the working thread's for good, and may be set for nothing.
	std::atomic<bool> &interrupted_;
};

} // namespace coop::shim
