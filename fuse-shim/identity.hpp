// SPDX-License-Identifier: MIT
// identity.hpp - the caller of a request, with supplementary groups.
//
// FUSE passes uid, gid and pid; the groups have to be read from /proc, which costs more than most
// requests. They are cached for a second by pid. A longer time would use outdated groups after a
// process changed them, or another process' groups after its pid was reused.
#pragma once

#include <chrono>
#include <mutex>
#include <unordered_map>

#include <fuse_lowlevel.h>

#include "userland/client/storage.hpp"

namespace coop::shim
{

class identity_cache
{
public:
	client::caller of(fuse_req_t req);

private:
	struct remembered {
		client::caller who;
		std::chrono::steady_clock::time_point until;
	};
	static constexpr std::size_t limit = 1024; // processes; when full, the cache is cleared
	std::mutex lock_;
	std::unordered_map<pid_t, remembered> by_pid_;
};

} // namespace coop::shim
