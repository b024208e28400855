// SPDX-License-Identifier: MIT
// node.hpp - a host of the engine: its queue pairs, its page store, its loads and its reader.
//
// The store is a bit a page. Bytes are a word a page that says what they are, so that a page which
// lands in the wrong place is noticed. A load is a unit of a file on its way to this node, from a
// peer or from storage, for the own reader, for peers, or for both. Requests of peers wait for
// loads; loader.cpp has the rules.
#pragma once

#include <array>
#include <vector>

#include "rpc/fetch/engine.h"
#include "tests/sim/scale/registry.hpp"
#include "tests/sim/scale/tally.hpp"

namespace coop::scale
{

class world;

class node
{
public:
	node(world &, u32 number);

	static coop_engine_cfg config(const shape &);
	void boot(void *memory, std::size_t size);
	void die();
	bool alive() const { return engine_ != nullptr; }
	u16 life() const { return life_; }
	bool finished() const { return finished_at_ != 0; }
	u64 started_at() const { return started_at_; }
	u64 finished_at() const { return finished_at_; }
	u64 longest_wait() const { return longest_wait_; }
	// File and unit of a load as file * units + unit; nobody: it has ended.
	u32 unit_of(u32 handle) const;
	std::size_t bytes() const;    // without the engine
	std::string position() const; // for a report of a run that is stuck
	void add_stats(tally &) const;

	void run(const event &);
	// The node has this file open from the start; its roles are known.
	void start_open(u32 file);
	// The node at which the load of this unit waits, nobody: it waits for no peer.
	u32 waits_at(u32 file, u32 unit) const;
	bool loads(u32 file, u32 unit, u32 level) const;
	// This node's load of the unit now waits at that node.
	void wait_at(u32 at, u32 file, u32 unit);

private:
	enum class via : u8 { none, peers, storage };
	struct load {
		u32 file, unit, level, fetch, waits_at;
		u64 since;                        // ns
		u64 until_us;                     // peers must have delivered by then
		u16 generation = 0, first = none; // of its waiting serves
		u8 want, got, asked; // pages of the unit; asked: by the fetch under way
		via from = via::none;
		bool reader, relay, insist;
		std::array<u64, most_unit> bytes; // as they landed
	};
	struct serve {
		u32 id, file, unit, level;
		u32 load; // that it waits for, or nobody
		u16 next; // in the load's list, or in the free list
		u8 asked, coming;
	};
	struct queue_pair {
		u32 load;
		u8 posted, used;
		bool stopped;
		std::array<u8, most_unit> page; // of the unit, by work request
	};
	struct open_file {
		u32 file;
		roles r;
		std::vector<u32> hints;                             // nodes
		std::array<std::array<u32, 2>, most_trees> took_us; // by parent and alternate: mean
	};
	static constexpr u16 none = 0xffff;

	// node.cpp
	void pump();
	bool next_tx(coop_tx &);
	void arm_timer();
	void on_tx(const coop_tx &);
	void on_event(const coop_ev &);
	void data(u32 packet);
	void letter(u32 letter);
	void send_data(const coop_tx &);
	void stop(u32 slot);
	void flushed(u32 slot);
	void post(const coop_tx &);
	void verify(const coop_ev &);
	u32 peer(u32 node);
	u64 now_us() const;
	// loader.cpp
	u32 find(u32 file, u32 unit) const;
	load *of(u32 handle);
	u32 handle(u32 index) const;
	const open_file *opened(u32 file) const;
	open_file *opened(u32 file);
	u32 own_level(const open_file *, u32 unit) const;
	u32 start_load(u32 file, u32 unit, u32 level, bool relay, u64 until_us);
	bool ask_parents(load &, u32 index, const open_file &);
	bool ask_hints(load &, u32 index, const std::vector<u32> &nodes, u32 level);
	bool submit(load &, u32 index, coop_fetch_req &);
	void ask_storage(load &, u32 index, bool insist);
	void fetched(const coop_ev &);
	void stored(u32 handle, u8 pages);
	void redirected(u32 handle, u32 names);
	void landed(load &, u8 pages);
	void ended(u32 index);
	void measure(load &, const coop_ev &);
	bool better_second(const open_file &, u32 colour) const;
	// responder.cpp
	void lookup(const coop_ev &);
	u32 relay(u32 file, u32 unit, u32 level, u32 budget_us);
	void note_wait(u32 asker, u32 file, u32 unit, u32 level);
	void serve_end(const coop_ev &);
	void attach(serve &, u32 index);
	void detach(serve &);
	void tell(load &, u8 arrived, u8 lost);
	// reader.cpp
	void arrive();
	void open(u32 file);
	void open_reply(u32 file);
	bool room() const;
	void read_on();
	u32 unit_at(u32 k) const { return order_.empty() ? k : order_[k]; }

	// Pages of a unit, as bits.
	u8 all() const { return static_cast<u8>((1u << unit_pages_) - 1); }
	u8 have(u32 file, u32 unit) const;
	void add(u32 file, u32 unit, u8 pages);
	u64 tag(u32 file, u32 unit, u32 page) const;

	world &w_;
	u32 number_, unit_pages_;
	u16 life_ = 1;
	coop_engine *engine_ = nullptr;
	u64 timer_at_ = ~u64{0};
	std::vector<u64> store_;
	std::vector<queue_pair> qps_;
	std::vector<load> loads_;
	std::vector<u64> keys_; // by load: file and unit, or ~0
	std::vector<u32> free_loads_;
	u32 relays_ = 0, sending_ = 0; // sending_: pages posted and not sent
	std::vector<serve> serves_;
	u16 free_serve_ = none;
	std::vector<std::pair<u32, u32>> peers_; // node, id
	std::vector<open_file> open_;
	// The reader
	std::vector<u16> order_;
	u32 file_ = 0, next_ = 0, issued_ = 0, wanted_ = 0; // wanted_: loads for the reader
	u64 started_at_ = 0, finished_at_ = 0, longest_wait_ = 0;
};

} // namespace coop::scale
