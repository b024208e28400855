// SPDX-License-Identifier: MIT
// lock_recovery.hpp - which clients held locks when the daemon ended, and how
// long it waits for them to say so.
//
// A session that takes its first lock leaves a file with its name in the state
// directory, on stable storage before it is told that it has the lock. A daemon
// that finds such files at its start knows who may come back. Until all of them
// have, or the grace time is over, it grants no lock but those that they ask for
// again: so no lock can go to another while its holder is on the way. Where the
// directory cannot be used, a restart loses all locks and says so at the start.
#pragma once

#include <chrono>
#include <mutex>
#include <set>
#include <string>

namespace coop::daemon
{

constexpr std::chrono::seconds lock_grace{45};

class lock_recovery
{
public:
	explicit lock_recovery(const std::string &state_dir,
			       std::chrono::milliseconds grace = lock_grace);

	// Locks that are not asked for again have to wait.
	[[nodiscard]] bool in_grace();
	// This session held locks before, and is in time.
	[[nodiscard]] bool may_reclaim(const std::string &session);
	// It has asked for all that it held.
	void reclaimed(const std::string &session);

	// Before it is told of its first lock.
	void holds(const std::string &session);
	// It has ended, and its locks with it.
	void ended(const std::string &session);

private:
	using clock = std::chrono::steady_clock;
	std::string path_of(const std::string &session) const;
	void finish_locked();

	std::string dir_; // empty: it cannot be used
	const clock::time_point end_;
	std::mutex mutex_;
	std::set<std::string> expected_; // held locks, and have not come back
	std::set<std::string> known_;    // have a file
};

} // namespace coop::daemon
