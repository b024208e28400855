// SPDX-License-Identifier: MIT
// lock_waits.hpp - FUSE requests that wait for a lock.
//
// A wait blocks no thread. It ends by the grant or by a signal, on different threads, and libfuse
// may report a signal after the request has been answered. So both name the wait by a number, and
// whichever takes it out of the table answers the request.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include <fuse_lowlevel.h>

#include "userland/client/file.hpp"

namespace coop::shim
{

class lock_waits
{
public:
	struct wait {
		fuse_req_t req;
		client::open_file *file; // the kernel keeps it open until the request is answered
		std::optional<coop_st_lock> undo; // see client::files::undo_of()
		std::uint64_t cookie = 0;
		bool interrupted = false;
	};

	std::uint64_t begin(fuse_req_t req, client::open_file &file,
			    const std::optional<coop_st_lock> &undo)
	{
		std::lock_guard guard(lock_);
		waits_.emplace(++last_, wait{req, &file, undo});
		return last_;
	}
	std::optional<wait> take(std::uint64_t id)
	{
		std::lock_guard guard(lock_);
		auto node = waits_.extract(id);
		return node ? std::optional(node.mapped()) : std::nullopt;
	}
	// The daemon has queued it. True: a signal came first, so cancel it.
	bool queued(std::uint64_t id, std::uint64_t cookie)
	{
		std::lock_guard guard(lock_);
		const auto it = waits_.find(id);
		if (it == waits_.end())
			return false;
		it->second.cookie = cookie;
		return it->second.interrupted;
	}
	// Returns the cookie to cancel; 0: not known yet.
	std::uint64_t interrupt(std::uint64_t id)
	{
		std::lock_guard guard(lock_);
		const auto it = waits_.find(id);
		if (it == waits_.end())
			return 0;
		it->second.interrupted = true;
		return it->second.cookie;
	}
	bool interrupted(std::uint64_t id)
	{
		std::lock_guard guard(lock_);
		const auto it = waits_.find(id);
		return it != waits_.end() && it->second.interrupted;
	}

private:
	std::mutex lock_;
	std::map<std::uint64_t, wait> waits_;
	std::uint64_t last_ = 0;
};

} // namespace coop::shim
