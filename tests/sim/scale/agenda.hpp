// SPDX-License-Identifier: MIT
// agenda.hpp - the events to come, in the order of their times.
//
// A hundred million events pass through this queue, half a million of them pending at a time. A
// heap would touch twenty cache lines an event, so this is a calendar: a ring of buckets, each a
// list of the events of 64 ns. Opening a bucket sorts its few events by time and order of
// scheduling, so a seed gives one history. Events beyond the ring wait in a heap.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/sim/dice.hpp"

namespace coop::scale
{

using sim::u16;
using sim::u32;
using sim::u64;
using sim::u8;

enum class what : u8 {
	data,    // a: packet; its last bit reaches the receiver's port
	data_in, // a: packet; the port has taken it
	letter,  // a: letter; a control message reaches the receiver's port
	letter_in,
	sent,    // a: serve id, b: datagrams; the adapter has read their memory
	depart,  // an adapter has sent one datagram
	timer,   // the engine's deadline
	flushed, // a: fetch slot; the completions of a stopped queue pair
	read,    // a: load, b: wanted pages and flags; a READ reaches storage
	reply,   // a: load, b: pages; bytes from storage reach the port
	reply_in,
	redirect,  // a: load, b: redirect list; storage names holders instead
	open,      // a: file; an OPEN reaches storage
	opened,    // a: file; its reply reaches the node
	news,      // a: file; a push of roles reaches the node
	publish,   // storage sends the roles that changed
	arrive,    // the node starts
	die,       // the node stops, without a word
	leave,     // storage notices that the node is gone
	partition, // a: 1 begins, 0 ends
};

struct event {
	u64 at; // ns
	u32 seq, node, a, b;
	u16 life;
	what kind;
};
static_assert(sizeof(event) == 32);

class agenda
{
public:
	agenda() : head_(buckets, none) {}

	u64 now() const { return now_; }
	u64 done() const { return done_; }
	void at(u64 when, what kind, u32 node, u16 life, u32 a = 0, u32 b = 0)
	{
		const event e{when, seq_++, node, a, b, life, kind};
		if (when >> shift < open_) // of the open bucket
			current_.insert(std::upper_bound(current_.begin() +
								 static_cast<std::ptrdiff_t>(next_),
							 current_.end(), e, sooner),
					e);
		else if (when >> shift < open_ + buckets)
			put(e);
		else
			far_push(e);
		++pending_;
	}
	void after(u64 delay, what kind, u32 node, u16 life, u32 a = 0, u32 b = 0)
	{
		at(now_ + delay, kind, node, life, a, b);
	}
	// Removes the next event and moves the clock to it. False: there are no more events.
	bool next(event &out)
	{
		if (!pending_)
			return false;
		while (next_ == current_.size())
			open_bucket();
		out = current_[next_++];
		now_ = out.at;
		--pending_;
		++done_;
		return true;
	}

private:
	static constexpr u32 shift = 6, buckets = 1u << 17, none = ~0u;
	struct node {
		event e;
		u32 next;
	};

	static bool sooner(const event &x, const event &y)
	{
		return x.at != y.at ? x.at < y.at : static_cast<int>(x.seq - y.seq) < 0;
	}
	static bool later(const event &x, const event &y) { return sooner(y, x); }

	void put(const event &e)
	{
		u32 i = free_;
		if (i == none) {
			i = static_cast<u32>(pool_.size());
			pool_.emplace_back();
		} else {
			free_ = pool_[i].next;
		}
		u32 &head = head_[(e.at >> shift) % buckets];
		pool_[i] = {e, head};
		head = i;
		++near_;
	}
	void far_push(const event &e)
	{
		far_.push_back(e);
		std::push_heap(far_.begin(), far_.end(), later);
	}
	// Opens the next bucket, or the one of the next far event if the ring is empty.
	void open_bucket()
	{
		if (!near_ && !far_.empty())
			open_ = std::max(open_, far_.front().at >> shift);
		while (!far_.empty() && far_.front().at >> shift < open_ + buckets) {
			put(far_.front());
			std::pop_heap(far_.begin(), far_.end(), later);
			far_.pop_back();
		}
		current_.clear();
		next_ = 0;
		u32 &head = head_[open_ % buckets];
		while (head != none) {
			node &n = pool_[head];
			current_.push_back(n.e);
			const u32 rest = n.next;
			n.next = free_;
			free_ = head;
			head = rest;
			--near_;
		}
		std::sort(current_.begin(), current_.end(), sooner);
		++open_;
	}

	std::vector<u32> head_; // by bucket: its list in pool_
	std::vector<node> pool_;
	std::vector<event> current_, far_;
	std::size_t next_ = 0;                   // of current_
	u64 open_ = start >> shift;              // number of the next bucket to open
	static constexpr u64 start = 1000000000; // engines may treat 0 as "never"
	u64 now_ = start, near_ = 0, pending_ = 0, done_ = 0;
	u32 free_ = none, seq_ = 0;
};

} // namespace coop::scale
