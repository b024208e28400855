// SPDX-License-Identifier: MIT
// locks.hpp - the locks of each file, their owners, and the owners that wait.
//
// Locks exclude the clients of this daemon from each other; programs on its own machine do not see
// them. An owner is a session and a number of the client's choice. A lock ends when it is released,
// when the open file through which it was taken is closed, and with the session.
//
// A waiter is queued here and notified when it holds the lock, so no client polls. Locks are
// granted in the order of the requests, except that an owner that already holds a lock does not
// wait for earlier waiters: they may be waiting for that very lock.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "coop/lock_ranges.hpp"
#include "rpc/storage/message.h"

namespace coop::daemon
{

class session;

constexpr std::size_t locks_max = 65536;       // per session
constexpr std::size_t lock_waiters_max = 4096; // per session

struct lock_owner {
	const session *who;
	std::uint64_t id;
	bool operator==(const lock_owner &) const = default;
};

class lock_table
{
public:
	using ranges = lock_ranges<lock_owner>;
	struct asked {
		coop_fid file;
		ranges::range range;
		std::uint64_t cookie; // the client's id of its wait
	};
	// A waiter now holds its lock.
	struct granted {
		std::weak_ptr<session> to;
		std::uint64_t open_id, cookie;
	};
	using grants = std::vector<granted>;

	// coop_st_lock_result, or -EDEADLK, -ENOLCK. out: locks that this grants to waiters.
	[[nodiscard]] int lock(const std::shared_ptr<session> &, const asked &, bool wait,
			       grants &out);
	void unlock(const asked &, grants &out);
	// Cancels a wait. False: there is no such wait any more, so the lock is held.
	[[nodiscard]] bool cancel(const coop_fid &, const session *, std::uint64_t cookie,
				  grants &out);
	// The owner holds this lock, taken through this open file.
	[[nodiscard]] bool holds(const asked &) const;
	using ids = std::set<std::string>; // of sessions
	// Finds a lock that conflicts, of another session than these; false: there is none.
	[[nodiscard]] bool test(const asked &, ranges::range &conflict, const ids &but = {}) const;
	// Other sessions whose locks are in the way of this one, or of those that wait.
	[[nodiscard]] ids in_the_way(const asked &) const;
	[[nodiscard]] ids in_the_way() const;
	[[nodiscard]] bool any_of(const session *) const;
	// Drops locks and waits of this open file, or of this session.
	void closed(const coop_fid &, const session *, std::uint64_t open_id, grants &out);
	void ended(const session *, grants &out);

	std::size_t held() const;
	std::size_t waiting() const;

private:
	using owner_key = std::pair<const session *, std::uint64_t>;
	static owner_key key_of(const lock_owner &o) { return {o.who, o.id}; }
	struct waiter {
		std::weak_ptr<session> who;
		asked what;
	};
	using queue = std::list<waiter>; // oldest first
	struct file {
		ranges locks;
		queue waiting;
	};
	struct fid_order {
		bool operator()(const coop_fid &a, const coop_fid &b) const
		{
			return a.hi != b.hi ? a.hi < b.hi : a.lo < b.lo;
		}
	};
	using files = std::map<coop_fid, file, fid_order>;

	bool free_locked(const file &, const waiter *before, const ranges::range &) const;
	bool circle_locked(const file &, const ranges::range &) const;
	static void block_locked(const file &, const ranges::range &, ids &out);
	void take_locked(file &, const ranges::range &);
	void release_locked(file &, const ranges::range &);
	void count_locked(const lock_owner &, std::size_t before, std::size_t after);
	void push_locked(file &, waiter);
	queue::iterator pop_locked(file &, queue::iterator);
	void wake_locked(file &, grants &out);
	template <class predicate> void drop_locked(file &, predicate, grants &out);
	void tidy_locked(files::iterator);

	mutable std::mutex mutex_; // guards all below
	files files_;
	std::map<owner_key, std::size_t> held_; // number of locks of an owner; no entry: none
	std::multimap<owner_key, const waiter *> waits_;
	struct counts {
		std::size_t held = 0, waiting = 0;
	};
	std::unordered_map<const session *, counts> counts_;
};

} // namespace coop::daemon
