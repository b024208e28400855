// SPDX-License-Identifier: MIT
// lock_book.hpp - the locks that this mount holds at the daemon, and its pending waits.
//
// The daemon decides. With the book a client reclaims its locks after a restart of the daemon,
// waits without polling, and never releases a lock that it does not hold. A wait has one end: the
// thread that takes it out of the book (grant, cancellation, or end of the session) completes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coop/lock_ranges.hpp"
#include "rpc/storage/message.h"

namespace coop::client
{

class lock_book
{
public:
	struct lock {
		std::string fh;
		std::uint64_t open_id;
		coop_st_lock what;
	};
	using granted = std::function<void(int err)>; // 0, or -errno: it will not be granted
	struct wait {
		lock asked;
		granted done;
		bool queued = false; // the daemon has queued it
		bool given = false;  // and granted it
	};

	void took(const lock &);
	void freed(const lock &);
	// The open file is closed: the daemon drops the locks taken through it.
	void closed(std::uint64_t open_id);
	// Whether the owner holds a lock in this range of the file.
	[[nodiscard]] bool holds(const lock &, bool exclusive_only = false) const;
	[[nodiscard]] bool holds(std::uint64_t open_id) const;
	// The locks taken through this open file are lost for good.
	void lost(std::uint64_t open_id);
	// See storage::lock_era().
	[[nodiscard]] std::uint64_t era(const std::string &fh) const;
	[[nodiscard]] std::vector<lock> held() const;

	// A wait that the daemon has both queued and granted is over: it leaves the book, which has
	// its lock from then on, because a cancellation that comes too late may unlock at once. The
	// grant may overtake the reply.
	std::uint64_t begin(wait);
	// The daemon has queued it. True: the wait is over.
	[[nodiscard]] bool queued(std::uint64_t cookie);
	// A grant has come. Returns the wait if it is over.
	[[nodiscard]] std::optional<wait> grant(std::uint64_t cookie);
	[[nodiscard]] std::optional<wait> end(std::uint64_t cookie);
	// Waits to be requested again on a new connection.
	[[nodiscard]] std::vector<std::pair<std::uint64_t, lock>> waiting() const;

private:
	using ranges = lock_ranges<std::uint64_t>;
	static ranges::range range_of(const lock &);
	std::optional<wait> settle(std::uint64_t cookie, bool wait::*news);

	mutable std::mutex mutex_;
	std::map<std::string, ranges> files_; // by handle
	std::uint64_t era_ = 1; // incremented for each open file whose locks were lost
	std::map<std::uint64_t, wait> waits_; // by cookie
	std::uint64_t last_cookie_ = 0;
};

} // namespace coop::client
