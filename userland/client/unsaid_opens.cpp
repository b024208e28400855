// SPDX-License-Identifier: MIT
// unsaid_opens.cpp - see unsaid_opens.hpp. Storage is called without the lock held.
#include "userland/client/unsaid_opens.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <spdlog/spdlog.h>

#include "userland/client/asker.hpp"

namespace coop::client
{

namespace
{

// An open that lasts this long is reported: if the daemon restarts and another client removes the
// file, an unreported open file is lost.
constexpr std::chrono::seconds silent_most{1};

// The request was given up. Storage may have opened the file, or do so later.
bool unanswered(int err)
{
	return err == -ETIMEDOUT || err == -EINTR;
}

// The open is reported again when it is needed.
bool may_mend(int err)
{
	return unanswered(err) || err == -ENFILE || err == -EMFILE || err == -ENOMEM;
}

} // namespace

bool unsaid_opens::open(const handle &fh, const caller &who, int flags, lease_book::right what,
			open_result &out)
{
	if (removing || !book_.may(fh, who, what) || !book_.attributes_of(fh, out.attr) ||
	    !S_ISREG(out.attr.st.st_mode))
		return false;
	out.open_id = add(fh, who, flags);
	// If the lease was recalled in between, or we are about to change the file, storage is to
	// know of the open now.
	attributes same;
	if (removing || !book_.attributes_of(fh, same)) {
		close(fh, out.open_id);
		return false;
	}
	out.openers = book_.openers_of(fh);
	return true;
}

std::uint64_t unsaid_opens::add(const handle &fh, const caller &who, int flags)
{
	const std::uint64_t id = storage_->new_open_id();
	{
		std::lock_guard lock(mutex_);
		// The program has the file by now, whatever becomes of the name that led to it.
		opens_.emplace(id,
			       open_file{fh, who, flags & ~storage::open_named, clock::now(), {}});
	}
	book_.keep(fh, 1);
	return id;
}

bool unsaid_opens::unsaid(std::uint64_t open_id) const
{
	std::lock_guard lock(mutex_);
	return opens_.contains(open_id) || failed_.contains(open_id);
}

bool unsaid_opens::any_of(const handle &fh) const
{
	std::lock_guard lock(mutex_);
	return std::any_of(opens_.begin(), opens_.end(),
			   [&](const auto &entry) { return fh.empty() || entry.second.fh == fh; });
}

int unsaid_opens::say(std::uint64_t open_id)
{
	if (!unsaid(open_id))
		return 0;
	auto promise = std::make_shared<std::promise<int>>();
	auto answer = promise->get_future();
	tell(open_id, [promise](int err) { promise->set_value(err); });
	while (answer.wait_for(asker::look_again) != std::future_status::ready)
		if (asker::has_gone())
			return -EINTR;
	return answer.get();
}

int unsaid_opens::say_all_of(const handle &fh)
{
	if (!any_of(fh))
		return 0;
	auto promise = std::make_shared<std::promise<void>>();
	auto answer = promise->get_future();
	const auto done = [promise] { promise->set_value(); };
	if (fh.empty())
		tell_all(done);
	else
		tell_all_of(fh, done);
	while (answer.wait_for(asker::look_again) != std::future_status::ready)
		if (asker::has_gone())
			return -EINTR;
	return 0;
}

void unsaid_opens::ask(std::uint64_t open_id, const open_file &f)
{
	storage_->open_as(open_id, f.who, f.fh, f.flags,
			  [this, open_id](int err) { told(open_id, err); });
}

void unsaid_opens::told(std::uint64_t open_id, int err)
{
	open_file f;
	{
		std::lock_guard lock(mutex_);
		const auto it = opens_.find(open_id);
		it->second.unanswered |= unanswered(err);
		if (may_mend(err) && !it->second.closed) {
			it->second.telling = false;
			it->second.since = clock::now(); // tell_old() pauses
			f.waiting.swap(it->second.waiting);
		} else {
			f = std::move(it->second);
			opens_.erase(it);
			if (err && !f.closed)
				failed_[open_id] = err;
		}
	}
	if (f.fh.empty()) {
		for (const answer &done : f.waiting)
			done(err);
		return;
	}
	book_.keep(f.fh, -1);
	if (err && !f.closed)
		spdlog::warn("an open file can no longer be read: storage says '{}'",
			     std::strerror(-err));
	for (const answer &done : f.waiting)
		done(err);
	if (err ? f.unanswered : f.closed)
		storage_->close_reader(f.fh, open_id);
}

void unsaid_opens::tell(std::uint64_t open_id, answer done)
{
	int err = 0;
	bool first = false;
	open_file f;
	{
		std::lock_guard lock(mutex_);
		const auto it = opens_.find(open_id);
		if (it != opens_.end()) {
			it->second.waiting.push_back(std::move(done));
			done = nullptr;
			first = !std::exchange(it->second.telling, true);
			if (first)
				f = {it->second.fh, it->second.who, it->second.flags, {}, {}};
		} else if (const auto gone = failed_.find(open_id); gone != failed_.end()) {
			err = gone->second;
		}
	}
	if (first)
		ask(open_id, f);
	if (done)
		done(err);
}

template <class predicate> void unsaid_opens::tell_some(predicate which, std::function<void()> done)
{
	std::vector<std::uint64_t> ids;
	{
		std::lock_guard lock(mutex_);
		for (const auto &[id, f] : opens_)
			if (which(f))
				ids.push_back(id);
	}
	auto left = std::make_shared<std::atomic<std::size_t>>(ids.size() + 1);
	const auto one = [left, done = std::move(done)](int) {
		if (left->fetch_sub(1) == 1)
			done();
	};
	for (const std::uint64_t id : ids)
		tell(id, one);
	one(0);
}

void unsaid_opens::tell_all_of(const handle &fh, std::function<void()> done)
{
	tell_some([&](const open_file &f) { return f.fh == fh; }, std::move(done));
}

void unsaid_opens::tell_all(std::function<void()> done)
{
	tell_some([](const open_file &) { return true; }, std::move(done));
}

void unsaid_opens::tell_old()
{
	const auto limit = clock::now() - silent_most;
	tell_some([&](const open_file &f) { return !f.telling && f.since < limit; }, [] {});
}

void unsaid_opens::close(const handle &fh, std::uint64_t open_id)
{
	bool unsaid, known;
	{
		std::lock_guard lock(mutex_);
		if (failed_.erase(open_id))
			return;
		const auto it = opens_.find(open_id);
		unsaid = it != opens_.end();
		if (unsaid && it->second.telling) {
			it->second.closed = true;
			return;
		}
		known = !unsaid || it->second.unanswered;
		if (unsaid)
			opens_.erase(it);
	}
	if (unsaid)
		book_.keep(fh, -1);
	if (known)
		storage_->close_reader(fh, open_id);
}

} // namespace coop::client
