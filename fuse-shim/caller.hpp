// SPDX-License-Identifier: MIT
// caller.hpp - the process behind a FUSE request, and whether it is being killed.
//
// The kernel sends an INTERRUPT for any signal, once for each request, and does not say for which
// one. A signal handler in the program must not make a read of a file fail, so only a kill counts:
// the kernel then has SIGKILL pending for each thread of the process.
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

	const pid_t thread_; // Set by the worker that reads the INTERRUPT. It may do so after the
			     // reply, when this object is gone, so the flag belongs to the thread
			     // for good, and may be set spuriously.
	std::atomic<bool> &interrupted_;
};

} // namespace coop::shim
