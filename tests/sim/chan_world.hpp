// SPDX-License-Identifier: MIT
// chan_world.hpp - nodes that send each other messages under virtual time.
//
// Every node has a whole rpc/chan engine and a host that behaves like an adapter: datagrams
// wait in its send queue, and it reads them from memory only when they leave; it overwrites the
// memory of a finished send at once; arriving datagrams pass a queue of bounded length. An
// oracle knows every message: the receiver must get it at most once, with its own bytes, and
// the sender must learn its end exactly once. One 64-bit seed decides everything.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/chan/chan.h"
#include "tests/sim/dice.hpp"

namespace coop::sim
{

struct chan_scenario {
	const char *name = "";
	const char *what = "";
	u32 nodes = 4;
	u32 messages = 2000;    // in all
	u32 think_us = 50;      // most time from the end of one to the next
	u32 outstanding = 16;   // of a node
	u32 max_length = 40000; // of messages that are not tiny
	u32 tiny_percent = 60;  // of messages
	u32 delay_us = 20;      // one way
	u32 jitter_us = 5;
	u32 loss_ppm = 0, duplicate_ppm = 0, corrupt_ppm = 0;
	u32 late_ppm = 0, late_us = 0; // delayed by up to late_us
	u32 packet_ns = 1000;          // time that a receiver takes for a datagram
	u32 queue = 4096;              // datagrams that a receiver queues; it drops more
	u32 first_seq = 0;             // with fixed_seq
	bool fixed_seq = false;
	bool incast = false; // all send to node 0
	bool sealed = false;
	bool narrow = false; // every other node takes shorter datagrams, the others after a restart
	bool data_known = true; // nodes know the peers' data QPs from the start
	u32 refuse_ppm = 0;     // the receiver has no buffer for a message
	u32 refuse_for_us = 0;  // at times no node has a buffer for this long
	u32 restart_us = 0;     // some node restarts about this often
	u32 cut_us = 0;         // some path fails, one way, about this often ...
	u32 cut_for_us = 0;     // ... for up to this long
	u32 cancel_ppm = 0, close_ppm = 0;
	u32 max_tries = 16;
	u32 rnr_tries = 16;
	u32 quiet_us = 200000;
	u32 max_segments = 8192;
	u32 max_active = 0;    // 0: all
	u32 max_reorder = ~0u; // all
	u32 max_receives = 256;
	u32 settled_us = 0;             // delay before traffic begins
	u32 most_repeats_percent = 100; // segments that may be retransmitted
	bool may_fail = false;          // sends may end with an error
	u64 limit_us = 600000000;       // virtual time by which all must have ended
};

const std::vector<chan_scenario> &chan_scenarios();

struct chan_result {
	u64 delivered = 0, failed = 0, orphans = 0, events = 0;
	u64 packets = 0, lost = 0, dropped = 0, duplicated = 0, corrupted = 0, late = 0;
	u64 restarts = 0, cuts = 0, bytes = 0;
	u64 first_us = 0, last_us = 0; // of the traffic
	u64 refused = 0, told_dead = 0, told_restarted = 0;
	u64 retransmits = 0, segments = 0, stale = 0, duplicates_rx = 0;
	u32 most_segments = 0;
	std::vector<std::string> violations; // the first few
	u64 wrong = 0;                       // number of all violations
};

// One run. test_flags: COOP_CHAN_F_TEST_*, to prove that the oracle notices.
chan_result chan_run(const chan_scenario &, u64 seed, u32 test_flags = 0);

} // namespace coop::sim
