// SPDX-License-Identifier: MIT
// locking.cpp - lock operations: a request leads to a lock, a place in the queue or a refusal. The
// locks themselves are in lock_table.
#include <cerrno>

#include "userland/daemon/service.hpp"

namespace coop::daemon
{

namespace
{

lock_table::asked asked_of(const session &s, const open_file &f, const coop_st_body &b)
{
	const bool whole = b.lock.kind == COOP_ST_LOCK_FLOCK;
	return {f.node->file,
		{{&s, b.lock.owner},
		 b.open_id,
		 whole ? 0 : b.lock.start,
		 whole ? lock_table::ranges::last_byte : b.lock.end,
		 b.lock.kind,
		 b.lock.pid,
		 whole,
		 b.lock.type == COOP_ST_LOCK_WRITE},
		b.cookie};
}

// fcntl(2) requires the access that matches the lock's type; flock(2) takes any open file.
bool permitted(const open_file &f, const coop_st_lock &l)
{
	if (l.kind == COOP_ST_LOCK_FLOCK)
		return true;
	return f.flags & (l.type == COOP_ST_LOCK_WRITE ? COOP_ST_O_WRITE : COOP_ST_O_READ);
}

} // namespace

int service::take(session &s, const lock_table::asked &asked, bool wait)
{
	for (bool again = false;; again = true) {
		lock_table::grants grants;
		const int result = locks.lock(s.shared_from_this(), asked, wait, grants);
		tell(grants);
		if (result == COOP_ST_LOCK_HELD || result == -ENOLCK || again)
			return result;
		const auto in_the_way = locks.in_the_way(asked);
		// A wait that is queued gets its lock by this, and the client a push.
		if (in_the_way.empty() || !silence_.lapse || !silence_.lapse(in_the_way) ||
		    result == COOP_ST_LOCK_QUEUED)
			return result;
	}
}

int service::lock(const exported &, session &s, call r, reply &out)
{
	const std::uint32_t flags = r.body.flags;
	const std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f || !permitted(*f, r.body.lock))
		return -EBADF;
	if (r.body.lock.type == COOP_ST_LOCK_NONE || flags & ~(COOP_ST_L_WAIT | COOP_ST_L_RECLAIM))
		return -EINVAL;
	const bool reclaims = flags & COOP_ST_L_RECLAIM;
	const lock_table::asked asked = asked_of(s, *f, r.body);
	// Taken back already, before the client lost a connection and began anew. No other session
	// has held it since, so it does not matter whether the grace time is over.
	const bool held = reclaims && locks.holds(asked);
	if (!held && (reclaims ? !recovery.may_reclaim(s.id) : recovery.in_grace()))
		return reclaims ? -ESTALE : -EAGAIN;
	recovery.holds(s.id);
	const int result =
		held ? COOP_ST_LOCK_HELD : take(s, asked, !reclaims && flags & COOP_ST_L_WAIT);
	if (result < 0)
		return result;
	if (result == COOP_ST_LOCK_CONFLICT && reclaims)
		return -ESTALE;
	out.body.flags = static_cast<u32>(result);
	// The session or the open file may have ended in between, before or after the lock was
	// granted: then it must not keep the lock.
	if (s.over) {
		ended(s);
		return -ESTALE;
	}
	if (s.find(r.body.open_id) != f) {
		closed(s, r.body.open_id, *f);
		return -EBADF;
	}
	return attributes(*f->node, out.body.attr);
}

int service::lock_test(const exported &, session &s, call r, reply &out)
{
	const std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f)
		return -EBADF;
	if (r.body.lock.type == COOP_ST_LOCK_NONE)
		return -EINVAL;
	if (recovery.in_grace())
		return -EAGAIN;
	const lock_table::asked asked = asked_of(s, *f, r.body);
	lock_table::ranges::range other;
	out.body.lock = r.body.lock;
	out.body.lock.type = COOP_ST_LOCK_NONE;
	bool found = locks.test(asked, other);
	if (found && silence_.of) // a LOCK would get it
		found = locks.test(asked, other, silence_.of(locks.in_the_way(asked)));
	if (found)
		out.body.lock = {other.owner.id,
				 other.start,
				 other.end,
				 other.kind,
				 other.exclusive ? COOP_ST_LOCK_WRITE : COOP_ST_LOCK_READ,
				 other.owner.who == &s ? other.pid : 0};
	return 0;
}

int service::unlock(const exported &, session &s, call r, reply &out)
{
	const std::shared_ptr<open_file> f = s.find(r.body.open_id);
	if (!f)
		return -EBADF;
	const lock_table::asked a = asked_of(s, *f, r.body);
	lock_table::grants grants;
	if (a.cookie)
		out.body.flags = locks.cancel(a.file, &s, a.cookie, grants);
	else
		locks.unlock(a, grants);
	tell(grants);
	return 0;
}

int service::reclaimed(const exported &, session &s, call, reply &)
{
	recovery.reclaimed(s.id);
	return 0;
}

void service::closed(session &s, std::uint64_t open_id, const open_file &f)
{
	lock_table::grants grants;
	locks.closed(f.node->file, &s, open_id, grants);
	tell(grants);
}

void service::ended(session &s)
{
	lock_table::grants grants;
	locks.ended(&s, grants);
	tell(grants);
	leases.give_back_all(&s);
}

void service::tell(const lock_table::grants &grants)
{
	for (const lock_table::granted &g : grants)
		if (const std::shared_ptr<session> s = g.to.lock()) {
			coop_st_body b{};
			b.open_id = g.open_id;
			b.cookie = g.cookie;
			s->push(COOP_ST_LOCK_GRANTED, b);
		}
}

} // namespace coop::daemon
