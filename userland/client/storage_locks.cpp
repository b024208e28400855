// SPDX-License-Identifier: MIT
// storage_locks.cpp - see storage_locks.hpp.
#include "userland/client/storage_locks.hpp"

#include <cerrno>

#include "userland/client/asker.hpp"
#include "userland/client/lock_keeper.hpp"
#include "userland/client/storage_codec.hpp"

namespace coop::client
{

storage_locks::storage_locks(storage_link &link, lock_keeper &keeper) : link_(link), keeper_(keeper)
{
}

coop_st_body storage_locks::body_of(const lock_book::lock &l) const
{
	coop_st_body b = request_on(l.fh, l.open_id);
	b.lock = l.what;
	return b;
}

std::shared_ptr<void> storage_locks::releasing(const lock_book::lock &l)
{
	const std::lock_guard guard(releases_->mutex);
	return releasing_locked(l);
}

std::shared_ptr<void> storage_locks::releasing_locked(const lock_book::lock &l)
{
	const auto at = releases_->under_way.emplace(l.fh, l.what.owner);
	return {nullptr, [all = releases_, at](void *) {
			{
				const std::lock_guard lock(all->mutex);
				all->under_way.erase(at);
			}
			all->ended.notify_all();
		}};
}

// 0, -EINTR: the asker has gone, or -ETIMEDOUT.
int storage_locks::take_turn(const lock_book::lock &l, std::shared_ptr<void> &turn)
{
	const std::pair mine(l.fh, l.what.owner);
	const auto begun = storage_link::clock::now();
	const auto most = link_.patience();
	std::unique_lock lock(releases_->mutex);
	while (!releases_->ended.wait_for(lock, asker::look_again,
					  [&] { return !releases_->under_way.contains(mine); })) {
		if (asker::has_gone())
			return -EINTR;
		if (most.count() && storage_link::clock::now() - begun >= most)
			return -ETIMEDOUT;
	}
	turn = releasing_locked(l);
	return 0;
}

// A lock was granted after its request was given up. Releasing it also drops what the owner held
// there before, as on NFS.
void storage_locks::give_back(const lock_book::lock &l)
{
	book().freed(l);
	if (auto c = link_.make(COOP_ST_UNLOCK, body_of(l))) {
		c->done = [under_way = releasing(l)](storage_link::outcome &) {};
		link_.submit(std::move(c));
	}
}

// A request that was given up has had this result, at the daemon 'by': see
// storage_link::restores().
void storage_locks::settle_late(const lock_book::lock &l, std::uint64_t cookie,
				std::uint32_t result, std::uint64_t by)
{
	if (result == COOP_ST_LOCK_HELD)
		return give_back(l);
	if (result != COOP_ST_LOCK_QUEUED)
		return;
	coop_st_body ask = body_of(l);
	ask.cookie = cookie;
	if (auto c = link_.make(COOP_ST_UNLOCK, ask)) {
		c->done = [this, l, by, under_way = releasing(l)](storage_link::outcome &end) {
			// There was no such wait: it had been granted. But a later daemon never had
			// it, and there the owner may hold what it held before.
			if (!end.err && !end.body->flags && link_.restores() == by)
				give_back(l);
		};
		link_.submit(std::move(c));
	}
}

int storage_locks::lock(const lock_book::lock &l, bool wait, lock_book::granted done,
			std::uint64_t &cookie)
{
	std::shared_ptr<void> turn;
	if (const int err = take_turn(l, turn))
		return err;
	const auto unwanted = [this, l](std::uint64_t of, std::uint32_t result) {
		settle_late(l, of, result, link_.restores());
	};
	cookie = wait ? book().begin({l, std::move(done), unwanted}) : 0;
	if (wait)
		keeper_.wake();
	coop_st_body ask = body_of(l), got{};
	std::string text;
	ask.flags = wait ? COOP_ST_L_WAIT : 0;
	ask.cookie = cookie;
	bool granted = false; // before the reply about its place in the queue
	const int err = link_.ask(
		COOP_ST_LOCK, ask, got, text, nullptr, {},
		// The turn lasts until the reply: what that leads to begins before it ends.
		[unwanted, cookie, turn = std::move(turn)](storage_link::outcome &o) {
			if (!o.err)
				unwanted(cookie, o.body->flags);
		},
		[&](const storage_link::outcome &o) {
			if (o.err)
				return;
			// If flock(2) cannot convert a lock, it has released the old one.
			if (l.what.kind == COOP_ST_LOCK_FLOCK)
				book().freed(l);
			if (o.body->flags == COOP_ST_LOCK_HELD) {
				book().took(l);
				keeper_.wake();
			} else if (o.body->flags == COOP_ST_LOCK_QUEUED) {
				granted = link_.lock_queued(cookie, l, o);
			}
		});
	if (!err && got.flags == COOP_ST_LOCK_QUEUED && !granted)
		return -EINPROGRESS;
	if (wait)
		(void)book().end(cookie);
	return err ? err : got.flags == COOP_ST_LOCK_CONFLICT ? -EAGAIN : 0;
}

bool storage_locks::cancel(std::uint64_t cookie)
{
	const std::optional<lock_book::lock> asked = book().asked(cookie);
	if (!asked)
		return false;
	const std::shared_ptr<void> turn = releasing(*asked);
	std::optional<lock_book::wait> ended;
	if (!book().cancel(cookie, ended, turn))
		return false;
	if (ended)
		settle_late(ended->asked, cookie, COOP_ST_LOCK_QUEUED, ended->by);
	return true;
}

// Without a caller that waits: see unlock().
void storage_locks::release(lock_book::lock l, std::set<std::uint64_t> through,
			    std::shared_ptr<void> under_way)
{
	if (through.empty())
		return;
	l.open_id = *through.begin();
	through.erase(through.begin());
	if (auto c = link_.make(COOP_ST_UNLOCK, body_of(l))) {
		c->done = [this, l, through = std::move(through),
			   under_way = std::move(under_way)](storage_link::outcome &o) {
			if (o.err == -EBADF)
				release(l, through, under_way);
		};
		link_.submit(std::move(c));
	}
}

// The daemon releases the owner's locks in the range, whichever open files they were taken through,
// when the UNLOCK names an open file that it knows. It need not know the one that the caller has:
// after a restart it may have refused to open it again. One that a lock was taken through it knows,
// or that lock is gone: then others may be left.
int storage_locks::unlock(lock_book::lock l)
{
	std::set<std::uint64_t> through = book().taken_through(l);
	if (through.empty())
		return 0;
	const std::shared_ptr<void> under_way = releasing(l);
	book().freed(l);
	int err = -EBADF;
	while (err == -EBADF && !through.empty()) {
		l.open_id = *through.begin();
		through.erase(through.begin());
		coop_st_body got{};
		std::string text;
		// Completed even if its caller has gone: other owners wait for the lock.
		err = link_.ask(COOP_ST_UNLOCK, body_of(l), got, text, nullptr, {},
				[this, l, through, under_way](storage_link::outcome &o) {
					if (o.err == -EBADF)
						release(l, through, under_way);
				});
	}
	return err == -EBADF || err == -EINTR || err == -ETIMEDOUT ? 0 : err;
}

int storage_locks::test(lock_book::lock &l)
{
	coop_st_body got{};
	std::string text;
	const int err = link_.ask(COOP_ST_LOCK_TEST, body_of(l), got, text);
	if (!err)
		l.what = got.lock;
	return err;
}

} // namespace coop::client
