// SPDX-License-Identifier: MIT
// lock_recovery.hpp - locks over a restart of the daemon: which sessions held some, and how long
// the daemon waits for them to reclaim.
//
// When a session takes its first lock, the daemon writes a file named by the session to the state
// directory, and syncs it before it replies. A daemon that finds such files at its start knows
// which sessions may come back. Until all of them have reclaimed their locks, or the grace time is
// over, it grants only reclaimed locks: so no lock goes to another session while its holder
// reconnects. Then it removes the files of the sessions that have reclaimed nothing; a session that
// holds a lock always has its file. If the directory cannot be used, a restart loses all locks, and
// the daemon warns of it at its start.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "userland/daemon/state_directory.hpp"

namespace coop::daemon
{

constexpr std::chrono::seconds lock_grace{45};

class lock_recovery
{
public:
	explicit lock_recovery(const state_directory &,
			       std::chrono::milliseconds grace = lock_grace);

	// New locks have to wait; only reclaims are granted.
	[[nodiscard]] bool in_grace();
	// The session held locks before the restart, and the grace time is not over.
	[[nodiscard]] bool may_reclaim(const std::string &session);
	// The session has reclaimed all its locks.
	void reclaimed(const std::string &session);

	// Call before the reply to the session's first lock.
	void holds(const std::string &session);
	// The session has ended, and its locks with it. Does not wait for the disk.
	void ended(const std::string &session);
	// Call before others get the locks of sessions that have ended: else those could take them
	// back if the machine crashes. Waits for the disk.
	void settle();
	// Its locks are about to go to others, also if the machine crashes. 0 or -errno: they must
	// not. If it keeps them after all, call holds().
	[[nodiscard]] int lapses(const std::string &session);

private:
	using clock = std::chrono::steady_clock;
	void finish_locked();
	void settle_locked();

	const state_directory dir_;
	const clock::time_point end_;
	std::mutex mutex_;
	// Sessions that held locks and have not reclaimed all of them; true: some.
	std::map<std::string, bool> expected_;
	std::set<std::string> known_; // sessions that have a file
	bool unsettled_ = false;      // files were removed, and may come back
};

} // namespace coop::daemon
