// SPDX-License-Identifier: MIT
// outbox.hpp - messages on their way out, of programs and of bulk.
//
// Owns the queues in which operations wait: for the address of their peer, for a place at rpc/chan,
// and, if they are for this machine itself, for a receive buffer. Messages of programs end here.
// For bulk, next() reports operations whose peer's address is known or cannot be found, and bulk
// messages that have arrived or cannot: so bulk calls the outbox, never the reverse.
// Used under the lock of the machine.
#pragma once

#include <deque>
#include <vector>

#include "message_engine.hpp"
#include "operations.hpp"
#include "peers.hpp"
#include "userland/net/lanes.hpp"

namespace coop::net::ud
{

class outbox
{
public:
	outbox(operations &, peers &, message_engine &);

	/// Takes a message of a program.
	void submit(std::uint32_t index, std::uint64_t now);
	/// Moves an operation on as soon as the address of its peer is known: sends its message, or
	/// its bulk message if `sending`, or reports it.
	void go(std::uint32_t index, std::uint64_t now);
	/// What does not end by itself. @return false: it is not here.
	bool cancel(std::uint32_t index, std::uint64_t now);
	/// rpc/chan has sent a message, or given it up.
	void sent(const coop_chan_ev &, std::uint64_t now);
	/// What waits for the address of this peer goes on, or ends with this status.
	void wake(spi::peer_number, int status, std::uint64_t now);
	/// The number is about to be reused.
	void forget(spi::peer_number n) { wake(n, -ECANCELED, 0); }

	struct report {
		std::uint32_t index;
		int status;
	};
	/// What bulk must know.
	bool next(report &r)
	{
		if (reports_.empty())
			return false;
		r = reports_.front();
		reports_.pop_front();
		return true;
	}

	/// Messages to this machine itself go on: there is a receive buffer, or the deadline is
	/// over.
	void loop(std::uint64_t now);
	std::uint64_t deadline() const
	{
		return loop_.empty() || here_ != none
			       ? ~0ull
			       : operations_[loop_.front()].since + loop_patience_us;
	}

private:
	static constexpr std::uint32_t none = operations::none;
	/// How long a message to ourselves waits for a buffer; about what rpc/chan grants others.
	static constexpr std::uint64_t loop_patience_us = 700000;

	/// Linked by op::ahead and op::behind, so that one can leave from within.
	struct queue {
		std::uint32_t first = none, last = none;
	};

	void wait(std::uint32_t index, std::uint64_t now);
	void leave(std::uint32_t index);
	void send(std::uint32_t index, std::uint64_t now);
	void over(std::uint32_t index, int err);
	void end_loop(int err);
	void delivered(int err, std::uint64_t now);

	operations &operations_;
	peers &peers_;
	message_engine &chan_;
	std::vector<queue> waiting_; // for an address, by peer number
	lanes<std::deque<std::uint32_t>> line_;
	std::deque<std::uint32_t> loop_;
	std::uint32_t here_ = none; // the first of loop_, if the engine has it
	bool again_ = false;        // loop() was called meanwhile
	std::deque<report> reports_;
};

} // namespace coop::net::ud
