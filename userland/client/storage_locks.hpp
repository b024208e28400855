// SPDX-License-Identifier: MIT
// storage_locks.hpp - asking the daemon for locks, and what becomes of them when
// the connection is lost.
//
// A lock that cannot be had at once is queued at the daemon, which pushes
// LOCK_GRANTED. That push may be lost with a connection: so every wait is asked
// for again on the next one, under the same cookie; who holds the lock by then is
// told so. What was held is asked for again when the daemon has forgotten the
// session. If it is refused, another may have held the lock since: the open file
// is not opened again, and its users get -EBADF instead of bytes that are no
// longer theirs to touch.
#pragma once

#include <set>

#include "userland/client/lock_book.hpp"
#include "userland/client/storage_link.hpp"

namespace coop::client
{

class storage_locks
{
public:
	explicit storage_locks(storage_link &);

	// 0: held. -EAGAIN: somebody else's. -EINPROGRESS: 'done' will be called, once, on the
	// connection's thread; until then 'cookie' names the wait. Other errors are the daemon's.
	int lock(const lock_book::lock &, bool wait, lock_book::granted done,
		 std::uint64_t &cookie);
	// False: too late, 'done' is called or has been.
	[[nodiscard]] bool cancel(std::uint64_t cookie);
	int unlock(const lock_book::lock &);
	// what: in what is wanted, out who is in the way, or COOP_ST_LOCK_NONE.
	int test(lock_book::lock &);

	lock_book &book() { return link_.locks(); }

private:
	coop_st_body body_of(const lock_book::lock &) const;
	void give_back(const lock_book::lock &);
	void settle_late(const lock_book::lock &, std::uint64_t cookie,
			 const storage_link::outcome &);

	storage_link &link_;
};

} // namespace coop::client
