// SPDX-License-Identifier: MIT
// lock_book.hpp - the locks that this mount holds at the daemon, and its pending waits.
//
// The daemon decides. With the book a client reclaims its locks after a restart of the daemon,
// waits without polling, and never releases a lock that it does not hold. A wait has one end: the
// thread that takes it out of the book (grant, cancellation, or end of the session) completes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
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
	// What to do when the daemon has answered a wait that was cancelled. result: enum
	// coop_st_lock_result.
	using unwanted = std::function<void(std::uint64_t cookie, std::uint32_t result)>;
	struct wait {
		lock asked;
		granted done;
		unwanted settle;
		bool queued = false;    // the daemon has queued it
		bool given = false;     // and granted it
		bool asking = false;    // we have asked about it again
		bool cancelled = false; // before the answer to that, which it stays for
		std::uint64_t by = 0;   // who has queued it: see storage_link::restores()
		// Of a cancelled one: lives until it has been settled.
		std::shared_ptr<void> ends{};
	};

	void took(const lock &);
	void freed(const lock &);
	// The open file is closed: the daemon drops the locks taken through it.
	void closed(std::uint64_t open_id);
	// Whether the owner holds a lock in this range of the file.
	[[nodiscard]] bool holds(const lock &, bool exclusive_only = false) const;
	[[nodiscard]] bool holds(std::uint64_t open_id) const;
	// The open files through which the owner took what it holds in this range.
	[[nodiscard]] std::set<std::uint64_t> taken_through(const lock &) const;
	// The locks taken through this open file are lost for good, and it is of no use.
	void lost(std::uint64_t open_id);
	[[nodiscard]] bool is_lost(std::uint64_t open_id) const;
	// Whether there are any locks, or open files that lost some. Costs next to nothing.
	[[nodiscard]] bool any() const { return any_.load(std::memory_order_relaxed); }
	// Neither has nor awaits a lock.
	[[nodiscard]] bool idle() const;
	// See storage::lock_era().
	[[nodiscard]] std::uint64_t era(const std::string &fh) const;
	[[nodiscard]] std::vector<lock> held() const;

	// A wait that the daemon has both queued and granted is over: it leaves the book, which has
	// its lock from then on, because a cancellation that comes too late may unlock at once. The
	// grant may overtake the reply. A wait that we ask about again goes on until the answer:
	// the daemon may run that request after the owner's UNLOCK, and no owner would have the
	// lock.
	std::uint64_t begin(wait);
	// This daemon has queued it. True: the wait is over.
	[[nodiscard]] bool queued(std::uint64_t cookie, std::uint64_t by);
	// The daemon has forgotten us, and with us the grants whose waits are not over.
	void forgotten();
	// A grant has come. Returns the wait if it is over.
	[[nodiscard]] std::optional<wait> grant(std::uint64_t cookie);
	[[nodiscard]] std::optional<wait> end(std::uint64_t cookie);
	// The daemon runs requests concurrently, so we cancel a wait only when it has answered all
	// others about it. True: ask it again, then call answered().
	[[nodiscard]] bool ask_again(std::uint64_t cookie);
	// Returns the wait if it is over, or was cancelled meanwhile: then call its settle(). by:
	// the daemon that has it from now on, if it answered without an error.
	[[nodiscard]] std::optional<wait> answered(std::uint64_t cookie,
						   std::optional<std::uint64_t> by = {});
	// The lock that is waited for; empty: the wait is over.
	[[nodiscard]] std::optional<lock> asked(std::uint64_t cookie);
	// False: the wait is over. ended: cancel this wait at the daemon; empty: answered() will
	// return it, and it keeps 'ends' until then.
	[[nodiscard]] bool cancel(std::uint64_t cookie, std::optional<wait> &ended,
				  std::shared_ptr<void> ends = {});
	// Waits to be requested again on a new connection.
	[[nodiscard]] std::vector<std::pair<std::uint64_t, lock>> waiting() const;

private:
	using ranges = lock_ranges<std::uint64_t>;
	static ranges::range range_of(const lock &);
	wait *find_locked(std::uint64_t cookie);
	std::optional<wait> over_locked(std::uint64_t cookie);
	void count_locked() { any_ = !files_.empty() || !lost_.empty(); }

	mutable std::mutex mutex_;
	std::map<std::string, ranges> files_; // by handle
	std::uint64_t era_ = 1;        // incremented for each open file whose locks were lost
	std::set<std::uint64_t> lost_; // open files, until they are closed
	std::atomic<bool> any_{false};
	std::map<std::uint64_t, wait> waits_; // by cookie
	std::uint64_t last_cookie_ = 0;
};

} // namespace coop::client
