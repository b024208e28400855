// SPDX-License-Identifier: MIT
// lock_book.cpp - see lock_book.hpp.
#include "userland/client/lock_book.hpp"

#include <utility>

namespace coop::client
{

lock_book::ranges::range lock_book::range_of(const lock &l)
{
	const bool whole = l.what.kind == COOP_ST_LOCK_FLOCK;
	return {l.what.owner,
		l.open_id,
		whole ? 0 : l.what.start,
		whole ? ranges::last_byte : l.what.end,
		l.what.kind,
		l.what.pid,
		whole,
		l.what.type == COOP_ST_LOCK_WRITE};
}

void lock_book::took(const lock &l)
{
	std::lock_guard guard(mutex_);
	files_[l.fh].take(range_of(l));
	count_locked();
}

void lock_book::freed(const lock &l)
{
	std::lock_guard guard(mutex_);
	const auto it = files_.find(l.fh);
	if (it == files_.end())
		return;
	it->second.release(range_of(l));
	if (it->second.empty())
		files_.erase(it);
	count_locked();
}

void lock_book::closed(std::uint64_t open_id)
{
	std::lock_guard guard(mutex_);
	for (auto it = files_.begin(); it != files_.end();) {
		it->second.drop([&](const ranges::range &r) { return r.open_id == open_id; });
		it = it->second.empty() ? files_.erase(it) : std::next(it);
	}
	lost_.erase(open_id);
	count_locked();
}

bool lock_book::holds(const lock &l, bool exclusive_only) const
{
	std::lock_guard guard(mutex_);
	const auto it = files_.find(l.fh);
	if (it == files_.end())
		return false;
	const ranges::range wanted = range_of(l);
	for (const ranges::range &h : it->second.held())
		if (h.owner == wanted.owner && h.meets(wanted) && (h.exclusive || !exclusive_only))
			return true;
	return false;
}

bool lock_book::holds(std::uint64_t open_id) const
{
	std::lock_guard guard(mutex_);
	for (const auto &[fh, locks] : files_)
		for (const ranges::range &h : locks.held())
			if (h.open_id == open_id)
				return true;
	return false;
}

std::set<std::uint64_t> lock_book::taken_through(const lock &l) const
{
	std::set<std::uint64_t> out;
	std::lock_guard guard(mutex_);
	const auto it = files_.find(l.fh);
	if (it == files_.end())
		return out;
	const ranges::range wanted = range_of(l);
	for (const ranges::range &h : it->second.held())
		if (h.owner == wanted.owner && h.meets(wanted))
			out.insert(h.open_id);
	return out;
}

void lock_book::lost(std::uint64_t open_id)
{
	closed(open_id);
	std::lock_guard guard(mutex_);
	era_++;
	lost_.insert(open_id);
	count_locked();
}

bool lock_book::is_lost(std::uint64_t open_id) const
{
	std::lock_guard guard(mutex_);
	return lost_.contains(open_id);
}

bool lock_book::idle() const
{
	std::lock_guard guard(mutex_);
	return files_.empty() && waits_.empty();
}

std::uint64_t lock_book::era(const std::string &fh) const
{
	std::lock_guard guard(mutex_);
	return files_.empty() || !files_.contains(fh) ? 0 : era_;
}

std::vector<lock_book::lock> lock_book::held() const
{
	std::lock_guard guard(mutex_);
	std::vector<lock> out;
	for (const auto &[fh, locks] : files_)
		for (const ranges::range &h : locks.held())
			out.push_back(
				{fh,
				 h.open_id,
				 {h.owner, h.start, h.end, h.kind,
				  h.exclusive ? COOP_ST_LOCK_WRITE : COOP_ST_LOCK_READ, h.pid}});
	return out;
}

std::uint64_t lock_book::begin(wait w)
{
	std::lock_guard guard(mutex_);
	waits_.emplace(++last_cookie_, std::move(w));
	return last_cookie_;
}

// Null: the wait is over, or cancelled.
lock_book::wait *lock_book::find_locked(std::uint64_t cookie)
{
	const auto it = waits_.find(cookie);
	return it == waits_.end() || it->second.cancelled ? nullptr : &it->second;
}

std::optional<lock_book::wait> lock_book::over_locked(std::uint64_t cookie)
{
	const wait *w = find_locked(cookie);
	if (!w->queued || !w->given || w->asking)
		return {};
	wait over = std::move(waits_.extract(cookie).mapped());
	files_[over.asked.fh].take(range_of(over.asked));
	count_locked();
	return over;
}

bool lock_book::queued(std::uint64_t cookie, std::uint64_t by)
{
	std::lock_guard guard(mutex_);
	wait *w = find_locked(cookie);
	if (!w)
		return false;
	w->queued = true;
	w->by = by;
	return over_locked(cookie).has_value();
}

void lock_book::forgotten()
{
	std::lock_guard guard(mutex_);
	for (auto &[cookie, w] : waits_)
		w.given = false;
}

std::optional<lock_book::wait> lock_book::grant(std::uint64_t cookie)
{
	std::lock_guard guard(mutex_);
	wait *w = find_locked(cookie);
	if (!w)
		return {};
	w->given = true;
	return over_locked(cookie);
}

bool lock_book::ask_again(std::uint64_t cookie)
{
	std::lock_guard guard(mutex_);
	wait *w = find_locked(cookie);
	return w && !std::exchange(w->asking, true);
}

std::optional<lock_book::wait> lock_book::answered(std::uint64_t cookie,
						   std::optional<std::uint64_t> by)
{
	std::lock_guard guard(mutex_);
	const auto it = waits_.find(cookie);
	if (it == waits_.end())
		return {};
	it->second.asking = false;
	it->second.by = by.value_or(it->second.by);
	if (!it->second.cancelled)
		return over_locked(cookie);
	return std::move(waits_.extract(it).mapped());
}

std::optional<lock_book::lock> lock_book::asked(std::uint64_t cookie)
{
	std::lock_guard guard(mutex_);
	const wait *w = find_locked(cookie);
	return w ? std::optional(w->asked) : std::nullopt;
}

bool lock_book::cancel(std::uint64_t cookie, std::optional<wait> &ended, std::shared_ptr<void> ends)
{
	std::lock_guard guard(mutex_);
	wait *w = find_locked(cookie);
	if (!w)
		return false;
	if (w->asking) {
		w->cancelled = true;
		w->ends = std::move(ends);
	} else {
		ended = std::move(waits_.extract(cookie).mapped());
	}
	return true;
}

std::optional<lock_book::wait> lock_book::end(std::uint64_t cookie)
{
	std::lock_guard guard(mutex_);
	auto node = waits_.extract(cookie);
	if (!node)
		return {};
	return std::move(node.mapped());
}

std::vector<std::pair<std::uint64_t, lock_book::lock>> lock_book::waiting() const
{
	std::lock_guard guard(mutex_);
	std::vector<std::pair<std::uint64_t, lock>> out;
	for (const auto &[cookie, w] : waits_)
		if (w.queued && !w.cancelled)
			out.emplace_back(cookie, w.asked);
	return out;
}

} // namespace coop::client
