// SPDX-License-Identifier: MIT
// silence.cpp - locks of clients that say nothing.
//
// A client that holds a lock says something every few seconds, and relies on the lock only for
// COOP_ST_LEASE_TRUST_MS after it sent the latest request that was answered. So COOP_ST_SILENCE_MS
// after the latest input of a session that has no connection, its client relies on no lock, and
// others may have them: the first request that they are in the way of takes all of them. Nothing
// proves it sooner. The end of a connection does not: the client may not know of it yet.
//
// The session stays, with what it has open, because files without a name live as long. But it is
// as if it were new: what is open is of no use, and refuses writes, until the client opens it again
// under the same id. A client that comes back is told so, as after a restart of the daemon, asks
// for its locks, and finds that they are lost.
//
// A session counts only without a connection, so no request of it runs meanwhile. A client that
// is stopped keeps its connection, whose end we make as soon as it has been silent for so long.
// Silence is ours if we did not listen: while the client waits for a file system, or while this
// process was stopped.
#include <spdlog/spdlog.h>

#include "userland/daemon/connection.hpp"

namespace coop::daemon
{

namespace
{

// The reaper runs each second. If it did not for so long, this process did not run.
constexpr std::chrono::seconds stopped_at_least{3};

} // namespace

void server::hear_the_clock()
{
	const auto now = boot_clock::now();
	if (now - ran_.load() >= stopped_at_least)
		woke_ = now;
	ran_ = now;
}

bool server::is_silent_locked(const session &s) const
{
	const auto now = boot_clock::now();
	return s.lapses && !s.attached && now - ran_.load() < stopped_at_least &&
	       now - std::max(s.heard(), woke_.load()) >= settings_.silence;
}

lock_table::ids server::silent_of(const lock_table::ids &asked) const
{
	lock_table::ids out;
	std::lock_guard lock(mutex_);
	for (const std::string &id : asked)
		if (const auto it = sessions_.find(id);
		    it != sessions_.end() && is_silent_locked(*it->second))
			out.insert(id);
	return out;
}

bool server::lapse(const lock_table::ids &asked)
{
	bool any = false;
	for (const std::string &id : silent_of(asked)) {
		// Before others have its locks: else it could take them back after a crash. Not
		// under the mutex, because the disk is slow.
		if (service_->recovery.lapses(id))
			continue;
		lock_table::grants grants;
		std::vector<std::shared_ptr<open_file>> ended;
		std::shared_ptr<session> s;
		bool keeps;
		{
			std::lock_guard lock(mutex_);
			const auto it = sessions_.find(id);
			if (it == sessions_.end())
				continue; // it has ended, and its locks with it
			s = it->second;
			keeps = !is_silent_locked(*s);
			if (!keeps) {
				ended = s->lapse();
				service_->locks.ended(s.get(), grants);
			} else if (service_->locks.any_of(s.get())) {
				service_->recovery.holds(id);
			}
		}
		if (!keeps)
			spdlog::warn("a client was silent for {} s and has no connection: its "
				     "locks are released, for which others wait",
				     settings_.silence.count() / 1000);
		any |= !keeps;
		service::tell(grants);
		if (!ended.empty())
			lane_of(*s->in).wait(
				[ended = std::move(ended)]() mutable { ended.clear(); });
	}
	return any;
}

void server::lapse_all()
{
	lock_table::ids candidates;
	{
		std::lock_guard lock(mutex_);
		for (const auto &[id, s] : sessions_)
			if (is_silent_locked(*s) && service_->locks.any_of(s.get()))
				candidates.insert(id);
	}
	if (candidates.empty())
		return;
	lock_table::ids wanted;
	for (const std::string &id : service_->locks.in_the_way())
		if (candidates.contains(id))
			wanted.insert(id);
	(void)lapse(wanted);
}

// Those that wait for its locks get them to the moment. The reaper sees what comes later.
void server::lapse_later(const session &s)
{
	if (stopped_ || !s.lapses || !service_->locks.any_of(&s))
		return;
	loop_.post([this, left = s.heard() + settings_.silence - boot_clock::now()] {
		const auto timer = std::make_shared<asio::steady_timer>(loop_.io(), left);
		timer->async_wait(loop_.wrap([this, timer](asio::error_code ec) {
			if (!ec)
				lapse_all();
		}));
	});
}

void server::end_silent(const std::vector<std::shared_ptr<connection>> &all)
{
	const auto now = boot_clock::now();
	for (const auto &c : all) {
		const session *const s = c->silent();
		if (s && s->lapses &&
		    now - std::max(s->heard(), woke_.load()) >= settings_.silence &&
		    service_->locks.any_of(s))
			c->shut("silent, and holds locks");
	}
}

} // namespace coop::daemon
