// SPDX-License-Identifier: MIT
// receives.hpp - the receive buffers of a machine, which the module fills.
//
// The module writes messages one after another into a buffer, and several may be under way at a
// time, so they need not complete in order. The core drops a buffer that is full: so a message that
// would fill it waits here until the module is done with the buffer. Messages of this machine to
// itself are among them. Used under the lock of the machine.
#pragma once

#include <list>
#include <unordered_map>
#include <vector>

#include "handles.hpp"
#include "rings.hpp"
#include "userland/net/ud/operations.hpp"

namespace coop::net::kernel
{

class receives
{
public:
	/// `own`: the address of this machine.
	receives(handles &, rings &, const address &own, spi::sink &);

	/// Takes a buffer, whose memory the module knows by this number.
	int add(spi::token, const spi::transfer &, std::uint32_t buffer);
	/// @return false: it is not here.
	bool cancel(spi::token);
	/// A message is in the buffer with this handle. `from` counts unless it is our own.
	void received(const coop_net_event &, spi::peer_number from);
	/// The module is done with it.
	void over(const coop_net_event &);
	/// Gives the module what it does not have yet.
	void give();
	/// Some buffer has just been added.
	bool has_home() const { return home_ != 0; }

private:
	struct message {
		std::size_t offset, length;
		spi::peer_number from;
		bool own; // of this machine itself, whose number is held
	};
	struct receive {
		spi::token token = 0;
		spi::memory memory;
		std::size_t size = 0;   // that may be filled
		std::size_t filled = 0; // the end of the furthest message
		std::size_t min_size = 0;
		std::uint32_t left = 0; // messages that it may take
		std::uint32_t buffer = 0, handle = handles::none;
		bool home = true; // the module does not have it
		bool cancelled = false;
		bool closed = false; // the core has dropped it
		std::vector<message> late;
	};
	using place = std::list<receive>::iterator;

	bool full(const receive &r) const { return r.left == 0 || r.size - r.filled < r.min_size; }
	void give(receive &);
	void report(receive &, const message &);
	void finish(place, int status);

	handles &handles_;
	rings &rings_;
	const address &own_;
	spi::sink &sink_;
	std::list<receive> all_; // the module fills the first first
	std::unordered_map<spi::token, place> by_token_;
	std::vector<place> by_handle_;
	std::size_t home_ = 0;       // how many are here
	std::size_t unreported_ = 0; // own messages
};

} // namespace coop::net::kernel
