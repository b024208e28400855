// SPDX-License-Identifier: MIT
// lock_recovery.cpp - the state directory's files, named by session id in hexadecimal.
#include "userland/daemon/lock_recovery.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "coop/unique_fd.hpp"
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

lock_recovery::lock_recovery(const std::string &state_dir, std::chrono::milliseconds grace) :
	dir_(state_dir + "/locks"),
	end_(clock::now() + grace)
{
	std::error_code ec;
	std::filesystem::create_directories(dir_, ec);
	std::filesystem::directory_iterator at(dir_, ec), last;
	if (ec) {
		spdlog::warn("{}: {}; locks will not survive a restart (give --state DIR)", dir_,
			     ec.message());
		dir_.clear();
		return;
	}
	for (; at != last; at.increment(ec)) {
		if (ec)
			break;
		const std::string session = unhex(at->path().filename().string());
		if (!session.empty())
			expected_.emplace(session, false);
	}
	for (const auto &[session, some] : expected_)
		known_.insert(session);
	if (!expected_.empty())
		spdlog::info(
			"{} clients held locks: new locks wait until they reclaim, at most {} s",
			expected_.size(),
			std::chrono::duration_cast<std::chrono::seconds>(grace).count());
}

std::string lock_recovery::path_of(const std::string &session) const
{
	return dir_ + "/" + hex(session);
}

// Sessions that have not come back lose their locks. Others keep those that they have reclaimed.
void lock_recovery::finish_locked()
{
	for (const auto &[session, some] : expected_) {
		if (some)
			continue;
		spdlog::warn("a client that held locks did not reconnect: its locks are released");
		known_.erase(session);
		::unlink(path_of(session).c_str());
	}
	expected_.clear();
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
	if (dir_.empty() || known_.contains(session))
		return;
	// Only the name matters; it must survive a crash of the machine.
	const unique_fd file(
		::open(path_of(session).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	const unique_fd dir(::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (!file || !dir || ::fsync(dir.get()))
		spdlog::warn("{}: {}; a client's locks will not survive a restart", dir_,
			     std::strerror(errno));
	known_.insert(session);
}

void lock_recovery::ended(const std::string &session)
{
	std::lock_guard lock(mutex_);
	expected_.erase(session);
	if (known_.erase(session) && !dir_.empty())
		::unlink(path_of(session).c_str());
}

} // namespace coop::daemon
