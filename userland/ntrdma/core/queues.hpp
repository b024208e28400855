// SPDX-License-Identifier: MIT
// queues.hpp - completion queues and shared receive queues.
//
// A completion queue holds nothing: completions stay in the rings of the queue pairs until they
// are polled, and polling goes round the queue pairs. It therefore cannot overflow. A shared
// receive queue is a ring from which queue pairs take requests in order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "userland/ntrdma/core/types.hpp"

namespace coop::ntrdma
{

class queue_pair;
class completion_queue;
class shared_receives;

/// What happens to a queue pair that its application may want to know of.
enum class event : std::uint8_t {
	lost,           // the peer died, stopped or broke the protocol
	refused_access, // a peer's request failed the checks of the tables
	established,    // the link is up
	last_receive,   // failed, and takes no more of its shared receive queue
};

/// Who is told. Called under the device's lock: it may only take notes.
class watcher
{
public:
	virtual ~watcher() = default;
	virtual void completed(completion_queue &) = 0;
	virtual void happened(queue_pair &, event) = 0;
	virtual void few_receives(shared_receives &) = 0;
};

class completion_queue
{
public:
	enum class arm : std::uint8_t { none, solicited, any };

	explicit completion_queue(watcher &w) : watcher_{w} {}

	/// A queue pair counts twice if it uses this for both its queues.
	void add(queue_pair &);
	void remove(queue_pair &);
	bool in_use() const { return !pairs_.empty(); }
	/// How many completions are there to be polled.
	std::size_t waiting() const;

	/// False if poll() would find nothing, and make no progress.
	bool stirs() const;
	/// Stores completions in `out`; returns how many.
	std::size_t poll(std::span<completion> out);
	/// `ending` is about to fail because its peer left: what the others' peers stored until now
	/// is taken, and all successes until now are polled before any failure.
	void catch_up(const queue_pair &ending);
	/// True if a queue pair has work left for its next progress().
	bool unfinished() const;
	/// The watcher is told once of a completion (a solicited one, or a failure), at once if one
	/// is there that was not polled: a program may take one completion for an event, and
	/// devices compare with what was polled. So an event may find nothing, as by a device.
	void request_notice(arm a);
	bool armed() const { return armed_ != arm::none; }
	/// A completion was stored in a queue pair's ring.
	void note(bool solicited);

	void *owner = nullptr; // the host's object

private:
	struct member {
		queue_pair *pair;
		unsigned uses;
	};
	watcher &watcher_;
	std::size_t go_round(std::span<completion> out);

	std::vector<member> pairs_;
	std::size_t next_ = 0;
	std::size_t first_ = 0; // so many completions, at most, come before failures
	arm armed_ = arm::none;
};

class shared_receives
{
public:
	shared_receives(watcher &, std::uint32_t domain, std::uint32_t depth);

	std::uint32_t domain() const { return domain_; }
	std::uint32_t depth() const { return depth_; }
	std::uint32_t limit() const { return limit_; }
	/// Tells the watcher once when fewer than `limit` requests are left; 0 disarms.
	void set_limit(std::uint32_t limit);
	/// 0, or -ENOMEM if it is full.
	int post(const recv_request &);
	bool empty() const { return post_ == take_; }
	void take(recv_request &);
	/// Queue pairs that wait for a request here are served again by the host.
	std::uint32_t posted() const { return post_; }

	void *owner = nullptr; // the host's object
	std::vector<queue_pair *> pairs;

private:
	watcher &watcher_;
	std::uint32_t domain_, depth_, limit_ = 0;
	std::uint32_t post_ = 0, take_ = 0;
	std::vector<recv_request> ring_;
};

} // namespace coop::ntrdma
