// SPDX-License-Identifier: MIT
// receive_queue.hpp - the receive queue: where messages go, and its buffers from the pool.
//
// If the transport lets the core choose, messages are packed one after another into the oldest open
// buffer. A piece is reserved when a message begins to arrive; the messages may complete in any
// order. A buffer is shut when it has room for no further message, and ends with the last of its
// pieces. A buffer that has taken messages and has no room for the next one is retired, so that it
// does not block those after it.
//
// Owns the list of open buffers and the use of the pool, under the lock of the machine; the deficit
// may be read without.
#pragma once

#include <atomic>

#include "operations.hpp"
#include "pool_state.hpp"

namespace coop::net::core
{

class receive_queue
{
public:
	receive_queue(station &, operations &, peers &, delivery &, machine &home);

	// The pool; constant from start() on.
	pool_state *pool = nullptr;
	buffer_handler *handler = nullptr;
	std::size_t min_size = 0;
	std::uint32_t max_msgs = 0, length = 2, colour = 0;

	std::uint32_t deficit() const { return deficit_.load(); }
	/// No buffer is missing any more: the queue is full, or the machine ends.
	void end_deficit() { set_deficit(0); }
	/// Fills the queue from the pool, if the machine has one and is started.
	void fill();

	/// A receive operation that takes messages.
	void open(slot &);
	bool any_open() const { return open_.count() != 0; }
	/// Ends a receive operation early; others may still be arriving in it.
	void cancel(slot &, int reason);
	/// The transport uses no memory any more.
	void drop(slot &);

	// As in spi::sink.
	int place(std::size_t length, spi::landing &out);
	void received(const spi::landing &, spi::peer_number from);
	int receive(const void *, std::size_t length, spi::peer_number from);
	void abandon(const spi::landing &);
	bool received_in(spi::token, std::size_t offset, std::size_t length, spi::peer_number from);

private:
	static bool has_room(const slot &);
	int find_room(std::size_t length, slot *&out);
	void reserve(slot &, std::size_t length);
	void shut(slot &);
	slot *landing_of(const spi::landing &);
	void message(slot &, std::size_t offset, std::size_t length, spi::peer_number, bool last);
	void set_deficit(std::uint32_t);
	int add_pooled(buffer_state &);

	station &station_;
	operations &operations_;
	peers &peers_;
	delivery &delivery_;
	machine &home_;
	slot_list open_;             // receive operations that take messages
	std::uint32_t own_open_ = 0; // of them, those that are not of the pool
	std::atomic<std::uint32_t> deficit_{0};
	pool_state::short_list::iterator short_at_; // valid while there is a deficit
};

} // namespace coop::net::core
