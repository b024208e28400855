// SPDX-License-Identifier: MIT
// storage_locks.hpp - locks at the daemon, and their recovery after a lost connection.
//
// A lock that is not free is queued at the daemon, which pushes LOCK_GRANTED. That push may be lost
// with a connection, so every wait is requested again on the next one, under the same cookie; if
// the lock has been granted by then, the reply says so. Held locks are reclaimed when the daemon
// has forgotten the session. If a reclaim is refused, another owner may have held the lock in
// between: the open file is not opened again, and its users get -EBADF, because they must not touch
// the file any more.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "userland/client/lock_book.hpp"
#include "userland/client/storage_link.hpp"

namespace coop::client
{

class lock_keeper;

class storage_locks
{
public:
	storage_locks(storage_link &, lock_keeper &);

	// 0: held. -EAGAIN: another owner holds it. -EINPROGRESS: 'done' will be called, once, on
	// the connection's thread; until then 'cookie' names the wait. Other errors are the
	// daemon's.
	int lock(const lock_book::lock &, bool wait, lock_book::granted done,
		 std::uint64_t &cookie);
	// False: too late, 'done' has been or will be called.
	[[nodiscard]] bool cancel(std::uint64_t cookie);
	// Its open_id does not matter.
	int unlock(lock_book::lock);
	// what: in the wanted lock, out a conflicting one, or COOP_ST_LOCK_NONE.
	int test(lock_book::lock &);

	lock_book &book() { return link_.locks(); }

private:
	// What can still release locks, by file and owner: UNLOCKs without an answer, and LOCKs
	// without one, because a lock that is granted after its caller gave up is given back. The
	// daemon runs requests in any order, and the owner's next LOCK in that file must not come
	// before them.
	struct releases {
		std::mutex mutex;
		std::condition_variable ended;
		std::multiset<std::pair<std::string, std::uint64_t>> under_way;
	};
	// It is under way as long as the result lives.
	std::shared_ptr<void> releasing(const lock_book::lock &);
	std::shared_ptr<void> releasing_locked(const lock_book::lock &);
	// For a LOCK: waits until nothing else is under way, and then is.
	int take_turn(const lock_book::lock &, std::shared_ptr<void> &turn);
	coop_st_body body_of(const lock_book::lock &) const;
	void give_back(const lock_book::lock &);
	void release(lock_book::lock, std::set<std::uint64_t> through,
		     std::shared_ptr<void> under_way);
	void settle_late(const lock_book::lock &, std::uint64_t cookie, std::uint32_t result,
			 std::uint64_t by);

	storage_link &link_;
	lock_keeper &keeper_;
	const std::shared_ptr<releases> releases_ = std::make_shared<releases>();
};

} // namespace coop::client
