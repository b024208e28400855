// SPDX-License-Identifier: MIT
// station.hpp - what the parts of a transfer machine share.
//
// The machine owns it: its state, the transport, the time, and notes of the work that a call leaves
// to the end of the hold. A transport is never called from inside one of its own calls, and is
// destroyed only by machine::settle(). Guarded by the lock of the machine, except for `state`,
// which changes under it.
#pragma once

#include <atomic>
#include <memory>

#include "coop/net/transfer_machine.hpp"
#include "domain_state.hpp"
#include "ticks.hpp"
#include "transport.hpp"

namespace coop::net::core
{

struct station {
	const std::shared_ptr<domain_state> domain;
	const bool places; // the core chooses where messages go
	std::atomic<tm_state> state{tm_state::initialized};
	std::unique_ptr<spi::transport_machine> transport; // null: it has ended

	// Notes for settle().
	bool over = false;    // the transport has stopped or failed: destroy it
	bool starved = false; // the transport found no receive buffer
	bool fill = false;    // the receive queue may be short
	// When `fill` is set.
	bool pooled = false;  // at the end of every receive operation, because there is a pool
	bool blocked = false; // at the end of any operation, because the queue limit binds

	// Notes for the moment after the hold.
	bool pool_below = false, pool_not_empty = false; // the pool's notifications

	explicit station(std::shared_ptr<domain_state> d) :
		domain(std::move(d)),
		places(domain->traits().places)
	{
	}
	bool operable() const { return state.load(std::memory_order_acquire) == tm_state::started; }
	/// Whether the transport may be called.
	bool live() const { return transport && !over; }

	// The time, read at most once in a hold.
	void begin_hold()
	{
		now_known_ = false;
		ticks_ = 0;
	}
	time_point now()
	{
		if (!now_known_) {
			now_ = clock::now();
			now_known_ = true;
		}
		return now_;
	}
	ticks stamp() { return ticks_ ? ticks_ : ticks_ = read_ticks(); }
	// Even an operation that began and ended in one turn took some time.
	ticks since(ticks begun) { return (stamp() != begun ? stamp() : read_ticks()) - begun; }

private:
	time_point now_{};
	bool now_known_ = false;
	ticks ticks_ = 0; // 0: not read
};

} // namespace coop::net::core
