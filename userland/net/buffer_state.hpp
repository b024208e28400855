// SPDX-License-Identifier: MIT
// buffer_state.hpp - what is behind a buffer.
//
// Whether it is queued is decided by one compare-and-swap, so that two threads and two
// machines cannot both have it. All else about an operation belongs to the machine that has
// the buffer, under its lock, until the final event has been handed out.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "coop/net/buffer.hpp"
#include "transport.hpp"

namespace coop::net::core
{

class buffer_state
{
public:
	/// @throw as buffer().
	buffer_state(std::shared_ptr<domain_state>, std::span<const segment>);
	~buffer_state();

	const std::shared_ptr<domain_state> domain;
	spi::memory memory;
	net::buffer *handle = nullptr; // where the program's object is; changes when it is moved

	/// @return whether the caller has it now.
	bool acquire() noexcept
	{
		bool idle = false;
		return queued_.compare_exchange_strong(idle, true, std::memory_order_acquire);
	}
	void let_go() noexcept { queued_.store(false, std::memory_order_release); }
	bool queued() const noexcept { return queued_.load(std::memory_order_acquire); }

	/// Of the last operation. Machine first: its lock makes the token's value certain.
	std::atomic<machine *> at{nullptr};
	std::atomic<spi::token> token{0};
	std::vector<std::byte> descriptor; // empty but for passive operations
	/// Messages of it, not its last, that deliver_all() has taken and whose handlers have not
	/// returned. Rises under the machine's lock; later events of the buffer wait for 0.
	std::atomic<std::uint32_t> in_hand{0};
	bool waits = false; // while a machine sorts events, under its lock: an earlier one does

	/// The pool's part; under its lock.
	struct pool_entry {
		pool_state *pool = nullptr;
		bool in = false;          // in the pool
		std::uint32_t colour = 0; // that it was got with, or no_colour
		time_point put;           // when it came back
		// Lists: of its colour, and of all with a colour or of all without.
		buffer_state *colour_next = nullptr, *colour_previous = nullptr;
		buffer_state *next = nullptr, *previous = nullptr;
	} pooled;

private:
	std::vector<segment> segments_;
	std::atomic<bool> queued_{false};
};

} // namespace coop::net::core
