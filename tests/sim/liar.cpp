// SPDX-License-Identifier: MIT
// liar.cpp - one function for each kind of lie.
#include "tests/sim/liar.hpp"

#include <algorithm>
#include <cstring>

#include "rpc/base/mac.h"
#include "tests/sim/world.hpp"

namespace coop::sim
{

namespace
{

constexpr u32 remembered = 32;

} // namespace

liar::liar(world &w, u16 node, u32 lies) : w_(w), node_(node), lies_(lies) {}

bool liar::tells(u32 kind)
{
	if (!(lies_ & kind) || w_.rng().below(3) == 0)
		return false;
	++w_.counts().lies;
	return true;
}

bool liar::claims_all() const
{
	return lies_ & lie_has_all;
}

void liar::overhear(const u8 *bytes, u32 len)
{
	coop_msg m;
	coop_plan plan;
	if (coop_wire_decode(&m, w_.at(node_).key(), bytes, len) != COOP_DECODE_OK ||
	    m.command != COOP_CMD_REQUEST)
		return;
	const coop_msg_request &r = m.u.request;
	if (coop_plan_init(&plan, r.page_shift, r.mtu, r.mtu, coop_extents_pages(r.ext, r.n_ext),
			   r.options & COOP_OPT_PACKED))
		return;
	if (asked_.size() < remembered)
		asked_.emplace_back();
	asked_[next_++ % asked_.size()] = {m.imm, plan.seg_bits, plan.n_segs, r.data};
	if (asked_.size() == remembered)
		next_ %= remembered;
}

void liar::garble(coop_msg &m)
{
	dice &rng = w_.rng();
	coop_msg_commit &c = m.u.commit;
	switch (rng.below(7)) {
	case 0:
		c.fid.lo ^= 3;
		break;
	case 1:
		c.version += rng.coin() ? 1 : -1;
		break;
	case 2:
		c.size += rng.coin() ? 8 : -8;
		break;
	case 3:
		m.id += rng.below(5) - 2u;
		break;
	case 4:
		c.source.qpn ^= 1u << rng.below(24);
		break;
	case 5:
		m.imm ^= 1u << rng.below(32);
		break;
	case 6:
		c.n_sums = rng.below(4);
		break;
	}
}

bool liar::speak(packet &p, coop_addr &to, const content *other)
{
	coop_msg m;
	if (coop_wire_decode(&m, w_.at(node_).key(), p.bytes, p.len) != COOP_DECODE_OK)
		return !tells(lie_silent);
	bool other_name = false;
	if (m.command == COOP_CMD_COMMIT) {
		if (other)
			others_[{m.id, m.imm}] = *other;
		if (const auto it = others_.find({m.id, m.imm}); it != others_.end()) {
			m.u.commit.fid = w_.truth().fid(it->second.file);
			m.u.commit.version = w_.truth().version(it->second);
			other_name = true;
		}
	}
	if (tells(lie_silent))
		return false;
	if (m.command == COOP_CMD_COMMIT) {
		// A second lie could name the requested content: with bytes of another version
		// that would be the consistent forgery of scenario.hpp.
		if (!other_name && tells(lie_identity))
			garble(m);
		if (tells(lie_sum)) {
			for (u32 i = 0; i < m.u.commit.n_sums; ++i)
				m.u.commit.sum[i] ^= 1u << w_.rng().below(32);
		}
	} else if (m.command & COOP_CMD_ANSWER && tells(lie_identity)) {
		m.command = static_cast<u8>(COOP_CMD_ANSWER | w_.rng().between(2, 6));
		if (m.command == COOP_CMD_PASSED)
			m.u.passed_to = to; // a peer of the requester: itself
		m.reason = m.command == COOP_CMD_REFUSED ? w_.rng().below(COOP_REASON_MAX) : 0;
		m.value = static_cast<u32>(w_.rng().next());
	}
	const u32 len =
		coop_wire_encode(&m, w_.at(node_).key(), p.bytes, coop_wire_room(w_.shape().mtu));
	if (len)
		p.len = len;
	return true;
}

bool liar::send(packet &p)
{
	dice &rng = w_.rng();
	const asked *of = nullptr;
	for (const asked &a : asked_) {
		if (a.imm >> a.seg_bits == p.imm >> a.seg_bits)
			of = &a;
	}
	if (!of)
		return !(lies_ & lie_silent);
	const u32 segs = (1u << of->seg_bits) - 1;
	if (tells(lie_silent))
		return false;
	if (tells(lie_generation))
		p.imm ^= (1 + rng.below(~0u >> of->seg_bits >> 1)) << of->seg_bits;
	if (tells(lie_number)) {
		if (of->n_segs <= segs)
			p.imm = (p.imm & ~segs) | rng.between(of->n_segs, segs);
		else
			p.has_imm = false;
	}
	if (tells(lie_mislabel))
		p.imm = (p.imm & ~segs) | rng.below(of->n_segs);
	if (p.len && tells(lie_bytes))
		p.bytes[rng.below(p.len)] ^= static_cast<u8>(1 + rng.below(255));
	return true;
}

void liar::post(packet &p, const coop_addr &self, u16 to)
{
	p.src = node_;
	p.src_qpn = self.qpn;
	p.has_imm = false;
	p.control = true;
	p.imm = 0;
	w_.net().send(w_.at(to).address(), 0);
}

void liar::nonsense(const coop_addr &self, u16 to)
{
	dice &rng = w_.rng();
	packet &p = w_.net().fresh();
	// A genuine header of any version, command and flags, a body of any bytes, a good MAC.
	const u32 room = coop_wire_room(w_.shape().mtu);
	p.len = rng.between(COOP_WIRE_HEADER + COOP_WIRE_MAC, room);
	for (u32 i = 0; i < p.len; ++i)
		p.bytes[i] = rng.below(3) ? 0 : static_cast<u8>(rng.next());
	const u32 magic = COOP_WIRE_MAGIC;
	std::memcpy(p.bytes, &magic, 4);
	p.bytes[4] = rng.below(4) ? COOP_WIRE_VERSION : static_cast<u8>(rng.next());
	p.bytes[5] = rng.below(4)
			     ? static_cast<u8>((rng.coin() ? COOP_CMD_ANSWER : 0) | rng.below(8))
			     : static_cast<u8>(rng.next());
	p.bytes[7] = rng.below(4) ? 0 : 1;
	const u16 length = static_cast<u16>(p.len);
	std::memcpy(p.bytes + 20, &length, 2);
	const u64 mac = coop_mac(w_.at(node_).key(), p.bytes, p.len - COOP_WIRE_MAC);
	std::memcpy(p.bytes + p.len - COOP_WIRE_MAC, &mac, 8);
	post(p, self, to);
}

void liar::flood(const coop_addr &self, u16 to)
{
	dice &rng = w_.rng();
	for (u32 n = rng.between(1, 40); n && w_.may_pester(); --n) {
		coop_msg m{};
		m.version = COOP_WIRE_VERSION;
		m.command = rng.below(8) ? COOP_CMD_REQUEST
					 : (rng.coin() ? COOP_CMD_QUERY : COOP_CMD_PING);
		m.hops = rng.coin() ? COOP_WIRE_HOPS : COOP_WIRE_PASS;
		if (m.command == COOP_CMD_REQUEST && rng.coin())
			m.command = COOP_CMD_FORWARD;
		m.id = rng.below(4) ? rng.next() : rng.below(16);
		m.imm = static_cast<u32>(rng.next()) << 10;
		coop_msg_request &r = m.u.request;
		const content c = w_.truth().latest(rng.below(w_.truth().files()));
		r.fid = w_.truth().fid(c.file);
		r.version = w_.truth().version(c);
		r.size = w_.truth().size(c);
		r.data = r.reply = self;
		r.data.qpn = rng.below(1u << 12);
		r.budget_us = rng.coin() ? ~0u : rng.below(100000);
		r.mtu = static_cast<u16>(w_.shape().mtu);
		r.options = w_.shape().packed ? COOP_OPT_PACKED : 0;
		r.page_shift = static_cast<u8>(w_.shape().page_shift);
		r.n_ext = 1;
		r.ext[0].count = std::min<u32>(rng.between(1, 64), w_.shape().block_pages);
		packet &p = w_.net().fresh();
		p.len = coop_wire_encode(&m, w_.at(node_).key(), p.bytes,
					 coop_wire_room(w_.shape().mtu));
		if (p.len)
			post(p, self, to);
	}
}

void liar::spray(const coop_addr &self)
{
	dice &rng = w_.rng();
	if (asked_.empty())
		return;
	const asked &a = asked_[rng.below(static_cast<u32>(asked_.size()))];
	for (u32 n = rng.between(1, 8); n && w_.may_pester(); --n) {
		packet &p = w_.net().fresh();
		p.len = rng.below(w_.shape().mtu + 1);
		std::memset(p.bytes, 0xee, p.len);
		p.src = node_;
		p.src_qpn = rng.coin() ? self.qpn : rng.below(1u << 12);
		p.has_imm = rng.below(8);
		// Any generation but the given one, which would be a forgery: see scenario.hpp.
		p.imm = a.imm ^ ((1 + rng.below(~0u >> a.seg_bits >> 1)) << a.seg_bits);
		p.control = false;
		w_.net().send(a.data, n);
	}
}

void liar::act(const coop_addr &self)
{
	const u16 to = static_cast<u16>(w_.rng().below(w_.nodes()));
	if (to == node_ || w_.draining())
		return;
	if (tells(lie_garbage) && w_.may_pester())
		nonsense(self, to);
	if (tells(lie_flood))
		flood(self, to);
	if (tells(lie_data_spray))
		spray(self);
}

} // namespace coop::sim
