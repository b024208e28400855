// SPDX-License-Identifier: MIT
// lab.hpp - a few engines, a virtual clock, and a network under the test's control.
//
// A responder's segments wait in 'air' until the test's mangle function has seen them;
// control messages pass a filter. Every page byte is a function of (page, offset), so
// the lab can check every page that a fetch calls good.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cctype>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "rpc/fetch/engine.h"
#include "rpc/fetch/wire.h"

namespace lab
{

struct datagram {
	u32 to_qp;
	u32 imm;
	bool has_imm = true;
	u32 src_qp;
	std::array<u8, 16> src_gid;
	std::vector<u8> payload;
};

struct result {
	u64 good;
	int err;
	u32 peer;
};

class node;

struct node_shape {
	u32 page_shift = 12, mtu = 4096, flags = 0, fetches = 2, serves = 2, queued = 2;
	u32 serve_bytes_s = 0, fetch_depth = 0, serve_depth = 0;
	u32 window = 8 << 20;
	bool sole = false; // coop_policy_sole_source()
	u32 shards = 0, shard = 0;
	const node *first = nullptr; // with the address of which; null: its own
};

class network;

class node
{
public:
	node(network &, u8 number, const node_shape &);
	int fetch(u32 pages, u32 *id = nullptr, u64 version = 7);
	// As fetch(), from these parents, for a load of this level.
	int fetch_from(u32 pages, std::vector<u32> parents, u32 level, bool relay = false);
	bool pump(); // true if it did anything
	void ctrl(const std::vector<u8> &, const coop_addr &from);
	void data(const datagram &);
	struct coop_engine_stats stats() const;
	coop_peer_info peer(u32 id) const;
	u32 peer_id(const node &) const; // COOP_NONE: it is no peer
	bool page_right(u32 slot_cookie, u32 page) const;

	network &net;
	coop_engine_cfg cfg{};
	coop_addr own;     // its control queue pair; cfg.self unless it shares an address
	u32 budget_us = 0; // of later fetches
	std::vector<u64> memory;
	coop_engine *e;
	std::map<u64, result> done; // by cookie
	std::vector<u32> verifies;  // the number of moves of each
	u32 stops = 0, resets = 0, posts = 0;
	bool slow_resets = false; // until reset_done()
	std::deque<u32> resetting;
	void reset_done(); // of the oldest
	// As a responder:
	u64 have = ~u64{0}, still = ~u64{0}, size = 1 << 30;
	bool hold_lookup = false, hold_sends = false, spoil_sums = false;
	u64 coming = 0; // pages that are on their way here, by a load of load_level
	u32 load_level = 1;
	std::vector<coop_ev> lookups, offers;
	u32 holder = COOP_NONE; // id of the peer that requests are passed on to
	bool keeps = false;     // looked-up pages do not change before the serve ends
	std::vector<u32> held;
	std::deque<std::pair<u32, u32>> sends; // held sends: serve and number of segments
	u32 served = 0, ended = 0, rechecks = 0;

private:
	friend class network;
	struct qp {
		std::vector<coop_seg> posted;
		std::vector<bool> out;
		u32 next = 0;
		u64 cookie = 0;
		bool dead = false;
	};
	void transmit(const coop_tx &);
	bool gets(const std::vector<u8> &message, const coop_addr &to) const;
	void event(const coop_ev &);
	u8 *byte(u64 cookie, u32 page, u32 off);
	int submit(coop_fetch_req &, u32 pages, u32 *id);
	u64 sum(const coop_ev &, u32 ordinal, const u8 *bytes) const;
	std::vector<u64> sums_of(const coop_ev &) const; // of all pages
	std::vector<qp> qps_;
	std::map<u64, std::vector<u8>> pages_; // by cookie
	u64 cookies_ = 0;
};

class network
{
public:
	node &add(const node_shape & = {});
	// Makes each a peer of the other; returns b's id at a.
	u32 acquaint(node &a, node &b);
	// Runs until nothing is in flight, moving the clock to deadlines, for at most
	// us.
	void run(u64 us = 2000000);
	void settle(); // the same without moving the clock

	u64 now = 1000000;
	std::deque<datagram> air;
	std::function<void(std::deque<datagram> &)> mangle;      // sees every batch
	std::function<bool(node &to, std::vector<u8> &)> filter; // false: lost
	std::vector<std::unique_ptr<node>> nodes;
};

u8 content(u32 page, u32 off);
u8 command(const std::vector<u8> &message);

// Calls what once, for the first batch of segments.
inline void once(network &n, std::function<void(std::deque<datagram> &)> what)
{
	n.mangle = [fired = false, what](std::deque<datagram> &air) mutable {
		if (!fired)
			what(air);
		fired = true;
	};
}

// Loses the first n messages of a kind.
inline void lose(network &n, u8 which, u32 count)
{
	n.filter = [which, count](node &, std::vector<u8> &m) mutable {
		if (command(m) != which || !count)
			return true;
		--count;
		return false;
	};
}

} // namespace lab
