// SPDX-License-Identifier: MIT
// outgoing.cpp - see outgoing.hpp.
#include "outgoing.hpp"

#include <algorithm>
#include <array>
#include <random>

#include "inside.hpp"
#include "userland/net/thread.hpp"

namespace coop::net::core
{

namespace
{

// A random start: an answer to a call of an earlier process at this address matches none of ours.
std::uint64_t first_id()
{
	std::random_device d;
	return std::uint64_t{d()} << 32 | d();
}

// Says nothing about the peer's life.
bool is_passing(int status)
{
	return status == 0 || status == -ENOBUFS || status == -ETIMEDOUT || status == -ECANCELED ||
	       status == -EAGAIN || status == -EBADFD;
}

// Milliseconds for the head; rounded up, and 0 if it has no room for them, so that a caller never
// gives up after its peer.
std::uint32_t time_left(time_point deadline)
{
	if (deadline == never)
		return 0;
	const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now());
	if (left.count() > UINT32_MAX)
		return 0;
	return static_cast<std::uint32_t>(std::max<std::int64_t>(left.count(), 1));
}

} // namespace

outgoing::outgoing(domain &d, messenger &m, const rpc_options &o, std::size_t eager,
		   const void *owner) :
	domain_(d),
	messenger_(m),
	options_(o),
	eager_(eager),
	owner_(owner),
	results_(std::make_shared<budget>(o.bulk_memory)),
	next_(first_id())
{
}

outgoing::~outgoing()
{
	{
		std::lock_guard hold(lock_);
		closed_ = over_ = true;
	}
	changed_.notify_all();
	if (thread_.joinable())
		thread_.join();
}

int outgoing::begin(const destination &to, std::uint32_t method, std::span<const std::byte> bytes,
		    rpc::completion done, time_point deadline)
{
	if (bytes.size() > options_.max_body)
		return -EFBIG;
	const time_point now = clock::now();
	if (deadline <= now)
		return -ETIMEDOUT;
	record r;
	if (const int status = to.find(messenger_.machine(), r.to))
		return status;
	const endpoint_ptr there = r.to;
	r.done = std::move(done);
	r.deadline = deadline;
	r.due = std::min(deadline, now + options_.probe);
	std::uint64_t id = 0;
	if (const int status = insert(std::move(r), id))
		return status;
	const int status = send(id, *there, method, bytes, deadline);
	if (status == 0) {
		calls++;
		return 0;
	}
	record mine;
	{
		std::lock_guard hold(lock_);
		if (!take(calls_.find(id), mine)) {
			calls++;
			return 0; // it has ended already, and its completion was called
		}
	}
	if (mine.argument)
		mine.argument->cancel(messenger_);
	return status;
}

int outgoing::send(std::uint64_t id, endpoint &to, std::uint32_t method,
		   std::span<const std::byte> bytes, time_point deadline)
{
	std::shared_ptr<transfer> argument;
	if (bytes.size() > eager_) {
		// Without room it would be copied and registered in vain, and again each time.
		const int room = messenger_.wait_room(time_point{});
		if (room == -ETIMEDOUT || room == -EDEADLK)
			return -EAGAIN;
		if (const int status = offer(id, to, bytes, deadline, argument))
			return status;
	}
	call_head h;
	h.kind = call_kind::request;
	h.flags = argument ? call_head::bulk : 0;
	h.call = id;
	h.method = method;
	h.time = time_left(deadline);
	h.length = bytes.size();
	std::array<std::byte, call_head::size> head;
	h.put(head.data());
	return messenger_.post(
		to, {head, argument ? argument->descriptor() : bytes},
		[this, id](int s) {
			if (s)
				end_unless_answered(id, s);
			else
				has_left(id);
		},
		deadline);
}

// The peer reads a long argument. If that fails, so does the call.
int outgoing::offer(std::uint64_t id, endpoint &to, std::span<const std::byte> bytes,
		    time_point deadline, std::shared_ptr<transfer> &out)
{
	try {
		const int status =
			transfer::make(domain_, std::vector(bytes.begin(), bytes.end()), out);
		if (status)
			return status;
	} catch (const std::bad_alloc &) {
		return -ENOMEM;
	}
	operation o;
	o.queue = queue_type::passive_bulk_send;
	o.to = &to;
	o.deadline = deadline;
	const int status = out->begin(messenger_, o, [this, id](std::vector<std::byte> &&, int s) {
		if (s)
			end_unless_answered(id, s);
	});
	if (status)
		return status;
	{
		std::lock_guard hold(lock_);
		if (const auto at = calls_.find(id); at != calls_.end()) {
			at->second.argument = out;
			return out->descriptor().empty() ? -ENOMEM : 0;
		}
	}
	out->cancel(messenger_); // the call has ended
	return -ECANCELED;
}

int outgoing::insert(record &&r, std::uint64_t &id)
{
	std::lock_guard hold(lock_);
	if (closed_)
		return -EBADFD;
	if (calls_.size() >= options_.max_calls)
		return -EAGAIN;
	if (!thread_.joinable()) {
		try {
			thread_ = background_thread([this] { watch(); });
		} catch (const std::system_error &) {
			return -ENOMEM; // -EAGAIN would mean to wait for another call
		}
	}
	id = next_++;
	due_.emplace(r.due, id);
	if (r.due < wake_)
		changed_.notify_all();
	calls_.emplace(id, std::move(r));
	return 0;
}

// Under the lock. @return false: there is no such call.
bool outgoing::take(table::iterator at, record &out)
{
	if (at == calls_.end())
		return false;
	due_.erase({at->second.due, at->first});
	out = std::move(at->second);
	calls_.erase(at);
	if (waiting_)
		room_.notify_all();
	return true;
}

int outgoing::wait_room(time_point deadline)
{
	std::unique_lock hold(lock_);
	waiting_++;
	const auto over = [this] { return closed_ || calls_.size() < options_.max_calls; };
	bool in_time = true;
	if (deadline == never)
		room_.wait(hold, over);
	else
		in_time = room_.wait_until(hold, deadline, over);
	waiting_--;
	return closed_ ? -ECANCELED : in_time ? 0 : -ETIMEDOUT;
}

void outgoing::finish(record &r, call_result &&result)
{
	if (r.argument)
		r.argument->cancel(messenger_);
	if (r.done)
		r.done(std::move(result));
}

void outgoing::end(std::uint64_t id, call_result &&result)
{
	record r;
	{
		std::lock_guard hold(lock_);
		if (!take(calls_.find(id), r))
			return;
	}
	finish(r, std::move(result));
}

void outgoing::end_unless_answered(std::uint64_t id, int status)
{
	record r;
	{
		std::lock_guard hold(lock_);
		const auto at = calls_.find(id);
		if (at == calls_.end() || at->second.reading || !take(at, r))
			return;
	}
	finish(r, {status, false, {}});
}

void outgoing::answered(endpoint &from, const call_head &h, std::span<const std::byte> body)
{
	const auto status = static_cast<std::int32_t>(h.method);
	record r;
	{
		std::unique_lock hold(lock_);
		const auto at = calls_.find(h.call);
		if (at == calls_.end() || at->second.to.get() != &from || at->second.reading) {
			late++;
			return;
		}
		if (h.flags & call_head::bulk && status == 0 && h.length <= options_.max_body) {
			at->second.reading = true;
			due_.erase({at->second.due, h.call});
			const time_point deadline = at->second.deadline;
			hold.unlock();
			read(h.call, from.address(), h, body, deadline);
			return;
		}
		take(at, r);
	}
	if (status > 0 || (status && h.length))
		finish(r, {-EPROTO, false, {}});
	else if (h.flags & call_head::bulk || h.length > options_.max_body)
		finish(r, {-EFBIG, false, {}});
	else
		finish(r, {status, true, {body.begin(), body.end()}});
}

void outgoing::read(std::uint64_t id, const address &from, const call_head &h,
		    std::span<const std::byte> descriptor, time_point deadline)
{
	std::shared_ptr<transfer> t;
	grant spent(results_, h.length);
	int status =
		spent ? transfer::make(domain_, static_cast<std::size_t>(h.length), t) : -ENOBUFS;
	if (status == 0) {
		t->spent = std::move(spent);
		status = t->read(domain_, messenger_, from, descriptor, deadline,
				 [this, id](std::vector<std::byte> &&bytes, int s) {
					 if (s)
						 end(id, {s, false, {}});
					 else
						 end(id, {0, true, std::move(bytes)});
				 });
	}
	if (status)
		end(id, {status, false, {}});
}

void outgoing::probed(endpoint &from, const call_head &h)
{
	record r;
	{
		std::lock_guard hold(lock_);
		const auto at = calls_.find(h.call);
		if (at == calls_.end() || at->second.to.get() != &from || at->second.reading)
			return;
		if (h.kind == call_kind::alive) {
			at->second.unknown = 0;
			return;
		}
		if (++at->second.unknown < 2)
			return;
		take(at, r);
	}
	finish(r, {-ECONNRESET, false, {}});
}

void outgoing::end_all(int status)
{
	table all;
	{
		std::lock_guard hold(lock_);
		closed_ = true;
		all.swap(calls_);
		due_.clear();
	}
	room_.notify_all();
	for (auto &[id, r] : all)
		finish(r, {status, false, {}});
}

void outgoing::settle()
{
	std::unique_lock hold(lock_);
	room_.wait(hold, [this] { return !busy_; });
}

void outgoing::has_left(std::uint64_t id)
{
	std::lock_guard hold(lock_);
	if (const auto at = calls_.find(id); at != calls_.end())
		at->second.sent = true;
}

// The first question that waits, without the one that is over. Under the lock.
bool outgoing::next_question(std::uint64_t &id, const endpoint_ptr &to)
{
	const auto at = questions_.find(to.get());
	const auto over = calls_.find(at->second.front());
	if (over != calls_.end())
		over->second.asking = false;
	do
		at->second.pop_front();
	while (!at->second.empty() && !calls_.contains(at->second.front()));
	if (at->second.empty()) {
		questions_.erase(at);
		return false;
	}
	id = at->second.front();
	return true;
}

// A peer that does not receive keeps one send buffer busy with questions.
void outgoing::ask(std::uint64_t id, const endpoint_ptr &to)
{
	for (bool more = true; more;) {
		call_head h;
		h.kind = call_kind::probe;
		h.call = id;
		std::array<std::byte, call_head::size> head;
		h.put(head.data());
		// If there is no room, the next question is soon enough.
		const int status = messenger_.post(
			*to, head,
			[this, id, to](int s) {
				if (!is_passing(s))
					end_unless_answered(id, s);
				std::uint64_t next;
				{
					std::lock_guard hold(lock_);
					if (!next_question(next, to))
						return;
				}
				ask(next, to);
			},
			clock::now() + options_.unread);
		if (status == 0)
			return;
		if (!is_passing(status))
			end_unless_answered(id, status);
		std::lock_guard hold(lock_);
		more = next_question(id, to);
	}
}

void outgoing::watch()
{
	const inside scope(owner_);
	std::unique_lock hold(lock_);
	while (!over_) {
		const time_point now = clock::now();
		if (due_.empty() || due_.begin()->first > now) {
			wake_ = due_.empty() ? never : due_.begin()->first;
			if (wake_ == never)
				changed_.wait(hold);
			else
				changed_.wait_until(hold, wake_);
			wake_ = time_point::min();
			continue;
		}
		const auto at = calls_.find(due_.begin()->second);
		const std::uint64_t id = at->first;
		busy_ = true;
		if (at->second.deadline <= now) {
			record r;
			take(at, r);
			hold.unlock();
			finish(r, {-ETIMEDOUT, false, {}});
			r = {}; // the end point may be the last reference
		} else {
			due_.erase(due_.begin());
			at->second.due = std::min(at->second.deadline, now + options_.probe);
			due_.emplace(at->second.due, id);
			// Before the request has left, its own status says more.
			const endpoint_ptr to = at->second.to;
			bool first = false;
			if (at->second.sent && !at->second.asking) {
				std::deque<std::uint64_t> &waiting = questions_[to.get()];
				first = waiting.empty();
				waiting.push_back(id);
				at->second.asking = true;
			}
			hold.unlock();
			if (first)
				ask(id, to);
		}
		hold.lock();
		busy_ = false;
		room_.notify_all();
	}
}

} // namespace coop::net::core
