// SPDX-License-Identifier: MIT
// slots.hpp - the outstanding operations of a transfer machine.
//
// A token names a slot (20 bits) and its generation (44 bits), so one look into an array checks it:
// late completions, numbers from a hostile packet and descriptors of old operations all fail the
// same comparison. Slots do not move; free ones are reused last in, first out, while their lines
// are in the cache.
//
// No token repeats while its machine lives, however long a peer keeps one. A slot counts its
// generations up from a random one and is retired when it has had all: it is never free again, and
// another slot takes its place. At 10 million operations a second, all in one slot, that happens
// after 20 days and costs the memory of one slot. At most half of the 2^20 slots is in use at a
// time, so a machine can begin 2^63 operations: 29,000 years at that rate. After that allocate()
// fails. Tokens of an earlier run at the same address differ by the random start; what a peer does
// with one also needs the key of the operation, 64 random bits.
#pragma once

#include <memory>
#include <vector>

#include "ticks.hpp"
#include "transport.hpp"

namespace coop::net::core
{

class peer;

constexpr std::uint32_t no_slot = 0xffffffff;

/// An outstanding operation.
struct slot {
	spi::transfer transfer{};
	buffer_state *owner = nullptr;
	buffer_handler *handler = nullptr;
	void *context = nullptr;
	peer *to = nullptr; // counted in peer::uses
	ticks added = 0;
	time_point deadline = never;
	std::uint32_t heap_at = no_slot; // index in the deadline heap

	std::uint32_t index = 0; // the slot's own index
	std::uint64_t generation = 0;
	std::uint32_t next_free = no_slot;
	struct links {
		std::uint32_t next = no_slot, previous = no_slot;
	} in_queue, in_open;
	bool live = false;
	int reason = 0; // reason of the cancellation; 0: none

	// reusable operations
	std::uint32_t parent = no_slot;    // a use: the reusable operation
	std::uint32_t first_use = no_slot; // reusable: its uses, linked by in_queue
	spi::peer_number user = 0;         // a use: whose it is
	bool ended = false;                // reusable: over, with `reason`, after its uses

	// msg_recv
	bool pooled = false;           // provisioned from the pool of the machine
	bool open = false;             // takes messages
	std::uint32_t landings = 0;    // places given out whose messages have not completed
	std::uint32_t messages = 0;    // received so far
	std::uint32_t places_left = 0; // further messages that it may take
	std::size_t filled = 0;        // bytes given out
};

class slot_table
{
public:
	static constexpr unsigned slot_bits = 20, generation_bits = 64 - slot_bits;
	static constexpr std::uint32_t most = 1u << slot_bits;
	static constexpr std::uint32_t most_queued = most / 4; ///< operations of programs
	/// Every generation but 0: no token is 0.
	static constexpr std::uint64_t generations = (std::uint64_t{1} << generation_bits) - 1;

	/// The first generation: random, so that tokens of an earlier run are invalid; 1 to
	/// `generations`. `uses`: generations of a slot before it is retired; fewer in tests.
	explicit slot_table(std::uint64_t first_generation, std::uint64_t uses = generations) :
		first_(first_generation),
		end_((first_generation - 1 + uses % generations) % generations + 1)
	{
	}

	/// Returns a live slot, or null if `limit` are live already.
	slot *allocate(std::uint32_t limit)
	{
		if (live_ >= limit || (free_ == no_slot && !grow()))
			return nullptr;
		slot &s = at(free_);
		free_ = s.next_free;
		s.live = true;
		live_++;
		return &s;
	}
	void free(slot &s)
	{
		s.live = false;
		live_--;
		s.generation = s.generation == generations ? 1 : s.generation + 1;
		if (s.generation == end_)
			return; // it has had all
		s.next_free = free_;
		free_ = s.index;
	}
	static spi::token token_of(const slot &s) { return s.generation << slot_bits | s.index; }
	/// The operation that a token names, or null.
	slot *find(spi::token t)
	{
		const auto index = static_cast<std::uint32_t>(t & (most - 1));
		if (index >= size_)
			return nullptr;
		slot &s = at(index);
		return s.live && token_of(s) == t ? &s : nullptr;
	}
	slot &at(std::uint32_t i) { return chunks_[i / chunk][i % chunk]; }
	std::uint32_t live() const { return live_; }

private:
	static constexpr std::uint32_t chunk = 64;
	static_assert(most % chunk == 0);

	bool grow()
	{
		if (size_ >= most)
			return false;
		chunks_.push_back(std::make_unique<slot[]>(chunk));
		for (std::uint32_t i = chunk; i-- > 0;) {
			slot &s = chunks_.back()[i];
			s.index = size_ + i;
			s.generation = first_;
			s.next_free = free_;
			free_ = s.index;
		}
		size_ += chunk;
		return true;
	}

	std::vector<std::unique_ptr<slot[]>> chunks_;
	std::uint32_t size_ = 0, live_ = 0, free_ = no_slot;
	const std::uint64_t first_, end_;
};

/// Slots in order of insertion; `member` links them.
class slot_list
{
public:
	slot_list(slot_table &t, slot::links slot::*member) : table_(t), member_(member) {}

	void push_back(slot &s)
	{
		s.*member_ = {no_slot, last_};
		(last_ == no_slot ? first_ : (table_.at(last_).*member_).next) = s.index;
		last_ = s.index;
		count_++;
	}
	void push_front(slot &s)
	{
		s.*member_ = {first_, no_slot};
		(first_ == no_slot ? last_ : (table_.at(first_).*member_).previous) = s.index;
		first_ = s.index;
		count_++;
	}
	void erase(slot &s)
	{
		const slot::links l = s.*member_;
		(l.previous == no_slot ? first_ : (table_.at(l.previous).*member_).next) = l.next;
		(l.next == no_slot ? last_ : (table_.at(l.next).*member_).previous) = l.previous;
		count_--;
	}
	slot *first() { return first_ == no_slot ? nullptr : &table_.at(first_); }
	slot *after(slot &s)
	{
		const std::uint32_t next = (s.*member_).next;
		return next == no_slot ? nullptr : &table_.at(next);
	}
	std::uint32_t count() const { return count_; }

private:
	slot_table &table_;
	slot::links slot::*const member_;
	std::uint32_t first_ = no_slot, last_ = no_slot, count_ = 0;
};

} // namespace coop::net::core
