// SPDX-License-Identifier: MIT
// storage_ask.cpp - callers that wait for a reply, and what becomes of a call that its caller has
// given up.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "userland/client/asker.hpp"
#include "userland/client/storage_codec.hpp"
#include "userland/client/storage_link.hpp"

namespace coop::client
{

int storage_link::ask(std::uint16_t op, const coop_st_body &request, coop_st_body &reply,
		      std::string &text, std::string *data, std::span<const iovec> source,
		      std::function<void(outcome &)> orphan,
		      std::function<void(const outcome &)> heard)
{
	auto c = make(op, request);
	if (!c)
		return -ENAMETOOLONG; // a name: the only field that a caller can make too long
	c->source.assign(source.begin(), source.end());
	c->deadline = deadline_of(*c);
	if (c->kept_on && !orphan)
		orphan = [](outcome &) {};
	const bool inherited = orphan != nullptr;
	c->orphan = std::move(orphan);
	// Shared, so that we can notify without holding its lock: a woken waiter would block on
	// that lock.
	struct waiting {
		std::mutex mutex;
		std::condition_variable ready;
		bool done = false;
		int err = 0;
		std::optional<std::thread::id> listener; // the caller, while it listens
	};
	const auto shared = std::make_shared<waiting>();
	waiting &wait = *shared;
	c->done = [&, shared](outcome &o) {
		if (heard)
			heard(o);
		if (o.body) {
			reply = *o.body;
			// The only strings in replies are a handle or a text, and they point into
			// the receive buffer.
			coop_st_bytes &b = reply.fh.len ? reply.fh : reply.text;
			text.assign(reinterpret_cast<const char *>(b.p), b.len);
			b = bytes_of(text);
		}
		if (data)
			*data = std::move(o.data);
		// If an earlier transmission may have removed the name, ENOENT means success.
		const bool gone = o.repeated && o.err == -ENOENT &&
				  (op == COOP_ST_UNLINK || op == COOP_ST_RMDIR);
		// After this the caller's buffers are its own again.
		const auto keep = shared;
		std::optional<std::thread::id> listener;
		{
			std::lock_guard lock(keep->mutex);
			keep->err = gone ? 0 : o.err;
			keep->done = true;
			listener = keep->listener;
		}
		if (!listener)
			keep->ready.notify_one();
		else if (*listener != std::this_thread::get_id())
			stop_listening();
	};
	submit(c);
	const auto done = [&] { return wait.done; };
	std::unique_lock lock(wait.mutex);
	if (!wait.done && is_next(*c) && !listening_.exchange(true)) {
		wait.listener = std::this_thread::get_id();
		lock.unlock();
		listen(*c, [&] {
			const std::lock_guard guard(wait.mutex);
			return wait.done;
		});
		listening_ = false;
		lock.lock();
		wait.listener.reset();
	}
	bool gone = false;
	while (!wait.ready.wait_for(lock, asker::look_again, done)) {
		if (!asker::has_gone())
			continue;
		gone = true;
		lock.unlock();
		give_up(*c);
		lock.lock();
		wait.ready.wait(lock, done);
	}
	lock.unlock();
	if (inherited)
		disown(*c);
	return gone && wait.err == -ETIMEDOUT ? -EINTR : wait.err;
}

// Drops the orphan, and what it holds, unless it has taken over the call.
void storage_link::disown(call &c)
{
	std::function<void(outcome &)> unused; // destroyed without the lock
	std::lock_guard lock(mutex_);
	unused.swap(c.orphan);
}

// Ends the call as its deadline would: its memory is in use until the connection's thread completes
// it.
void storage_link::give_up(call &c)
{
	std::lock_guard lock(mutex_);
	if (!c.abandoned) // that has no deadline: what it leads to must happen
		c.deadline = clock::now();
}

// The request may still be executed: the call stays in the table until its reply, and is repeated
// on the next connection. Returns the function that tells the waiting caller.
std::function<void(storage_link::outcome &)> storage_link::abandon(call &c)
{
	c.deadline = clock::time_point::max();
	c.abandoned = true;
	// The caller's memory ends with its wait, so copy the data. Its thread has finished sending
	// from it, and only this thread would send it again.
	for (const iovec &v : c.source)
		c.kept.append(static_cast<const char *>(v.iov_base), v.iov_len);
	c.source.clear();
	if (!c.kept.empty())
		c.source.push_back({c.kept.data(), c.kept.size()});
	return std::exchange(c.done, std::exchange(c.orphan, nullptr));
}

// The daemon no longer knows the session, nor which of these calls it has executed.
void storage_link::drop_abandoned()
{
	calls gone;
	{
		std::lock_guard lock(mutex_);
		std::erase_if(calls_, [&](const auto &i) {
			if (!i.second->abandoned || i.second->kept_on)
				return false;
			gone.push_back(i.second);
			return true;
		});
	}
	for (const auto &c : gone) {
		outcome o;
		o.err = -ESTALE;
		complete(c, o);
	}
}

} // namespace coop::client
