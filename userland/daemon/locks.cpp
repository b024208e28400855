// SPDX-License-Identifier: MIT
// locks.cpp - granting locks, queuing waiters, deadlock detection.
#include "userland/daemon/locks.hpp"

#include <cerrno>

#include "userland/daemon/session.hpp"

namespace coop::daemon
{

namespace
{

constexpr std::size_t search_max = 100'000; // owners that one deadlock search visits

} // namespace

// Whether the range may be locked now. before: waiters ahead of this one come first; null: all do.
bool lock_table::free_locked(const file &f, const waiter *before, const ranges::range &r) const
{
	if (f.locks.conflict(r))
		return false;
	for (const waiter &w : f.waiting) {
		if (&w == before)
			return true;
		// No waiter waits for an owner that holds nothing, so that owner may queue.
		if (w.what.range.forbids(r) && !held_.contains(key_of(r.owner)))
			return false;
	}
	return true;
}

// Deadlock detection: whether an owner that r would wait for waits, directly or not, for r's owner.
// Only for locks of processes: several processes may share an open file description, and another of
// them may release the lock.
bool lock_table::circle_locked(const file &f, const ranges::range &r) const
{
	if (r.kind != COOP_ST_LOCK_POSIX)
		return false;
	std::set<owner_key> seen;
	std::vector<owner_key> next;
	const auto blockers = [&](const file &in, const ranges::range &of) {
		for (const ranges::range &h : in.locks.held())
			if (h.forbids(of) && h.kind == COOP_ST_LOCK_POSIX &&
			    seen.insert(key_of(h.owner)).second)
				next.push_back(key_of(h.owner));
	};
	blockers(f, r);
	while (!next.empty() && seen.size() < search_max) {
		const owner_key o = next.back();
		next.pop_back();
		if (o == key_of(r.owner))
			return true;
		const auto [first, last] = waits_.equal_range(o);
		for (auto it = first; it != last; ++it)
			if (const auto at = files_.find(it->second->what.file); at != files_.end())
				blockers(at->second, it->second->what.range);
	}
	return false;
}

void lock_table::count_locked(const lock_owner &o, std::size_t before, std::size_t after)
{
	const std::size_t change = after - before; // modulo 2^64: the count may shrink
	counts_[o.who].held += change;
	const auto it = held_.try_emplace(key_of(o)).first;
	it->second += change;
	if (!it->second)
		held_.erase(it);
}

void lock_table::take_locked(file &f, const ranges::range &r)
{
	const std::size_t before = f.locks.held().size();
	f.locks.take(r);
	count_locked(r.owner, before, f.locks.held().size());
}

void lock_table::release_locked(file &f, const ranges::range &r)
{
	const std::size_t before = f.locks.held().size();
	f.locks.release(r);
	count_locked(r.owner, before, f.locks.held().size());
}

void lock_table::push_locked(file &f, waiter w)
{
	f.waiting.push_back(std::move(w));
	const waiter &in = f.waiting.back();
	waits_.emplace(key_of(in.what.range.owner), &in);
	counts_[in.what.range.owner.who].waiting++;
}

lock_table::queue::iterator lock_table::pop_locked(file &f, queue::iterator it)
{
	const lock_owner &o = it->what.range.owner;
	const auto [first, last] = waits_.equal_range(key_of(o));
	waits_.erase(std::find_if(first, last, [&](const auto &w) { return w.second == &*it; }));
	counts_[o.who].waiting--;
	return f.waiting.erase(it);
}

int lock_table::lock(const std::shared_ptr<session> &s, const asked &a, bool wait, grants &out)
{
	std::lock_guard lock(mutex_);
	counts &mine = counts_[s.get()];
	const auto at = files_.try_emplace(a.file).first;
	file &f = at->second;
	// flock(2) converts a lock by releasing it first, so two holders of read locks that both
	// want a write lock do not deadlock. Also where the request is repeated: after the reply
	// that it waits the owner believes that it holds nothing.
	if (a.range.whole_file && f.locks.conflict(a.range)) {
		release_locked(f, a.range);
		wake_locked(f, out);
	}
	// A repeated request: its reply was lost.
	for (const waiter &w : f.waiting)
		if (w.what.range.owner.who == s.get() && w.what.cookie == a.cookie && wait)
			return COOP_ST_LOCK_QUEUED;
	if (mine.held >= locks_max) {
		tidy_locked(at);
		return -ENOLCK;
	}
	const bool free = wait ? free_locked(f, nullptr, a.range) : !f.locks.conflict(a.range);
	if (free) {
		take_locked(f, a.range);
		wake_locked(f, out); // a write lock may have become a read lock
		return COOP_ST_LOCK_HELD;
	}
	int result = COOP_ST_LOCK_CONFLICT;
	if (wait && circle_locked(f, a.range))
		result = -EDEADLK;
	else if (wait && mine.waiting >= lock_waiters_max)
		result = -ENOLCK;
	else if (wait) {
		push_locked(f, {s, a});
		return COOP_ST_LOCK_QUEUED;
	}
	tidy_locked(at);
	return result;
}

// Grants all waiters that can be granted, oldest first.
void lock_table::wake_locked(file &f, grants &out)
{
	for (auto it = f.waiting.begin(); it != f.waiting.end();) {
		if (!free_locked(f, &*it, it->what.range)) {
			++it;
			continue;
		}
		take_locked(f, it->what.range);
		out.push_back({it->who, it->what.range.open_id, it->what.cookie});
		it = pop_locked(f, it);
	}
}

void lock_table::tidy_locked(files::iterator at)
{
	if (at->second.locks.empty() && at->second.waiting.empty())
		files_.erase(at);
}

void lock_table::unlock(const asked &a, grants &out)
{
	std::lock_guard lock(mutex_);
	const auto at = files_.find(a.file);
	if (at == files_.end())
		return;
	file &f = at->second;
	release_locked(f, a.range);
	wake_locked(f, out);
	tidy_locked(at);
}

bool lock_table::cancel(const coop_fid &fid, const session *s, std::uint64_t cookie, grants &out)
{
	std::lock_guard lock(mutex_);
	const auto at = files_.find(fid);
	if (at == files_.end())
		return false;
	file &f = at->second;
	const auto it = std::find_if(f.waiting.begin(), f.waiting.end(), [&](const waiter &w) {
		return w.what.range.owner.who == s && w.what.cookie == cookie;
	});
	if (it == f.waiting.end())
		return false;
	pop_locked(f, it);
	wake_locked(f, out); // grant those queued after it
	tidy_locked(at);
	return true;
}

// One range suffices: adjacent ones that are alike are joined.
bool lock_table::holds(const asked &a) const
{
	std::lock_guard lock(mutex_);
	const auto at = files_.find(a.file);
	const ranges::range &r = a.range;
	return at != files_.end() &&
	       std::any_of(at->second.locks.held().begin(), at->second.locks.held().end(),
			   [&r](const ranges::range &h) {
				   return h.owner == r.owner && h.open_id == r.open_id &&
					  h.kind == r.kind && h.exclusive == r.exclusive &&
					  h.start <= r.start && h.end >= r.end;
			   });
}

bool lock_table::test(const asked &a, ranges::range &conflict, const ids &but) const
{
	std::lock_guard lock(mutex_);
	const auto at = files_.find(a.file);
	if (at == files_.end())
		return false;
	for (const ranges::range &h : at->second.locks.held())
		if (h.forbids(a.range) && (but.empty() || !but.contains(h.owner.who->id))) {
			conflict = h;
			return true;
		}
	return false;
}

void lock_table::block_locked(const file &f, const ranges::range &wanted, ids &out)
{
	for (const ranges::range &h : f.locks.held())
		if (h.owner.who != wanted.owner.who && h.forbids(wanted))
			out.insert(h.owner.who->id);
}

lock_table::ids lock_table::in_the_way(const asked &a) const
{
	std::lock_guard lock(mutex_);
	ids out;
	if (const auto at = files_.find(a.file); at != files_.end())
		block_locked(at->second, a.range, out);
	return out;
}

lock_table::ids lock_table::in_the_way() const
{
	std::lock_guard lock(mutex_);
	ids out;
	for (const auto &[owner, w] : waits_)
		if (const auto at = files_.find(w->what.file); at != files_.end())
			block_locked(at->second, w->what.range, out);
	return out;
}

bool lock_table::any_of(const session *s) const
{
	std::lock_guard lock(mutex_);
	const auto mine = counts_.find(s);
	return mine != counts_.end() && mine->second.held;
}

template <class predicate> void lock_table::drop_locked(file &f, predicate gone, grants &out)
{
	for (const ranges::range &h : f.locks.held())
		if (gone(h))
			count_locked(h.owner, 1, 0);
	f.locks.drop(gone);
	for (auto it = f.waiting.begin(); it != f.waiting.end();)
		it = gone(it->what.range) ? pop_locked(f, it) : std::next(it);
	wake_locked(f, out);
}

void lock_table::closed(const coop_fid &fid, const session *s, std::uint64_t open_id, grants &out)
{
	std::lock_guard lock(mutex_);
	const auto at = files_.find(fid);
	if (at == files_.end())
		return;
	drop_locked(
		at->second,
		[&](const ranges::range &r) { return r.owner.who == s && r.open_id == open_id; },
		out);
	tidy_locked(at);
}

void lock_table::ended(const session *s, grants &out)
{
	std::lock_guard lock(mutex_);
	if (!counts_.contains(s))
		return;
	for (auto at = files_.begin(); at != files_.end();) {
		const auto here = at++;
		drop_locked(
			here->second, [&](const ranges::range &r) { return r.owner.who == s; },
			out);
		tidy_locked(here);
	}
	counts_.erase(s);
}

std::size_t lock_table::held() const
{
	std::lock_guard lock(mutex_);
	std::size_t n = 0;
	for (const auto &[fid, f] : files_)
		n += f.locks.held().size();
	return n;
}

std::size_t lock_table::waiting() const
{
	std::lock_guard lock(mutex_);
	std::size_t n = 0;
	for (const auto &[fid, f] : files_)
		n += f.waiting.size();
	return n;
}

} // namespace coop::daemon
