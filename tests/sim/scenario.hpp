// SPDX-License-Identifier: MIT
// scenario.hpp - the world that a round plays in.
//
// The round's seed decides the scenario: the shape (nodes, page size, MTU, layout, windows),
// the faults of the network, and the habits of the nodes.
//
// Lies. A peer may lie in any way about control messages and about the data it sends, and no
// page may become wrong, with one exception that no protocol between equals can mend: a node
// that holds the cluster's key and sends false bytes in the right frames, consistently (segment
// number, generation, COMMIT, and the sum if pages have any), is believed. So nodes tell a lie
// that changes the bytes of a segment that is then committed (lie::bytes, lie::mislabel) only
// where pages have CRCs or tags and the sum is honest. They tell every other lie with and
// without sums. The simulator does not check a liar's own reads, since its neighbours owe it
// nothing.
//
// The forger is no node and has no key. It sees all traffic, knows the imm of every attempt
// from its REQUEST, and can send under any source; its changes keep the page's CRC. Tags are
// the defence, so it forges only where tags are on.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/dice.hpp"

namespace coop::sim
{

struct network_faults {
	u32 delay_us = 20; // one way
	u32 jitter_us = 0; // +-, uniform, like netem's: this reorders
	u32 loss_ppm = 0;
	u32 duplicate_ppm = 0;
	u32 late_ppm = 0; // delayed by up to late_us
	u32 late_us = 0;
	u32 corrupt_ppm = 0;      // a flipped bit; the ICRC finds it
	u32 unseen_ppm = 0;       // a flipped bit that the ICRC does not find: control messages
	bool unseen_data = false; // the same in data: only where page sums are on
	u32 forged_ppm = 0;       // data: other bytes under the same source and immediate
	u32 stale_ppm = 0; // a copy arrives after stale_us, whatever the queue pair serves then
	u32 stale_us = 0;
};

// What a lying node does, or-ed.
enum lie : u32 {
	lie_has_all = 1,       // claims pages that it lacks, sends nothing for them, commits them
	lie_identity = 2,      // wrong fid, version, size or request id in its messages
	lie_generation = 4,    // wrong generation on data
	lie_number = 8,        // segment numbers out of range
	lie_sum = 16,          // wrong sums in COMMIT
	lie_garbage = 32,      // well-authenticated nonsense, also to nodes that did not ask
	lie_flood = 64,        // REQUESTs without end
	lie_silent = 128,      // takes requests and never answers
	lie_mislabel = 256,    // another segment's number: only with honest sums
	lie_bytes = 512,       // wrong bytes: only with honest sums
	lie_data_spray = 1024, // data to queue pairs that did not ask, any imm, any length
	lie_other = 2048,      // serves another file or version, and its COMMIT says which
};

struct scenario {
	std::string name;
	u32 nodes, files, max_pages; // max_pages: of a file
	u32 page_shift, mtu;
	bool packed, page_crc, page_tag, by_lid;
	bool sole;        // nodes treat each peer as the sole source
	u32 block_pages;  // most pages per fetch, as the store cuts blocks
	u32 store_blocks; // blocks that a node keeps
	u32 readers;      // at once per node
	u32 max_fetches, max_serves, max_queued;
	u32 window_bytes, peer_timeout_us, serve_bytes_s;
	u32 fetches; // the round ends when this many have started
	u32 think_us;
	network_faults net;
	u32 poll_us;             // most time from a completion to its poll
	u32 lookup_us;           // most time that a LOOKUP takes
	u32 slow_nodes, slow_us; // slow nodes take up to slow_us for a poll
	u32 liars, lies;
	u32 edit_ppm, cancel_ppm, qp_death_ppm, by_hand_ppm; // per read; of peers
	u32 crash_every_us, partition_every_us;              // 0: never
	u32 rekey_every_us; // storage restarts: a new fabric key for all, for each a little later
	bool same_qpns;     // a restarted node keeps its queue pair numbers
	bool dead_peer;     // one node is dead throughout
};

// The named scenario, or any if the name is empty. Throws std::invalid_argument for an unknown
// name.
scenario draw(const std::string &name, dice &);
const std::vector<std::string> &scenario_names();

} // namespace coop::sim
