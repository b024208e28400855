// SPDX-License-Identifier: MIT
// lock_recovery.cpp - the state directory's files, named by session id in hexadecimal.
#include "userland/daemon/lock_recovery.hpp"

#include <cerrno>
#include <cstring>
#include <spdlog/spdlog.h>
#include <utility>

#include "rpc/storage/message.h"

namespace coop::daemon
{

namespace
{

std::string hex(const std::string &bytes)
{
	constexpr char digits[] = "0123456789abcdef";
	std::string out;
	for (const char c : bytes) {
		const auto b = static_cast<unsigned char>(c);
		out += digits[b >> 4];
		out += digits[b & 15];
	}
	return out;
}

std::string unhex(const std::string &text)
{
	std::string out;
	if (text.size() != 2 * COOP_ST_SESSION ||
	    text.find_first_not_of("0123456789abcdef") != text.npos)
		return out; // not one of our files
	for (std::size_t i = 0; i < text.size(); i += 2)
		out += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
	return out;
}

} // namespace

lock_recovery::lock_recovery(const state_directory &state, std::chrono::milliseconds grace) :
	dir_(state.below("locks")),
	end_(clock::now() + grace)
{
	if (dir_.error()) {
		spdlog::warn("{}: {}; locks will not survive a restart (give --state DIR)",
			     dir_.path(), std::strerror(-dir_.error()));
		return;
	}
	for (const std::string &name : dir_.names())
		if (const std::string session = unhex(name); !session.empty())
			expected_.emplace(session, false);
	for (const auto &[session, some] : expected_)
		known_.insert(session);
	if (!expected_.empty())
		spdlog::info(
			"{} clients held locks: new locks wait until they reclaim, at most {} s",
			expected_.size(),
			std::chrono::duration_cast<std::chrono::seconds>(grace).count());
}

// Sessions that have not come back lose their locks. Others keep those that they have reclaimed.
void lock_recovery::finish_locked()
{
	for (const auto &[session, some] : expected_) {
		if (some)
			continue;
		spdlog::warn("a client that held locks did not reconnect: its locks are released");
		known_.erase(session);
		dir_.remove(hex(session));
		unsettled_ = true;
	}
	expected_.clear();
	settle_locked();
}

void lock_recovery::settle_locked()
{
	if (!std::exchange(unsettled_, false))
		return;
	if (const int err = dir_.sync())
		spdlog::error("{}: {}; if this machine crashes, a client that is gone may take "
			      "locks back that others have had since",
			      dir_.path(), std::strerror(-err));
}

void lock_recovery::settle()
{
	std::lock_guard lock(mutex_);
	settle_locked();
}

bool lock_recovery::in_grace()
{
	std::lock_guard lock(mutex_);
	if (!expected_.empty() && clock::now() >= end_)
		finish_locked();
	return !expected_.empty();
}

bool lock_recovery::may_reclaim(const std::string &session)
{
	if (!in_grace())
		return false;
	std::lock_guard lock(mutex_);
	return expected_.contains(session);
}

void lock_recovery::reclaimed(const std::string &session)
{
	std::lock_guard lock(mutex_);
	expected_.erase(session);
}

void lock_recovery::holds(const std::string &session)
{
	std::lock_guard lock(mutex_);
	if (const auto back = expected_.find(session); back != expected_.end())
		back->second = true;
	if (dir_.error() || known_.contains(session))
		return;
	// Only the name matters; it must survive a crash of the machine.
	if (const int err = dir_.replace(hex(session), {}, synced::yes))
		spdlog::warn("{}: {}; a client's locks will not survive a restart", dir_.path(),
			     std::strerror(-err));
	known_.insert(session);
}

void lock_recovery::ended(const std::string &session)
{
	std::lock_guard lock(mutex_);
	expected_.erase(session);
	if (known_.erase(session)) {
		dir_.remove(hex(session));
		unsettled_ = true;
	}
}

int lock_recovery::lapses(const std::string &session)
{
	std::lock_guard lock(mutex_);
	if (!known_.contains(session))
		return 0;
	const int err = dir_.remove(hex(session), synced::yes);
	if (err && err != -ENOENT) {
		// It keeps its locks, and so its file. The next removal is then a new one: an fsync
		// that succeeds after one that failed proves nothing about what was removed before.
		(void)dir_.replace(hex(session), {}, synced::no);
		spdlog::error("{}: {}; the locks of a client that is gone cannot go to others",
			      dir_.path(), std::strerror(-err));
		return err;
	}
	known_.erase(session);
	expected_.erase(session);
	return 0;
}

} // namespace coop::daemon
