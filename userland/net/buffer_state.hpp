// SPDX-License-Identifier: MIT
// buffer_state.hpp - the implementation of a buffer.
//
// One compare-and-swap decides whether a buffer is queued, so two threads or two machines cannot
// both have it. All other state of an operation belongs to the machine that has the buffer, under
// its lock, until the final event has been delivered.
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
	net::buffer *handle = nullptr; // the program's object; changes when it is moved

	/// @return whether the caller has acquired it.
	bool acquire() noexcept
	{
		bool idle = false;
		return queued_.compare_exchange_strong(idle, true, std::memory_order_acquire);
	}
	void let_go() noexcept { queued_.store(false, std::memory_order_release); }
	bool queued() const noexcept { return queued_.load(std::memory_order_acquire); }

	/// Of the last operation. Read `at` first: that machine's lock protects the token.
	std::atomic<machine *> at{nullptr};
	std::atomic<spi::token> token{0};
	std::vector<std::byte> descriptor; // empty except for passive operations
	/// Events of this buffer, not the final one, that deliver_all() has taken and whose
	/// handlers have not returned. Rises under the machine's lock; later events of the buffer
	/// wait until it is 0.
	std::atomic<std::uint32_t> in_hand{0};
	bool waits =
		false; // while a machine sorts events, under its lock: an earlier event of it waits

	/// The pool's part; under the pool's lock.
	struct pool_entry {
		pool_state *pool = nullptr;
		bool in = false;          // in the pool
		std::uint32_t colour = 0; // the colour that it was taken with, or no_colour
		time_point put;           // when it was returned
		// Links of the lists: of its colour, and of all with a colour or of all without.
		buffer_state *colour_next = nullptr, *colour_previous = nullptr;
		buffer_state *next = nullptr, *previous = nullptr;
	} pooled;

private:
	std::vector<segment> segments_;
	std::atomic<bool> queued_{false};
};

} // namespace coop::net::core
