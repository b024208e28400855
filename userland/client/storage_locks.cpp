// SPDX-License-Identifier: MIT
// storage_locks.cpp - see storage_locks.hpp.
#include "userland/client/storage_locks.hpp"

#include <cerrno>

namespace coop::client
{

storage_locks::storage_locks(storage_link &link) : link_(link) {}

coop_st_body storage_locks::body_of(const lock_book::lock &l) const
{
	coop_st_body b{};
	b.fh = bytes_of(l.fh);
	b.open_id = l.open_id;
	b.lock = l.what;
	return b;
}

// A lock was granted after its request was given up. Releasing it also drops what the owner held
// there before, as on NFS.
void storage_locks::give_back(const lock_book::lock &l)
{
	book().freed(l);
	if (auto c = link_.make(COOP_ST_UNLOCK, body_of(l))) {
		c->done = [](storage_link::outcome &) {};
		link_.submit(std::move(c));
	}
}

// Handles the reply to a request that was given up.
void storage_locks::settle_late(const lock_book::lock &l, std::uint64_t cookie,
				const storage_link::outcome &o)
{
	if (o.err || o.body->flags == COOP_ST_LOCK_CONFLICT)
		return;
	if (o.body->flags == COOP_ST_LOCK_HELD)
		return give_back(l);
	coop_st_body ask = body_of(l);
	ask.cookie = cookie;
	if (auto c = link_.make(COOP_ST_UNLOCK, ask)) {
		c->done = [this, l](storage_link::outcome &end) {
			if (!end.err && !end.body->flags)
				give_back(l);
		};
		link_.submit(std::move(c));
	}
}

int storage_locks::lock(const lock_book::lock &l, bool wait, lock_book::granted done,
			std::uint64_t &cookie)
{
	cookie = wait ? book().begin({l, std::move(done)}) : 0;
	coop_st_body ask = body_of(l), got{};
	std::string text;
	ask.flags = wait ? COOP_ST_L_WAIT : 0;
	ask.cookie = cookie;
	bool granted = false; // before the reply about its place in the queue
	const int err = link_.ask(
		COOP_ST_LOCK, ask, got, text, nullptr, {},
		[this, l, cookie](storage_link::outcome &o) { settle_late(l, cookie, o); },
		[&](const storage_link::outcome &o) {
			if (o.err)
				return;
			// If flock(2) cannot convert a lock, it has released the old one.
			if (l.what.kind == COOP_ST_LOCK_FLOCK)
				book().freed(l);
			if (o.body->flags == COOP_ST_LOCK_HELD)
				book().took(l);
			if (o.body->flags != COOP_ST_LOCK_QUEUED)
				return;
			granted = book().queued(cookie);
			// A reply that the daemon remembers may be older than the grant, and the
			// grant lost with the connection.
			if (!granted && o.repeated)
				link_.ask_for_lock(cookie, l);
		});
	if (!err && got.flags == COOP_ST_LOCK_QUEUED && !granted)
		return -EINPROGRESS;
	if (wait)
		(void)book().end(cookie);
	return err ? err : got.flags == COOP_ST_LOCK_CONFLICT ? -EAGAIN : 0;
}

bool storage_locks::cancel(std::uint64_t cookie)
{
	const std::optional<lock_book::wait> w = book().end(cookie);
	if (!w)
		return false;
	storage_link::outcome queued;
	coop_st_body body{};
	body.flags = COOP_ST_LOCK_QUEUED;
	queued.body = &body;
	settle_late(w->asked, cookie, queued);
	return true;
}

int storage_locks::unlock(const lock_book::lock &l)
{
	if (!book().holds(l))
		return 0;
	book().freed(l);
	coop_st_body got{};
	std::string text;
	// Completed even if its caller has gone: other owners wait for the lock.
	const int err = link_.ask(COOP_ST_UNLOCK, body_of(l), got, text, nullptr, {},
				  [](storage_link::outcome &) {});
	return err == -EINTR || err == -ETIMEDOUT ? 0 : err;
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
