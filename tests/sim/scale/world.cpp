// SPDX-License-Identifier: MIT
// world.cpp - plays a run: who starts when, what storage answers, what goes wrong, what came of it.
#include "tests/sim/scale/world.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <numeric>
#include <stdexcept>

namespace coop::scale
{

namespace
{

constexpr u64 most_virtual_ns = 120ull * 1000000000; // a run that takes longer is stuck
constexpr u32 most_hops = 256;

} // namespace

world::world(const shape &s, u64 lone_ns) :
	s_(s),
	lone_ns_(lone_ns),
	dice_(s.seed),
	net_(s_, time_, dice_),
	registry_(s_),
	healthy_(s.nodes, 1),
	cut_(s.nodes, 0),
	slow_(s.nodes, 0)
{
	for (u8 &byte : key_)
		byte = static_cast<u8>(dice_.next());
	const coop_engine_cfg cfg = [&] {
		coop_engine_cfg c = node::config(s_);
		c.self = net_.address(0, 1);
		return c;
	}();
	engine_size_ = (coop_engine_size(&cfg) + 63) & ~std::size_t{63};
	memory_size_ = engine_size_ * s_.nodes;
	memory_ = mmap(nullptr, memory_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);
	if (!engine_size_ || memory_ == MAP_FAILED)
		throw std::runtime_error("no memory for " + std::to_string(s_.nodes) +
					 " engines of " + std::to_string(engine_size_) + " bytes");
	// Every event touches another engine: huge pages save most of the TLB misses.
	(void)madvise(memory_, memory_size_, MADV_HUGEPAGE);
	nodes_.reserve(s_.nodes);
	for (u32 i = 0; i < s_.nodes; ++i) {
		nodes_.emplace_back(*this, i);
		nodes_[i].boot(static_cast<u8 *>(memory_) + engine_size_ * i, engine_size_);
	}
}

world::~world()
{
	munmap(memory_, memory_size_);
}

std::vector<u32> world::some(u32 ppm)
{
	std::vector<u32> all(s_.nodes);
	std::iota(all.begin(), all.end(), 0u);
	u64 n = (u64{s_.nodes} * ppm + 500000) / 1000000;
	n = ppm ? std::clamp<u64>(n, 1, s_.nodes) : 0;
	for (u32 i = 0; i < n; ++i)
		std::swap(all[i], all[i + dice_.below(s_.nodes - i)]);
	all.resize(n);
	return all;
}

void world::start()
{
	const bool at_once = s_.waves == 1 && !s_.opens;
	if (lone_ns_)
		plan_faults();
	for (u32 i = 0; i < s_.nodes; ++i) {
		const u64 wave = u64{i} * s_.waves / s_.nodes;
		if (at_once)
			join(0, i);
		time_.after(1000 + wave * s_.wave_us * 1000, what::arrive, i, nodes_[i].life());
	}
	(void)registry_.publish();
	for (u32 i = 0; i < s_.nodes && at_once; ++i)
		nodes_[i].start_open(0);
	reading_ = s_.nodes;
}

void world::join(u32 file, u32 node)
{
	registry_.join(file, node, s_.leaves && slow_[node]);
}

void world::plan_faults()
{
	const u64 at = lone_ns_ * s_.fault_at_ppm / 1000000;
	for (u32 n : some(s_.slow_ppm)) {
		healthy_[n] = 0;
		slow_[n] = 1;
		net_.at(n).page_ns *= s_.slow_by;
	}
	for (u32 n : some(s_.dying_ppm)) {
		healthy_[n] = 0;
		const u64 when = at + dice_.next() % (lone_ns_ / 2 + 1);
		time_.after(when, what::die, n, 0);
		time_.after(when + u64{s_.detect_us} * 1000, what::leave, n, 0);
	}
	if (!s_.cut_ppm)
		return;
	for (u32 n : some(s_.cut_ppm)) {
		healthy_[n] = 0;
		cut_[n] = 1;
	}
	time_.after(at, what::partition, 0, 0, 1);
	time_.after(at + u64{s_.cut_us} * 1000, what::partition, 0, 0, 0);
}

void world::partition(bool on)
{
	for (u32 i = 0; i < s_.nodes; ++i)
		net_.at(i).cut = on && cut_[i];
}

void world::changed()
{
	if (publishing_ || !registry_.dirty())
		return;
	publishing_ = true;
	time_.after(u64{s_.publish_us} * 1000, what::publish, 0, 0);
}

bool world::closes_circle(u32 asker, u32 at, u32 file, u32 unit) const
{
	for (u32 hops = 0; at != nobody && hops < most_hops; ++hops) {
		if (at == asker)
			return true;
		at = nodes_[at].waits_at(file, unit);
	}
	return false;
}

// A READ has reached storage. Its bytes follow those that others wait for.
void world::read(const event &e)
{
	const node &n = nodes_[e.node];
	const u32 pages = e.b & 0xff, where = n.unit_of(e.a);
	if (where == nobody)
		return;
	const u32 file = where / s_.units, unit = where % s_.units;
	++t_.storage_reads;
	if (e.b >> 16) {
		const auto to = registry_.redirect_of(file, unit, e.node);
		if (to.n) {
			const u32 names = named.take();
			named[names] = to;
			++t_.redirects;
			return time_.after(s_.delay_ns + s_.host_ns, what::redirect, e.node, e.life,
					   e.a, names);
		}
	}
	registry_.sent(file, unit, e.node);
	storage_free_ = std::max(storage_free_, time_.now() + s_.storage_ns);
	for (u32 i = 0; i < s_.unit_pages; ++i) {
		if (!(pages >> i & 1))
			continue;
		++t_.storage_pages;
		storage_free_ += s_.page_ns(s_.storage_gbit);
		time_.at(storage_free_ + s_.delay_ns, what::reply, e.node, e.life, e.a, 1u << i);
	}
}

void world::dispatch(const event &e)
{
	node &n = nodes_[e.node];
	const port &p = net_.at(e.node);
	fabric::fate fate;
	event in = e;
	switch (e.kind) {
	case what::data:
		in.kind = what::data_in;
		fate = n.alive() ? net_.receive(e, net_.packet_ns(e.node, net_.packets[e.a]),
						what::data_in, true)
				 : fabric::fate::dropped;
		if (fate == fabric::fate::dropped)
			net_.packets.give(e.a);
		else if (fate == fabric::fate::taken)
			n.run(in);
		return;
	case what::data_in:
		return n.alive() ? n.run(e) : net_.packets.give(e.a);
	case what::letter:
		in.kind = what::letter_in;
		fate = n.alive()
			       ? net_.receive(e, net_.letter_ns(e.node, e.a), what::letter_in, true)
			       : fabric::fate::dropped;
		if (fate == fabric::fate::dropped)
			net_.letters.give(e.a);
		else if (fate == fabric::fate::taken)
			n.run(in);
		return;
	case what::letter_in:
		return n.alive() ? n.run(e) : net_.letters.give(e.a);
	case what::reply:
		in.kind = what::reply_in;
		if (n.alive() && n.life() == e.life &&
		    net_.receive(e, p.page_ns, what::reply_in, false) == fabric::fate::taken)
			n.run(in);
		return;
	case what::read:
		if (n.life() == e.life)
			read(e);
		return;
	case what::open:
		if (n.life() != e.life)
			return;
		join(e.a, e.node);
		changed();
		return time_.after(s_.delay_ns + s_.host_ns, what::opened, e.node, e.life, e.a);
	case what::publish:
		publishing_ = false;
		for (const auto &[file, member] : registry_.publish())
			time_.after(s_.delay_ns + s_.host_ns, what::news, member,
				    nodes_[member].life(), file);
		return;
	case what::die:
		if (n.alive()) {
			reading_ -= !n.finished();
			n.add_stats(t_);
			n.die();
		}
		return;
	case what::leave:
		for (u32 f = 0; f < s_.files; ++f)
			registry_.leave(f, e.node, true);
		return changed();
	case what::partition:
		return partition(e.a);
	case what::depart:
		return n.alive() ? net_.depart(e.node) : void();
	case what::sent:
	case what::timer:
	case what::flushed:
	case what::reply_in:
	case what::redirect:
	case what::opened:
	case what::news:
	case what::arrive:
		if (n.alive() && n.life() == e.life)
			n.run(e);
		return;
	}
}

outcome world::run()
{
	const auto begin = std::chrono::steady_clock::now();
	const u64 first = time_.now();
	const std::clock_t cpu = std::clock();
	start();
	event e;
	while (reading_ && time_.next(e)) {
		dispatch(e);
		if (e.at - first > most_virtual_ns)
			break;
	}
	outcome o = report();
	o.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
	o.cpu_s = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
	return o;
}

outcome world::report() const
{
	outcome o;
	const double total = s_.pages();
	std::vector<u64> took;
	u64 lone = lone_ns_, worst_out = 0, out = 0, longest = 0, last_any = 0;
	o.t = t_;
	for (u32 i = 0; i < s_.nodes; ++i) {
		const node &n = nodes_[i];
		const u64 sent = net_.of(i).pages_out;
		out += sent;
		worst_out = std::max(worst_out, sent);
		if (n.alive())
			n.add_stats(o.t);
		const u64 t = n.finished() ? n.finished_at() - n.started_at() : 0;
		last_any = std::max(last_any, t);
		if (!healthy_[i])
			continue;
		longest = std::max(longest, n.longest_wait());
		if (n.finished())
			took.push_back(t);
		else
			++o.unfinished;
		if (!n.finished() && o.unfinished <= 3)
			o.t.note("unfinished: " + n.position());
	}
	std::sort(took.begin(), took.end());
	if (!lone && !took.empty())
		lone = took.back();
	o.lone_ns = lone;
	o.copies = static_cast<double>(t_.storage_pages) / total;
	if (lone && !took.empty()) {
		o.median = static_cast<double>(took[took.size() / 2]) / static_cast<double>(lone);
		o.last = static_cast<double>(took.back()) / static_cast<double>(lone);
		o.last_any = static_cast<double>(last_any) / static_cast<double>(lone);
	}
	o.sent_mean = static_cast<double>(out) / total / s_.nodes;
	o.sent_worst = static_cast<double>(worst_out) / total;
	o.longest_wait_us = static_cast<double>(longest) / 1000;
	o.net = net_.counts();
	o.t.messages = o.net.letters;
	o.messages_a_page = static_cast<double>(o.net.letters) / total / s_.nodes;
	o.engine_bytes = engine_size_;
	o.node_bytes = engine_size_ + nodes_[0].bytes();
	o.events = time_.done();
	o.virtual_ns = took.empty() ? 0 : time_.now();
	return o;
}

} // namespace coop::scale
