// SPDX-License-Identifier: MIT
// clock.hpp - virtual time: the next event and its time.
//
// One heap of small events for the whole world. Events at the same microsecond run in the order
// of scheduling, so a seed gives one history. An event of a node carries the node's life; a
// node that crashed meanwhile has a new life and ignores the event.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/sim/dice.hpp"

namespace coop::sim
{

enum class what : u8 {
	arrive,   // arg: packet; it reaches its queue pair
	poll,     // the node's host polls its completions and pumps its engine
	timer,    // the engine's deadline
	burst,    // arg: serve key; the network adapter sends more of a batch
	answer,   // arg: serve key; the host answers LOOKUP or RECHECK
	verified, // arg: read number; the host answers VERIFY
	stored,   // arg: read number; storage delivered the pages that peers did not have
	released, // arg: read number; the host takes the pages of FETCH_DONE
	flushed,  // arg: fetch slot; the flush completions of a stopped QP appear
	think,    // arg: reader number; a reader reads again
	fault,    // arg: which; the world does something bad
	restart,  // the node comes back
	rekey,    // storage gives the node the fabric key of its new run
	news,     // arg: a node number; storage tells this node that it came or went
};

struct event {
	u64 at, seq, arg;
	u32 life;
	u16 node;
	what kind;
};

class clock
{
public:
	u64 now() const { return now_; }
	void after(u64 delay, what kind, u16 node, u32 life, u64 arg)
	{
		heap_.push_back({now_ + delay, seq_++, arg, life, node, kind});
		std::push_heap(heap_.begin(), heap_.end(), later{});
	}
	// Removes the next event and moves the clock to it. False: there are no more events.
	bool next(event &out)
	{
		if (heap_.empty())
			return false;
		std::pop_heap(heap_.begin(), heap_.end(), later{});
		out = heap_.back();
		heap_.pop_back();
		now_ = out.at;
		return true;
	}

private:
	struct later { // a type, not a function: the heap inlines it
		bool operator()(const event &a, const event &b) const
		{
			return a.at != b.at ? a.at > b.at : a.seq > b.seq;
		}
	};
	std::vector<event> heap_;
	u64 now_ = 1000000; // engines may treat 0 as "never"
	u64 seq_ = 0;
};

} // namespace coop::sim
