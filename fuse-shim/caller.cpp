// SPDX-License-Identifier: MIT
// caller.cpp - see caller.hpp.
#include "fuse-shim/caller.hpp"

#include <array>
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

// Threads that share a flag see interrupts of each other's requests; that only costs a check.
std::atomic<bool> &flag_of_thread()
{
	static std::array<std::atomic<bool>, 256> flags;
	static std::atomic<unsigned> threads;
	static thread_local const unsigned mine = threads++ % flags.size();
	return flags[mine];
}

} // namespace

caller_process::caller_process(fuse_req_t req) :
	thread_(fuse_req_ctx(req)->pid),
	interrupted_(flag_of_thread())
{
	interrupted_ = false;
	fuse_req_interrupt_func(
		req, [](fuse_req_t, void *flag) { *static_cast<std::atomic<bool> *>(flag) = true; },
		&interrupted_);
}

bool caller_process::gone()
{
	return interrupted_ && thread_ != 0 && is_being_killed(thread_);
}

} // namespace coop::shim
