// SPDX-License-Identifier: MIT
// readers.hpp - the readers of our passive buffers: whether those that began to read still do.
//
// A GET needs no session: requests of rpc/fetch come, and a DONE at the end. So nothing reports a
// reader that dies half-way, or a DONE that was lost with its session. This keeps the last reader
// of each operation, and says when to ask it (ASK), and what its answer means:
//
//   it does not answer, or has restarted       the operation ends with an error
//   it still reads, or its DONE is on its way  nothing: it has acknowledged the question
//   its DONE did not get through               it sends that again
//   it has given up                            the operation waits as if no one had begun
//
// An operation that was never read waits for its deadline. Owns the list of operations with a
// reader; bulk sends the questions. Used under the lock of the machine.
#pragma once

#include <cerrno>
#include <vector>

#include "operations.hpp"
#include "peers.hpp"
#include "userland/net/roster.hpp"

namespace coop::net::ud
{

class readers
{
public:
	explicit readers(operations &o) : operations_(o) {}

	/// This machine reads the operation.
	void began(std::uint32_t index, identity reader, std::uint64_t now)
	{
		if (begun_.empty())
			look_at_ = now + watch_every_us;
		begun_.join(
			index, [this](auto i) -> auto & { return operations_[i].begun_at; });
		operations_[index].reader = reader;
		operations_[index].asked = false;
	}
	/// The operation has no reader (any more).
	void left(std::uint32_t index)
	{
		begun_.leave(
			index, [this](auto i) -> auto & { return operations_[i].begun_at; });
		operations_[index].asked = false;
	}
	/// The last of its requests is over.
	void paused(std::uint32_t index, std::uint64_t now)
	{
		operations_[index].ask_at = now + watch_every_us;
	}
	std::uint64_t deadline() const { return begun_.empty() ? ~0ull : look_at_; }
	/// At the deadline: the operations whose readers are to be asked.
	void due(std::uint64_t now, std::vector<std::uint32_t> &out)
	{
		look_at_ = now + watch_every_us;
		for (const std::uint32_t index : begun_) {
			op &o = operations_[index];
			if (o.serving || now < o.ask_at)
				continue;
			o.ask_at = now + probe_every_us; // if it cannot be asked now
			out.push_back(index);
		}
	}
	/// The question is under way.
	void asked(std::uint32_t index)
	{
		operations_[index].asked = true;
		operations_[index].ask_at = ~0ull; // until that is over
	}
	/// The question about this operation was acknowledged, or not. @return the status that the
	/// operation ends with; 0: it goes on.
	int answered(std::uint32_t index, int err, std::uint64_t now)
	{
		op &o = operations_[index];
		if (!o.begun_at)
			return 0;
		o.ask_at = now + probe_every_us;
		if (!o.asked)
			return 0;         // it reads again
		if (err == -ECONNREFUSED) // the host is there, the machine is not
			return -ECONNRESET;
		// No session: its requests are all that was heard of it.
		if (err == -EHOSTDOWN || err == -EHOSTUNREACH)
			return -EHOSTDOWN;
		return 0; // it answers, or sessions ended under the question: ask again later
	}
	/// The reader has not read all: it says so. @return as answered().
	int gave_up(std::uint32_t index, outcome result, identity from)
	{
		op &o = operations_[index];
		if (!o.asked || !(from == o.reader))
			return 0;
		if (result == outcome::gone)
			return -ECONNRESET;
		left(index);
		return 0;
	}

private:
	operations &operations_;
	roster<std::uint32_t> begun_;
	std::uint64_t look_at_ = 0; // while there are some
};

} // namespace coop::net::ud
