// SPDX-License-Identifier: MIT
// storage_link.cpp - the table of calls: sent, sent again later, and ended by their deadlines.
#include "userland/client/storage_link.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <utility>

#include "userland/client/buffer_list.hpp"

namespace coop::client
{

namespace
{

constexpr std::chrono::milliseconds expiry_interval{100};
// Requests reserved for urgent calls, on which other clients wait: they must not queue behind calls
// that wait for other clients.
constexpr std::uint32_t urgent_most = 8;
constexpr std::size_t deferred_max = 32; // calls deferred at a time

} // namespace

namespace
{

bool changes_names(std::uint16_t op)
{
	switch (op) {
	case COOP_ST_CREATE:
	case COOP_ST_MKDIR:
	case COOP_ST_MKNOD:
	case COOP_ST_LINK:
	case COOP_ST_SYMLINK:
	case COOP_ST_UNLINK:
	case COOP_ST_RMDIR:
	case COOP_ST_RENAME:
		return true;
	default:
		return false;
	}
}

bool changes_attributes(std::uint16_t op)
{
	return op == COOP_ST_SETATTR || op == COOP_ST_SETXATTR || op == COOP_ST_REMOVEXATTR;
}

handle handle_of(const coop_st_bytes &b)
{
	return {reinterpret_cast<const char *>(b.p), b.len};
}

} // namespace

std::shared_ptr<storage_link::call> storage_link::make(std::uint16_t op,
						       const coop_st_body &body) const
{
	std::uint8_t buf[COOP_ST_HEADER + COOP_ST_BODY_MAX];
	const int len = coop_st_body_put(&body, coop_st_request_fields(op), buf + COOP_ST_HEADER,
					 COOP_ST_BODY_MAX);
	if (len < 0)
		return nullptr;
	auto c = std::make_shared<call>();
	c->op = op;
	if (changes_names(op) || changes_attributes(op))
		c->changes[0] = handle_of(body.fh);
	if (op == COOP_ST_RENAME)
		c->changes[1] = handle_of(body.fh2);
	c->frame.assign(reinterpret_cast<const char *>(buf),
			COOP_ST_HEADER + static_cast<std::size_t>(len));
	c->begun = clock::now();
	c->asked = boot_clock::now();
	c->kept_on = op == COOP_ST_CLOSE || op == COOP_ST_UNLOCK;
	c->deadline = c->kept_on ? clock::time_point::max() : deadline_of(*c);
	return c;
}

bool storage_link::trusted() const
{
	return heard_ && boot_clock::now() - heard() < options_.trust;
}

storage_link::clock::time_point storage_link::deadline_of(const call &c) const
{
	return options_.timeout_ms ? c.begun + std::chrono::milliseconds(options_.timeout_ms)
				   : clock::time_point::max();
}

bool storage_link::full_locked(const call &c) const
{
	const bool keeps = options_.leases && !c.urgent && window_ > 2 * urgent_most;
	return in_flight_ >= (keeps ? window_ - urgent_most : window_);
}

// Enters the call into the table, and sends it if the connection has room. Returns the connection's
// epoch or 0.
std::uint64_t storage_link::enter_locked(const std::shared_ptr<call> &c)
{
	c->id = ++last_id_;
	coop_st_header h{};
	h.op = c->op;
	h.body_len = static_cast<u32>(c->frame.size() - COOP_ST_HEADER);
	h.data_len = static_cast<u32>(length_of(c->source));
	h.id = c->id;
	h.flags = options_.leases ? COOP_ST_F_LEASE : 0;
	coop_st_header_put(&h, reinterpret_cast<u8 *>(c->frame.data()));
	calls_.emplace(c->id, c);
	if (!epoch_ || full_locked(*c))
		return 0;
	in_flight_++;
	c->handed = false;
	return c->epoch = epoch_;
}

// The same for deferred calls; those to be sent go to 'out'.
std::uint64_t storage_link::enter_deferred_locked(calls &out)
{
	for (auto &c : deferred_)
		if (enter_locked(c))
			out.push_back(std::move(c));
	deferred_.clear();
	return epoch_;
}

void storage_link::submit(std::shared_ptr<call> c)
{
	calls out;
	std::uint64_t epoch = 0;
	{
		std::lock_guard lock(mutex_);
		if (!deferred_.empty())
			epoch = enter_deferred_locked(out);
		if (enter_locked(c)) {
			epoch = epoch_;
			out.push_back(std::move(c));
		}
	}
	if (!out.empty())
		transmit(out, epoch);
}

void storage_link::submit_later(std::shared_ptr<call> c)
{
	calls out;
	std::uint64_t epoch = 0;
	{
		std::lock_guard lock(mutex_);
		deferred_.push_back(std::move(c));
		if (deferred_.size() < deferred_max)
			return;
		epoch = enter_deferred_locked(out);
	}
	if (!out.empty())
		transmit(out, epoch);
}

bool storage_link::send_all(std::vector<iovec> v)
{
	while (!v.empty()) {
		struct msghdr m = {};
		m.msg_iov = v.data();
		m.msg_iovlen = std::min<std::size_t>(v.size(), 512);
		const ssize_t n = ::sendmsg(fd_, &m, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		tx_bytes_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
		advance(v, static_cast<std::size_t>(n));
	}
	return true;
}

void storage_link::transmit(std::span<const std::shared_ptr<call>> what, std::uint64_t epoch)
{
	std::lock_guard lock(send_mutex_);
	if (epoch == send_epoch_) { // otherwise the connection is lost; the next one sends them
		std::vector<iovec> v;
		for (const auto &c : what) {
			v.push_back({c->frame.data(), c->frame.size()});
			v.insert(v.end(), c->source.begin(), c->source.end());
		}
		if (!send_all(std::move(v)))
			::shutdown(fd_, SHUT_RDWR); // the connection's thread will notice
	}
	for (const auto &c : what)
		c->handed = true;
}

// Sends waiting calls, as far as the daemon's window permits.
void storage_link::pump()
{
	for (;;) {
		std::shared_ptr<call> next;
		{
			std::lock_guard lock(mutex_);
			if (!epoch_ || in_flight_ >= window_ || in_flight_ >= calls_.size())
				return;
			for (auto &[id, c] : calls_) {
				if (!c->epoch && !full_locked(*c)) {
					next = c;
					break;
				}
			}
			if (!next)
				return;
			next->epoch = epoch_;
			in_flight_++;
			if (next->repeated) {
				coop_st_header h;
				auto *p = reinterpret_cast<u8 *>(next->frame.data());
				if (!coop_st_header_get(&h, p)) {
					h.flags |= COOP_ST_F_REPEAT;
					coop_st_header_put(&h, p);
				}
			}
		}
		transmit({&next, 1}, next->epoch);
	}
}

void storage_link::complete(const std::shared_ptr<call> &c, outcome &o)
{
	done_calls_.fetch_add(1, std::memory_order_relaxed);
	if (c->epoch && c->epoch == epoch_ && o.err != -ETIMEDOUT && o.err != -ESHUTDOWN)
		heard_ = std::max<boot_clock::rep>(heard_, c->asked.time_since_epoch().count());
	o.repeated = c->repeated;
	o.run = run_.verifier;
	note_changes(*c, o);
	c->done(o);
}

// Storage may have made, or still make, the change of a call that ends without a reply.
void storage_link::note_changes(const call &c, const outcome &o)
{
	const bool unknown = c.epoch && (o.err == -ETIMEDOUT || o.err == -EINTR);
	if (c.changes[0].empty() || (o.err && !unknown))
		return;
	if (changes_attributes(c.op)) {
		if (o.body && S_ISDIR(o.body->attr.mode))
			names_.changed(c.changes[0], o.run, o.body->verifier);
		return;
	}
	names_.changed(c.changes[0], o.run);
	if (!c.changes[1].empty() && c.changes[1] != c.changes[0])
		names_.changed(c.changes[1], o.run);
}

// Takes a call that the daemon could not serve yet out of the table; expire() sends it again.
// False: as for deliver().
bool storage_link::postpone(const coop_st_header &h)
{
	std::shared_ptr<call> left;
	{
		std::lock_guard lock(mutex_);
		auto it = calls_.find(h.id);
		if (it == calls_.end())
			return true; // it had timed out
		if (it->second->op != h.op || it->second->epoch != epoch_)
			return false;
		it->second->epoch = 0;
		it->second->repeated = false;
		if (it->second->abandoned && !it->second->kept_on)
			left = std::move(it->second); // not executed, and no caller waits
		else
			postponed_.push_back(std::move(it->second));
		calls_.erase(it);
		in_flight_--;
	}
	if (left) {
		outcome o;
		o.err = -EAGAIN;
		complete(left, o);
	}
	pump();
	return true;
}

void storage_link::expire(bool all)
{
	const auto now = clock::now();
	if (!all && now < next_expiry_)
		return;
	next_expiry_ = now + expiry_interval;
	calls late, deferred;
	std::vector<std::function<void(outcome &)>> left;
	std::uint64_t epoch;
	{
		std::lock_guard lock(mutex_);
		for (auto &c : postponed_) {
			const bool over = c->deadline <= now && !c->kept_on;
			(over ? late : deferred_).push_back(std::move(c));
		}
		postponed_.clear();
		epoch = enter_deferred_locked(deferred);
		for (auto it = calls_.begin(); it != calls_.end();) {
			call &c = *it->second;
			if (!all && c.epoch && !c.handed) {
				++it; // its thread is still sending it
			} else if (!all && c.deadline <= now && c.orphan &&
				   (c.epoch || c.repeated || c.kept_on)) {
				left.push_back(abandon(c));
				++it;
			} else if (all || c.deadline <= now) {
				if (c.epoch && c.epoch == epoch_)
					in_flight_--;
				late.push_back(it->second);
				it = calls_.erase(it);
			} else {
				++it;
			}
		}
	}
	if (!deferred.empty() && !all)
		transmit(deferred, epoch);
	for (auto &done : left) {
		outcome o;
		o.err = -ETIMEDOUT;
		done(o);
	}
	for (auto &c : late) {
		outcome o;
		o.err = all ? -ESHUTDOWN : -ETIMEDOUT;
		complete(c, o);
	}
}

void storage_link::run()
{
	for (;;) {
		{
			std::lock_guard lock(mutex_);
			if (stop_)
				break;
		}
		bool idle;
		{
			const std::lock_guard receiving(receive_mutex_);
			if (fd_ < 0)
				reconnect();
			else if (!receive())
				lost();
			expire(false);
			if (options_.on_tick)
				options_.on_tick();
			idle = fd_ >= 0 && drained_ && have_ == used_;
		}
		if (idle)
			wait_for_input();
	}
	const std::lock_guard receiving(receive_mutex_);
	expire(true);
}

void storage_link::opened(std::uint64_t id, open_record r)
{
	std::lock_guard lock(mutex_);
	opens_.insert_or_assign(id, std::move(r));
}

bool storage_link::goes_with(std::uint64_t id, std::uint64_t other)
{
	std::lock_guard lock(mutex_);
	const auto it = opens_.find(id);
	if (it == opens_.end() || !opens_.contains(other))
		return false;
	it->second.with = other;
	return true;
}

void storage_link::closed(std::uint64_t id)
{
	locks_.closed(id);
	std::lock_guard lock(mutex_);
	opens_.erase(id);
}

std::uint64_t storage_link::writable_open(const handle &fh, uid_t uid, bool anyone)
{
	std::lock_guard lock(mutex_);
	std::uint64_t others = 0;
	for (const auto &[id, o] : opens_)
		if (o.fh == fh && o.flags & COOP_ST_O_WRITE) {
			if (o.who.uid == uid)
				return id;
			others = id;
		}
	return anyone ? others : 0;
}

node_ability storage_link::registered(const coop_addr &a, const node_ability *can)
{
	std::lock_guard lock(mutex_);
	addr_ = a;
	has_addr_ = true;
	if (can)
		ability_ = *can;
	return ability_;
}

void storage_link::unregistered()
{
	std::lock_guard lock(mutex_);
	has_addr_ = false;
}

std::optional<coop_st_body> storage_link::self() const
{
	std::lock_guard lock(mutex_);
	if (!has_addr_)
		return std::nullopt;
	return join_body(addr_, ability_);
}

void storage_link::forget_nodes()
{
	while (!nodes_.empty())
		tell({false, *nodes_.begin(), {}});
}

coop_st_body storage_link::join_body(const coop_addr &addr, const node_ability &can)
{
	coop_st_body b{};
	b.addr = addr;
	b.flags = COOP_ST_JOIN_NAMED | (can.forwards ? 0 : COOP_ST_JOIN_LEAF);
	b.count = can.mbps;
	return b;
}

std::vector<storage::waiting> storage_link::waiting() const
{
	std::vector<storage::waiting> out;
	const auto now = clock::now();
	const auto tell = [&](const call &c) {
		const auto age =
			std::chrono::duration_cast<std::chrono::microseconds>(now - c.begun);
		out.push_back({c.id, coop_st_op_name(c.op),
			       c.abandoned ? "abandoned"
			       : c.epoch   ? "sent"
					   : "queued",
			       static_cast<std::uint64_t>(std::max(age, age.zero()).count())});
	};
	const std::lock_guard lock(mutex_);
	for (const auto &[id, c] : calls_)
		tell(*c);
	for (const auto &c : deferred_)
		tell(*c);
	for (const auto &c : postponed_)
		tell(*c);
	return out;
}

storage::traffic storage_link::stats() const
{
	return {tx_bytes_, rx_bytes_, rx_data_, done_calls_, reconnects_, connected_, taken_};
}

} // namespace coop::client
