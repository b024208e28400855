// SPDX-License-Identifier: MIT
// operations.hpp - operations from add() to their final event.
//
// Owns the slots, the queues, the deadlines and the statistics, under the lock of the machine. An
// operation is in a slot from add() until it ends. Every way to end it (the transport, a deadline
// that the transport has obeyed, stop) goes through forget(), once: the slot's generation changes
// there, so a second report finds no slot of its token.
//
// Knows the peers and the delivery of events; the receive queue is above it.
#pragma once

#include <array>
#include <vector>

#include "deadlines.hpp"
#include "delivery.hpp"
#include "random.hpp"
#include "slots.hpp"

namespace coop::net::core
{

struct descriptor;

class operations
{
public:
	operations(station &, peers &, delivery &, machine &home);
	/// Of the machine, as descriptors name it.
	void set_address(const address &a) { own_ = a; }

	/// Adds the operation and submits it. @return 0 or -errno. Messages of a receive operation
	/// may go where the core chooses: then it is not submitted, and `placed` is set.
	int add(buffer_state &, const operation &, bool pooled, slot *&placed);
	slot *find(spi::token t) { return slots_.find(t); }
	spi::token token_of(const slot &s) const { return slots_.token_of(s); }
	/// The operation that has the buffer, or null.
	slot *of(const buffer_state &);
	slot_list &queue(queue_type q) { return queues_[static_cast<std::size_t>(q)]; }
	const slot_list &queue(queue_type q) const { return queues_[static_cast<std::size_t>(q)]; }
	std::uint32_t live() const { return slots_.live(); }
	bool full() const { return live() - uses_ >= station_.domain->limits().max_queued; }
	/// A list of receive operations, by slot::in_open.
	slot_list open_list() { return {slots_, &slot::in_open}; }
	/// The tokens of all that programs added: ending one operation may end others.
	std::vector<spi::token> all();

	/// Notes the reason of a cancellation. False: there is one already.
	bool note(slot &, int reason);
	/// Ends the operation early with `reason`, unless it ends otherwise first.
	void cancel(slot &, int reason);
	/// The transport has ended it: finish(), but a reusable one after its uses.
	void end(slot &, int status, std::size_t length);
	/// Ends an operation for any reason except a message.
	void finish(slot &, int status, std::size_t length);
	/// Frees the slot, and those of its uses; the tokens become invalid.
	void forget(slot &);
	/// As spi::sink.
	spi::token use(spi::token reusable, std::size_t offset, std::size_t length,
		       spi::peer_number by);
	void given_up(spi::token);
	/// An operation whose deadline is over, or null.
	slot *expired()
	{
		slot *s = deadlines_.first();
		return s && s->deadline <= station_.now() ? s : nullptr;
	}
	time_point deadline() const { return deadlines_.earliest(); }
	/// Sends the messages that the transport may hold back for others to follow.
	void flush()
	{
		if (std::exchange(held_back_, false) && station_.live())
			station_.transport->flush();
	}

	void count_del(const slot &s) { counters(s.transfer.queue).dels++; }
	/// Counts a message that a receive operation took.
	void count_message(const slot &, std::size_t length);
	/// A polling program first gets its messages; its next call, whichever it is, reads the
	/// processor's counter.
	void time_messages()
	{
		if (untimed_ == 0)
			return;
		counters(queue_type::msg_recv).total_time +=
			untimed_ * station_.stamp() - untimed_begun_;
		untimed_ = untimed_begun_ = 0;
	}
	/// total_time is in ticks.
	queue_stats stats(queue_type, bool reset);

private:
	int prepare(slot &, const buffer_state &, const operation &);
	int prepare_active(slot &, const buffer_state &, const operation &);
	int prepare_range(spi::transfer &, const buffer_state &, const operation &,
			  const descriptor &);
	void write_descriptor(slot &);
	void end_use(slot &);
	void free_use(slot &);
	std::uint64_t new_key();
	queue_stats &counters(queue_type q) { return stats_[static_cast<std::size_t>(q)]; }
	static void count(queue_stats &, std::size_t length);

	station &station_;
	peers &peers_;
	delivery &delivery_;
	machine &home_;
	address own_;
	random_source random_; // keys of bulk operations
	slot_table slots_;
	std::array<slot_list, queue_types> queues_;
	deadline_heap deadlines_;
	std::array<queue_stats, queue_types> stats_{};
	ticks untimed_ = 0;                  // messages not yet counted in total_time,
	ticks untimed_begun_ = 0;            // and the sum of their buffers' add times
	std::uint32_t uses_ = 0;             // live slots that are uses
	std::vector<std::uint32_t> uses_of_; // the same by peer number
	bool held_back_ = false;
};

} // namespace coop::net::core
