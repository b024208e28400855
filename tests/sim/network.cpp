// SPDX-License-Identifier: MIT
// network.cpp - delays, faults and addresses.
//
// Addresses are 10.0.0.(n + 1) in IPv4-mapped form, or lid n + 1 on a fabric without GIDs: both
// ways in which a completion names its source.
#include "tests/sim/network.hpp"

#include <cstring>

#include "rpc/fetch/wire.h"

namespace coop::sim
{

network::network(const scenario &s, clock &c, dice &r, tally &t) :
	s_(s),
	clock_(c),
	rng_(r),
	t_(t),
	nodes_(s.nodes),
	cut_(s.nodes * s.nodes, 0),
	fresh_(take())
{
}

coop_addr network::address(u16 node, u32 qpn, u32 qkey) const
{
	coop_addr a{};
	if (s_.by_lid) {
		a.lid = node + 1;
	} else {
		a.gid[10] = a.gid[11] = 0xff;
		a.gid[12] = 10;
		a.gid[15] = static_cast<u8>(node + 1);
	}
	a.qpn = qpn;
	a.qkey = qkey;
	return a;
}

int network::node_of(const coop_addr &a) const
{
	const coop_addr low = address(0, 0, 0);
	if (std::memcmp(a.gid, low.gid, 15))
		return -1;
	const u32 n = s_.by_lid ? a.lid : a.gid[15];
	return n >= 1 && n <= nodes_ ? static_cast<int>(n - 1) : -1;
}

u64 network::draw_delay()
{
	const network_faults &f = s_.net;
	u64 d = f.delay_us - f.jitter_us + (f.jitter_us ? rng_.below(2 * f.jitter_us + 1) : 0);
	if (rng_.chance(f.late_ppm)) {
		d += rng_.below(f.late_us + 1);
		++t_.delayed;
	}
	return d;
}

u32 network::take()
{
	if (free_.empty()) {
		slabs_.emplace_back(new packet[64]);
		for (u32 i = 0; i < 64; ++i) {
			free_.push_back(static_cast<u32>(pool_.size()));
			pool_.push_back(&slabs_.back()[i]);
		}
	}
	const u32 handle = free_.back();
	free_.pop_back();
	return handle;
}

void network::schedule_copy(u64 in)
{
	const u32 handle = take();
	const packet &p = fresh();
	packet &copy = at(handle);
	std::memcpy(copy.bytes, p.bytes, p.len);
	std::memcpy(&copy.len, &p.len, sizeof(packet) - offsetof(packet, len));
	clock_.after(in, what::arrive, p.dst, 0, handle);
}

void network::damage(packet &p)
{
	// Most flipped bits of a message do no harm. One that does: the page that a REQUEST
	// names.
	constexpr u32 first_index = COOP_WIRE_HEADER + 104;
	if (p.control && p.len > first_index && p.bytes[5] == COOP_CMD_REQUEST && rng_.coin()) {
		p.bytes[first_index] ^= static_cast<u8>(1u << rng_.below(5));
		return;
	}
	const u32 bits = rng_.between(1, 3);
	for (u32 i = 0; i < bits; ++i) {
		if (p.has_imm && rng_.below(4) == 0)
			p.imm ^= 1u << rng_.below(32);
		else if (p.len)
			p.bytes[rng_.below(p.len)] ^= static_cast<u8>(1u << rng_.below(8));
	}
}

// Bytes of an earlier segment, or an added multiple of CRC32C's polynomial, which no CRC32C
// detects: its 33 bits start at any bit, the lowest of a byte first.
void network::forge(packet &p)
{
	constexpr u64 polynomial = 0x82f63b78ull << 1 | 1;
	constexpr u32 span = 5; // bytes
	if (p.len < span)
		return;
	std::vector<u8> before(p.bytes, p.bytes + p.len);
	if (overheard_.size() == p.len && rng_.coin()) {
		std::memcpy(p.bytes, overheard_.data(), p.len);
	} else {
		const u64 bits = polynomial << rng_.below(8);
		const u32 at = rng_.below(p.len - span + 1);
		for (u32 i = 0; i < span; ++i)
			p.bytes[at + i] ^= static_cast<u8>(bits >> 8 * i);
	}
	if (rng_.coin())
		overheard_.swap(before);
	++t_.forged;
}

void network::send(const coop_addr &dst, u64 in)
{
	packet &p = fresh();
	const network_faults &f = s_.net;
	const int to = node_of(dst);
	++t_.packets;
	if (to < 0 || p.len > s_.mtu) {
		++t_.cut;
		return;
	}
	p.dst = static_cast<u16>(to);
	p.dst_qpn = dst.qpn;
	p.qkey = dst.qkey;
	if (is_cut(p.src, p.dst)) {
		++t_.cut;
		return;
	}
	if (rng_.chance(f.stale_ppm)) {
		++t_.stale;
		schedule_copy(in + f.stale_us / 4 + rng_.below(f.stale_us + 1));
	}
	if (rng_.chance(f.loss_ppm)) {
		++t_.lost;
		return;
	}
	if (rng_.chance(f.corrupt_ppm)) {
		++t_.corrupt;
		return;
	}
	if (rng_.chance(f.duplicate_ppm)) {
		++t_.duplicated;
		schedule_copy(in + draw_delay());
	}
	if ((p.control || f.unseen_data) && rng_.chance(f.unseen_ppm)) {
		++t_.corrupt_unseen;
		damage(p);
	}
	if (!p.control && rng_.chance(f.forged_ppm))
		forge(p);
	clock_.after(in + draw_delay(), what::arrive, p.dst, 0, fresh_);
	fresh_ = take();
}

} // namespace coop::sim
