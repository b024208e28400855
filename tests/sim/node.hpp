// SPDX-License-Identifier: MIT
// node.hpp - a host of the engine, with its adapter, its store and its readers.
//
// It acts like a real host, with the same freedom: it polls late, in batches, control and data
// in either order, and answers events at once or later. A crash ends a life: engine, queue
// pairs and pages go, and the events of that life are void.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/fetch/engine.h"
#include "tests/sim/clock.hpp"
#include "tests/sim/liar.hpp"
#include "tests/sim/queue_pair.hpp"
#include "tests/sim/store.hpp"

namespace coop::sim
{

class world;

class node
{
public:
	node(world &, u16 number, u32 lies, u32 poll_us);
	~node();

	void boot();
	void die();
	bool alive() const { return engine_ != nullptr; }
	u32 life() const { return life_; }
	bool honest() const { return !lies_; }
	coop_addr address() const; // of the control queue pair
	u32 serve_qpn(u32 slot) const;
	sim::store &pages() { return *store_; }

	void arrive(const packet &);
	void run(const event &);
	void start_readers();
	// Takes the world's fabric key.
	void rekey();
	const u8 *key() const { return key_; }
	// Storage reports that a node came or went.
	void hear(u16 about);
	// This node changes pages of the edition just replaced.
	void rewrite(content old);
	bool idle() const;
	// The end of the round: everything must be at rest.
	void judge_rest();

private:
	struct read { // one fetch, from the claim of its pages until all are good
		bool active = false, submitted = false, done = false;
		u32 reader = 0, id = 0, token = 0;
		block *into = nullptr;
		u64 pages = 0; // of the block
		u64 good = 0;  // by page of the block, from peers
		u64 since = 0;
		u32 n = 0;
		u8 page_of[COOP_MAX_PAGES]; // ordinal -> page of the block
		u32 slot = COOP_NONE;
		u64 verified = 0; // the result of VERIFY, for a later answer
		u32 verify_id = 0;
	};
	struct letter {
		u32 at, len, src_qpn;
		u16 src;
	};
	struct batch {
		coop_addr to;
		std::vector<coop_seg> segs;
		u32 sent = 0, told = 0;
	};
	struct serve {
		u32 id = 0;
		coop_ev asked{}; // from LOOKUP: the attempt that the tags belong to
		content of{};
		bool known = false, rechecking = false, answered = false;
		bool other = false; // a liar: not the requested content
		u32 n = 0, slot = 0;
		u64 have = 0;  // as reported to the engine
		u64 lacks = 0; // a liar claims these but lacks them
		u64 size = 0;
		block *in[COOP_MAX_PAGES];
		u8 page[COOP_MAX_PAGES];
		u32 seq[COOP_MAX_PAGES];
		std::vector<batch> batches;
		std::vector<u8> copies; // kept pages to send, by ordinal; empty: send from memory
	};
	struct fetch_qp {
		queue_pair qp;
		bool stopped = false; // by the engine, which owes a RESET before it posts again
		std::vector<coop_seg> posted; // by WR number
		// GRH and spill of every WR. It grows, and old memory stays: broken engines
		// leave WRs posted.
		std::vector<std::unique_ptr<u8[]>> scrap;
		u32 scrap_wrs = 0;
		std::vector<u32> of_seg; // segment -> WR number of the last posting
		u32 owed = 0;            // WRs whose completion the engine has not seen
		u64 invited = 0;         // bytes that the last posting invited
	};

	// node.cpp
	void poll();
	void pump();
	void wake();
	void arm_timer();
	void on_tx(const coop_tx &);
	void on_event(const coop_ev &);
	void send_ctrl(const coop_tx &);
	void tell(const completion &);
	void tell(const letter &, u8 *bytes);
	void collect_stats();
	u64 latency(u32 most);
	void check_window();
	// requester.cpp
	void think(u32 reader);
	void read_some(u32 reader);
	void post(const coop_tx &);
	void stop_qp(u32 slot);
	void fail_qp(u32 slot);
	void reset_qp(u32 slot);
	void flush_appears(u32 slot);
	void verify(const coop_ev &);
	void verified(u64 read_no);
	void fetch_done(const coop_ev &);
	void take(u64 read_no);
	void from_storage(u64 read_no);
	void finish(u64 read_no);
	u8 *bytes_of(const read &r, u32 ordinal) const;
	u64 sum_of(const coop_ev &, u32 ordinal, const u8 *bytes) const;
	u8 *scrap_of(const fetch_qp &, u32 wr) const;
	void copy_segment(read &, const coop_seg &place, u32 len, u8 *hold, bool gather);
	u64 block_pages_of(const read &, u64 ordinals) const;
	void kill_a_qp();
	void judge_evicted(const std::vector<std::string> &wrong);
	// responder.cpp
	void lookup(const coop_ev &);
	void recheck(const coop_ev &);
	bool pass_on(const serve &, u64 key);
	void keep(serve &);
	void answer(u64 key);
	void queue_data(const coop_tx &);
	void burst(u64 key);
	void change_under_way(const serve &);
	void send_segment(serve &, const batch &, const coop_seg &, u64 in);
	void serve_end(const coop_ev &);
	serve *serve_of(u32 id, u64 *key = nullptr);

	std::string who() const;

	world &w_;
	u16 number_;
	u32 lies_, poll_us_;
	std::unique_ptr<liar> liar_;
	u32 life_ = 0, generation_of_qpns_ = 0;
	std::unique_ptr<u64[]> memory_;
	coop_engine *engine_ = nullptr;
	u8 key_[16] = {};
	std::unique_ptr<sim::store> store_;
	std::vector<fetch_qp> qps_;
	// Completions, and messages on the control queue pair; then those that poll() took,
	// empty outside of poll().
	std::vector<completion> done_, polled_;
	std::vector<letter> letters_, polled_letters_;
	std::vector<u8> letter_bytes_, polled_bytes_;
	bool poll_pending_ = false;
	u64 timer_at_ = ~u64{0};
	std::vector<read> reads_;
	u32 next_token_ = 1;
	std::unordered_map<u64, serve> serves_;
	u64 next_serve_ = 1;
	u32 peer_ids_[64] = {}; // by node number, 0: not registered
	coop_addr peer_addr_[64] = {};
	u64 dead_since_ = 0; // when this node noticed the scenario's dead peer
	u32 tardy_ = 0;
};

} // namespace coop::sim
