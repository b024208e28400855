// SPDX-License-Identifier: MIT
// incoming.hpp - the requests of peers, and their answers.
//
// A request is in the table from its arrival until its answer has left or cannot leave. Everything
// that peers can make this side keep is bounded by that table and by the memory for long arguments
// and results. A long argument counts until the method has dropped the request. An answer that
// finds no send buffer waits in a queue; those queues together are no longer than the table.
//
// A long result keeps its request in the table until both its message and its transfer have ended.
//
// A message to a peer that does not receive keeps its send buffer until its deadline. So a peer has
// at most a share of them, and each message has a deadline. A peer's answers beyond its share wait
// in a queue of its own, and enter the common one when an earlier one has ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <initializer_list>
#include <map>
#include <mutex>
#include <unordered_map>

#include "coop/net/rpc.hpp"

#include "head.hpp"
#include "transfer.hpp"

namespace coop::net::core
{

class incoming;

/// Lets requests, which may outlive the rpc object, reach it while it exists.
class gate
{
public:
	explicit gate(incoming &to) : to_(to) {}

	/// @return what `f` returns, or -ECANCELED.
	template <class function> int pass(function f)
	{
		{
			std::lock_guard hold(lock_);
			if (closed_)
				return -ECANCELED;
			inside_++;
		}
		const leave there{*this};
		return f(to_);
	}
	/// Waits until no thread is inside.
	void close()
	{
		std::unique_lock hold(lock_);
		closed_ = true;
		left_.wait(hold, [this] { return inside_ == 0; });
	}

private:
	struct leave {
		gate &of;
		~leave()
		{
			std::lock_guard hold(of.lock_);
			if (--of.inside_ == 0)
				of.left_.notify_all();
		}
	};

	incoming &to_;
	std::mutex lock_;
	std::condition_variable left_;
	unsigned inside_ = 0;
	bool closed_ = false;
};

class request_state
{
public:
	request_state() = default;
	~request_state();
	request_state(const request_state &) = delete;
	request_state &operator=(const request_state &) = delete;

	std::shared_ptr<core::gate> gate;
	endpoint_ptr from;
	address whose;
	std::uint64_t id = 0;
	std::uint32_t method = 0;
	time_point deadline = never;
	std::vector<std::byte> bytes;
	grant spent; ///< for the bytes, if they came by bulk transfer
	std::atomic<bool> answered{false};
};

class incoming
{
public:
	incoming(domain &, messenger &, const rpc_options &, std::size_t eager);

	void serve(std::uint32_t method, rpc::method_handler);
	/// A handler for the request, which is in the table now; or empty.
	using accepted = std::shared_ptr<const rpc::method_handler>;
	/// Handles a request. `run` calls a method.
	using runner =
		std::function<void(const rpc::method_handler &, std::shared_ptr<request_state>)>;
	void take(endpoint &from, const call_head &, std::span<const std::byte> body,
		  const runner &run);
	void probed(endpoint &from, const call_head &);
	int answer(request_state &, int status, std::span<const std::byte>);
	/// The request ends without an answer; its caller will ask.
	void drop(const request_state &r) { release(r.from.get(), r.id); }
	/// There may be a free send buffer.
	void flush();
	/// The machine has ended: no answer leaves any more.
	void drop_all();
	/// Requests must not use it any more.
	void close() { gate_->close(); }

	std::atomic<std::uint64_t> served{0}, refused{0}, repeated{0}, unsent{0};

private:
	struct key {
		endpoint *from;
		std::uint64_t id;
		bool operator==(const key &) const = default;
	};
	struct hash {
		std::size_t operator()(const key &k) const
		{
			return std::hash<void *>()(k.from) ^ k.id * 0x9e3779b97f4a7c15u;
		}
	};
	/// The request leaves the table when nothing holds this any more; not if `from` is empty.
	/// Never dropped under the lock.
	struct leave_table {
		incoming &in;
		endpoint_ptr from;
		std::uint64_t id;
		~leave_table()
		{
			if (from)
				in.release(from.get(), id);
		}
	};
	using ending = std::shared_ptr<leave_table>;
	/// An answer, or what is sent instead.
	struct message {
		endpoint_ptr to;
		call_head head;
		std::vector<std::byte> body;
		time_point deadline;
		ending end;
	};

	struct peer {
		std::uint32_t requests = 0;
		std::uint32_t sending = 0; ///< messages under way or in ready_
		std::deque<message> queue; ///< not empty: `sending` is a full share
	};
	using table_of_peers = std::unordered_map<endpoint *, peer>;

	int admit(endpoint &from, const call_head &, accepted &out, grant &spent);
	void refuse(endpoint &from, std::uint64_t id, int status);
	void fetch(std::shared_ptr<request_state>, const accepted &, const call_head &,
		   std::span<const std::byte> descriptor, const runner &run);
	int try_answer(request_state &, int status, std::span<const std::byte>);
	int offer(request_state &, call_head &, std::span<const std::byte>);
	ending end_of(const request_state &);
	static int outcome(int status, const ending &);
	int send(const endpoint_ptr &to, const call_head &, std::span<const std::byte> body,
		 time_point deadline, ending);
	int send_or_drop(endpoint &to, const call_head &);
	int post(const endpoint_ptr &to, const call_head &, std::span<const std::byte> body,
		 time_point deadline, const ending &);
	void sent(endpoint *to);
	void forget_unused(table_of_peers::iterator);
	time_point latest(time_point deadline) const;
	void release(endpoint *from, std::uint64_t id);

	domain &domain_;
	messenger &messenger_;
	const rpc_options &options_;
	const std::size_t eager_;
	const std::uint32_t share_; ///< of the send buffers, for one peer
	const std::shared_ptr<gate> gate_;
	const std::shared_ptr<budget> bulk_;
	std::mutex lock_; // guards what follows
	std::map<std::uint32_t, accepted> methods_;
	std::unordered_map<key, endpoint_ptr, hash> requests_;
	table_of_peers peers_;
	std::deque<message> ready_; ///< wait for a send buffer
	bool flushing_ = false;     ///< a thread is in flush()
	bool again_ = false;        ///< and has to look once more
	bool over_ = false;         ///< no answer leaves any more
};

} // namespace coop::net::core
