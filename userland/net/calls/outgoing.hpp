// SPDX-License-Identifier: MIT
// outgoing.hpp - the calls that this side has made.
//
// The thread that takes a call out of the table ends it, so each ends exactly once, whatever
// races: answer, failed send, deadline, end of the peer, stop. A thread of its own, started by the
// first call, watches deadlines, and asks peers that are silent whether they still know the call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "coop/net/rpc.hpp"

#include "head.hpp"
#include "transfer.hpp"

namespace coop::net::core
{

class outgoing
{
public:
	/// `owner`: whose callbacks these are.
	outgoing(domain &, messenger &, const rpc_options &, std::size_t eager, const void *owner);
	~outgoing();

	int begin(const destination &to, std::uint32_t method, std::span<const std::byte>,
		  rpc::completion, time_point deadline);
	/// Waits until there may be another call.
	int wait_room(time_point deadline);
	void answered(endpoint &from, const call_head &, std::span<const std::byte> body);
	void probed(endpoint &from, const call_head &);
	/// Ends all calls; no other begins.
	void end_all(int status);
	/// Waits until no callback runs on the other thread.
	void settle();

	std::atomic<std::uint64_t> calls{0}, late{0};

private:
	struct record {
		endpoint_ptr to;
		rpc::completion done;
		time_point deadline, due;
		std::shared_ptr<transfer> argument;
		bool sent = false;    ///< the peer has the request; a question would arrive later
		bool reading = false; ///< the answer has come, its bytes are still being read
		bool asking = false;  ///< it is in questions_
		unsigned unknown = 0; ///< times that the peer did not know it
	};
	using table = std::unordered_map<std::uint64_t, record>;

	int insert(record &&, std::uint64_t &id);
	int send(std::uint64_t id, endpoint &to, std::uint32_t method, std::span<const std::byte>,
		 time_point deadline);
	int offer(std::uint64_t id, endpoint &to, std::span<const std::byte>, time_point deadline,
		  std::shared_ptr<transfer> &out);
	bool take(table::iterator, record &out);
	void end(std::uint64_t id, call_result &&);
	void end_unless_answered(std::uint64_t id, int status);
	void finish(record &, call_result &&);
	void read(std::uint64_t id, const address &from, const call_head &,
		  std::span<const std::byte> descriptor, time_point deadline);
	void watch();
	void has_left(std::uint64_t id);
	void ask(std::uint64_t id, const endpoint_ptr &);
	bool next_question(std::uint64_t &id, const endpoint_ptr &);

	domain &domain_;
	messenger &messenger_;
	const rpc_options &options_;
	const std::size_t eager_;
	const void *const owner_;
	const std::shared_ptr<budget> results_; ///< that are being read
	std::mutex lock_;                       // guards what follows
	std::condition_variable changed_, room_;
	table calls_;
	std::set<std::pair<time_point, std::uint64_t>> due_;
	/// One question to a peer is under way, the first; those behind it wait.
	std::unordered_map<endpoint *, std::deque<std::uint64_t>> questions_;
	time_point wake_ = never; ///< until when the thread sleeps
	std::uint64_t next_;
	unsigned waiting_ = 0;
	bool closed_ = false, over_ = false, busy_ = false;
	std::thread thread_;
};

} // namespace coop::net::core
