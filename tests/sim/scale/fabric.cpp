// SPDX-License-Identifier: MIT
// fabric.cpp - queues in front of links, in nanoseconds of their rate.
#include "tests/sim/scale/fabric.hpp"

#include <algorithm>
#include <cstring>

namespace coop::scale
{

namespace
{

constexpr u32 pad_ns = 8;  // headers only
constexpr u32 header = 80; // bytes of Ethernet, IP, UDP, BTH and DETH
constexpr u32 qkey = 0x1c00b;

} // namespace

fabric::fabric(const shape &s, agenda &time, sim::dice &dice) :
	s_(s),
	time_(time),
	dice_(dice),
	ports_(s.nodes),
	turns_(s.fair ? s.nodes : 0)
{
	for (port &p : ports_)
		p.page_ns = static_cast<u32>(s.page_ns(s.gbit));
}

coop_addr fabric::address(u32 node, u32 qpn) const
{
	coop_addr a{};
	a.gid[10] = a.gid[11] = 0xff;
	a.gid[12] = 10;
	const u32 n = node + 1;
	a.gid[13] = static_cast<u8>(n >> 16);
	a.gid[14] = static_cast<u8>(n >> 8);
	a.gid[15] = static_cast<u8>(n);
	a.qpn = qpn;
	a.qkey = qkey;
	return a;
}

u32 fabric::node_of(const coop_addr &a)
{
	return (u32{a.gid[13]} << 16 | u32{a.gid[14]} << 8 | a.gid[15]) - 1;
}

bool fabric::lost_on_the_way(u32 from, u32 to)
{
	if (ports_[from].cut != ports_[to].cut) {
		++t_.cut;
		return true;
	}
	if (s_.loss_ppm && dice_.chance(s_.loss_ppm)) {
		++t_.lost;
		return true;
	}
	return false;
}

u64 fabric::packet_ns(u32 node, const packet &p) const
{
	u64 ns = 0;
	for (u32 i = 0; i < p.n; ++i)
		ns += p.page[i].pad ? pad_ns : ports_[node].page_ns;
	return ns;
}

void fabric::deliver(u32 from, u32 to, packet &p, u64 when)
{
	u16 n = 0;
	for (u32 i = 0; i < p.n; ++i) {
		++(p.page[i].pad ? t_.pads : t_.pages);
		ports_[from].pages_out += !p.page[i].pad;
		if (!lost_on_the_way(from, to))
			p.page[n++] = p.page[i];
	}
	p.n = n;
	if (!n)
		return;
	const u32 i = packets.take();
	packets[i] = p;
	time_.at(when + s_.delay_ns, what::data, to, 0, i);
}

void fabric::send(u32 from, u16 life, u32 to, packet &p, u32 serve, u32 datagrams)
{
	port &out = ports_[from];
	if (s_.fair) {
		turns_[from].push_back({p, to, serve, datagrams, p.n, life});
		if (turns_[from].size() == 1)
			time_.after(out.page_ns, what::depart, from, life);
		return;
	}
	out.tx_free = std::max(out.tx_free, time_.now()) + packet_ns(from, p);
	deliver(from, to, p, out.tx_free);
	time_.at(out.tx_free, what::sent, from, life, serve, datagrams);
}

void fabric::depart(u32 from)
{
	auto &turns = turns_[from];
	batch b = turns.front();
	turns.pop_front();
	if (--b.left) {
		turns.push_back(b);
	} else {
		deliver(from, b.to, b.p, time_.now());
		time_.after(0, what::sent, from, b.life, b.serve, b.datagrams);
	}
	if (!turns.empty())
		time_.after(ports_[from].page_ns, what::depart, from, b.life);
}

void fabric::send(u32 from, u32 to, const void *bytes, u32 len)
{
	port &out = ports_[from];
	const u64 ns = u64{len + header} * out.page_ns / stands_for + 1;
	out.tx_free = std::max(out.tx_free, time_.now()) + ns; // it takes time of the link
	++t_.letters;
	++out.letters_out;
	t_.letter_bytes += len;
	if (lost_on_the_way(from, to))
		return;
	const u32 i = letters.take();
	letter &l = letters[i];
	l.src = from;
	l.len = len;
	std::memcpy(l.bytes.data(), bytes, len);
	time_.after(ns + s_.delay_ns + s_.host_ns, what::letter, to, 0, i);
}

u64 fabric::letter_ns(u32 node, u32 i)
{
	return u64{letters[i].len + header} * ports_[node].page_ns / stands_for + 1;
}

fabric::fate fabric::receive(const event &e, u64 ns, what then, bool droppable)
{
	port &in = ports_[e.node];
	const u64 now = time_.now(), begin = std::max(now > ns ? now - ns : 0, in.rx_free);
	const u64 end = begin + ns, wait = end - now;

	if (droppable && wait > u64{s_.queue_pages} * in.page_ns) {
		++t_.overflow;
		return fate::dropped;
	}
	t_.deepest_ns = std::max(t_.deepest_ns, wait);
	in.rx_free = end;
	if (!wait)
		return fate::taken;
	time_.at(end, then, e.node, e.life, e.a, e.b);
	return fate::queued;
}

} // namespace coop::scale
