// SPDX-License-Identifier: MIT
// rings.hpp - the rings of operations and of events, from the side of the process (msg/abi.h).
//
// An operation that finds its ring full waits here, in order, until submit(). Does not own the
// memory of the rings. Used under the lock of the machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "msg/abi.h"

namespace coop::net::kernel
{

class rings
{
public:
	virtual ~rings() = default;

	// Operations.
	void push(const coop_net_op &);
	void cancel(std::uint32_t handle);
	/// Passes on what was pushed, and wakes the module if it sleeps.
	void submit();

	// Events.
	/// The next one, which is then free.
	bool next(coop_net_event &);
	bool empty() const { return taken_ == load(rings_->event_tail, std::memory_order_acquire); }
	/// 0, or why the module has given the machine up; events that came before are still there.
	int failure() const;
	/// The program polls, so the module shall stay awake.
	void polls(bool on) { rings_->polls = on; }

protected:
	/// Where the rings are, with so many entries: powers of two.
	void use(coop_net_rings *, coop_net_op *, std::uint32_t ops, const coop_net_event *,
		 std::uint32_t events);

private:
	/// The module takes what is in the ring, as far as it has room for events.
	virtual void enter() = 0;
	static std::uint32_t load(const std::uint32_t &at, std::memory_order order)
	{
		return std::atomic_ref(const_cast<std::uint32_t &>(at)).load(order);
	}
	bool place(const coop_net_op &);

	coop_net_rings *rings_ = nullptr;
	coop_net_op *ops_ = nullptr;
	const coop_net_event *events_ = nullptr;
	std::uint32_t n_ops_ = 0, n_events_ = 0;
	std::uint32_t put_ = 0, taken_ = 0; // own indices
	std::deque<coop_net_op> behind_;    // the ring was full
};

} // namespace coop::net::kernel
