// SPDX-License-Identifier: MIT
// receives.hpp - the receive buffers of a machine, which the module fills.
//
// The module writes messages one after another into a buffer, and several may be under way at a
// time, so they need not complete in order. The core drops a buffer that is full: so a message that
// would fill it waits here until the module is done with the buffer.
//
// A message to this machine itself needs a buffer that the module does not have: the first one is
// taken back, and what is left of it is given to the module again. Used under the lock of the
// machine.
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
	receives(handles &, rings &, spi::sink &);

	/// Takes a buffer, whose memory the module knows by this number.
	int add(spi::token, const spi::transfer &, std::uint32_t buffer);
	/// @return false: it is not here.
	bool cancel(spi::token);
	/// A message is in the buffer with this handle.
	void received(const coop_net_event &, spi::peer_number from);
	/// The module is done with it.
	void over(const coop_net_event &);
	/// A message to this machine itself. @return as spi::sink::place().
	int deliver(const ud::op &);
	/// What was taken back for such messages goes to the module again.
	void give_back();
	/// Some buffer is here, or has just been added.
	bool has_home() const { return home_ != 0; }

private:
	enum class where : std::uint8_t { module, coming, home };
	struct message {
		std::size_t offset, length;
		spi::peer_number from;
	};
	struct receive {
		spi::token token = 0;
		spi::memory memory;
		std::size_t size = 0;   // that may be filled
		std::size_t base = 0;   // where the module's piece begins
		std::size_t filled = 0; // the end of the furthest message
		std::size_t min_size = 0;
		std::uint32_t left = 0; // messages that it may take
		std::uint32_t buffer = 0, handle = handles::none;
		where at = where::home;
		bool cancelled = false;
		bool closed = false; // the core has dropped it
		std::vector<message> late;
	};
	using place = std::list<receive>::iterator;

	bool full(const receive &r) const { return r.left == 0 || r.size - r.filled < r.min_size; }
	void give(receive &);
	void report(receive &, const message &);
	void take_home(receive &);
	void remove(place);
	void finish(place, int status);

	handles &handles_;
	rings &rings_;
	spi::sink &sink_;
	std::list<receive> all_; // the module fills the first first
	std::unordered_map<spi::token, place> by_token_;
	std::vector<place> by_handle_;
	std::size_t home_ = 0; // how many are here
};

} // namespace coop::net::kernel
