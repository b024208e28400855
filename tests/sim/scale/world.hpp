// SPDX-License-Identifier: MIT
// world.hpp - one run: nodes, links, storage and what goes wrong, from one seed.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/scale/fabric.hpp"
#include "tests/sim/scale/node.hpp"
#include "tests/sim/scale/registry.hpp"
#include "tests/sim/scale/tally.hpp"

namespace coop::scale
{

struct outcome {
	u64 lone_ns = 0;
	double copies = 0;                         // that storage sent
	double median = 0, last = 0, last_any = 0; // in lone readers' times; last: healthy nodes
	double sent_mean = 0, sent_worst = 0;      // copies that a node sent
	double longest_wait_us = 0, messages_a_page = 0;
	u64 engine_bytes = 0, node_bytes = 0, events = 0, virtual_ns = 0;
	double wall_s = 0, cpu_s = 0;
	u32 unfinished = 0; // healthy readers
	tally t;
	traffic net;
};

class world
{
public:
	// lone_ns: a lone reader's time, by which faults are timed; 0: this is the lone reader.
	world(const shape &, u64 lone_ns);
	~world();
	outcome run();

	const shape &is() const { return s_; }
	agenda &time() { return time_; }
	sim::dice &dice() { return dice_; }
	fabric &net() { return net_; }
	registry &members() { return registry_; }
	tally &counts() { return t_; }
	node &at(u32 n) { return nodes_[n]; }
	const u8 *key() const { return key_; }
	u32 colour(u32 file, u32 unit) const { return (file * 7 + unit) % s_.trees; }
	void reader_done() { --reading_; }
	// The roles of others changed.
	void changed();
	// Would the asker's wait at this node for the unit close a circle?
	bool closes_circle(u32 asker, u32 at, u32 file, u32 unit) const;
	pool<registry::redirect> named; // under way to those who asked

private:
	void dispatch(const event &);
	void read(const event &);
	void start();
	void plan_faults();
	void join(u32 file, u32 node);
	void partition(bool on);
	std::vector<u32> some(u32 ppm);
	outcome report() const;

	shape s_;
	u64 lone_ns_;
	sim::dice dice_;
	agenda time_;
	fabric net_;
	registry registry_;
	tally t_;
	u8 key_[16] = {};
	std::vector<node> nodes_;
	void *memory_ = nullptr;
	std::size_t memory_size_ = 0, engine_size_ = 0;
	u64 storage_free_ = 0;
	bool publishing_ = false;
	std::vector<u8> healthy_, cut_, slow_;
	u32 reading_ = 0;
};

} // namespace coop::scale
