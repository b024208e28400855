// SPDX-License-Identifier: MIT
// fabric.hpp - links and ports: when a datagram leaves, arrives, or is dropped.
//
// Every node has a full-duplex link to one switch that never blocks inside. Data leave a node in
// the order of posting, or (shape.fair) take turns by datagram, a serve each, as adapters do
// between queue pairs. Control messages have queue pairs of their own and pass waiting data of the
// sender. In front of the receiver's link both wait in one queue of finite length, and are dropped
// where it is full. Bytes of storage use the same links and queues, but are never dropped: they
// travel over TCP.
//
// The datagrams of one serve are posted together and travel as one: one event if the receiver's
// link is free when they arrive, two otherwise. Each of them is lost by itself.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "rpc/fetch/engine.h"
#include "tests/sim/scale/shape.hpp"

namespace coop::scale
{

// Data datagrams of one serve that travel together.
struct packet {
	struct one {
		u64 tag; // what the bytes are
		u32 imm;
		bool pad;
	};
	u32 src, src_qpn;
	u16 slot; // of the receiver's fetch
	u16 n;
	std::array<one, most_unit> page;
};

struct letter {
	u32 src, len;
	std::array<u8, COOP_CTRL_MAX> bytes;
};

template <class T> class pool
{
public:
	u32 take()
	{
		if (free_.empty()) {
			free_.push_back(static_cast<u32>(all_.size()));
			all_.emplace_back();
		}
		const u32 i = free_.back();
		free_.pop_back();
		return i;
	}
	void give(u32 i) { free_.push_back(i); }
	T &operator[](u32 i) { return all_[i]; }

private:
	std::vector<T> all_;
	std::vector<u32> free_;
};

struct port {
	u64 tx_free = 0, rx_free = 0; // when the link has done what waits for it
	u32 page_ns = 0;              // 64 KiB on this link
	bool cut = false;             // from those that are not
	u64 pages_out = 0, letters_out = 0;
};

// What an adapter sends from one queue pair.
struct batch {
	packet p;
	u32 to, serve, datagrams, left;
	u16 life;
};

struct traffic {
	u64 letters = 0, letter_bytes = 0, pages = 0, pads = 0;
	u64 lost = 0, cut = 0, overflow = 0, deepest_ns = 0;
};

class fabric
{
public:
	fabric(const shape &, agenda &, sim::dice &);

	coop_addr address(u32 node, u32 qpn) const;
	static u32 node_of(const coop_addr &);
	port &at(u32 node) { return ports_[node]; }
	const port &of(u32 node) const { return ports_[node]; }
	const traffic &counts() const { return t_; }

	// Datagrams of a serve. 'sent' comes when the adapter has sent them.
	void send(u32 from, u16 life, u32 to, packet &, u32 serve, u32 datagrams);
	// The adapter has sent one datagram of the batch whose turn it was.
	void depart(u32 from);
	void send(u32 from, u32 to, const void *bytes, u32 len);
	// The last bit of something of this many nanoseconds is at the port.
	enum class fate { taken, queued, dropped }; // queued: it comes back as 'then'
	fate receive(const event &, u64 ns, what then, bool droppable);
	u64 letter_ns(u32 node, u32 letter);
	u64 packet_ns(u32 node, const packet &) const;

	pool<packet> packets;
	pool<letter> letters;

private:
	bool lost_on_the_way(u32 from, u32 to);
	void deliver(u32 from, u32 to, packet &, u64 when);

	const shape &s_;
	agenda &time_;
	sim::dice &dice_;
	std::vector<port> ports_;
	std::vector<std::deque<batch>> turns_; // by node, if adapters take turns
	traffic t_;
};

} // namespace coop::scale
