// SPDX-License-Identifier: MIT
// caller.cpp - see caller.hpp.
#include "fuse-shim/caller.hpp"

#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>

#include <fmt/format.h>

namespace coop::shim
{

namespace
{

bool is_being_killed(pid_t thread)
{
	std::ifstream status(fmt::format("/proc/{}/status", thread));
	for (std::string key, value; status >> key && std::getline(status, value);) {
		if (key != "SigPnd:" && key != "ShdPnd:")
			continue;
		if (std::stoull(value, nullptr, 16) >> (SIGKILL - 1) & 1)
			return true;
	}
	return false;
}

} // namespace

caller_process::caller_process(fuse_req_t req) : thread_(fuse_req_ctx(req)->pid)
{
	// libfuse forgets it with the reply, before which this object does not end.
	fuse_req_interrupt_func(
		req,
		[](fuse_req_t, void *self) {
			static_cast<caller_process *>(self)->interrupted_ = true;
		},
		this);
}

bool caller_process::gone()
{
	return interrupted_ && thread_ != 0 && is_being_killed(thread_);
}

} // namespace coop::shim
