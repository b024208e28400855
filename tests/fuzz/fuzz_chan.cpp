// SPDX-License-Identifier: MIT
// fuzz_chan.cpp - two rpc/chan engines, hosts that do anything the contract allows, and a
// network and a peer that do anything at all.
//
// Input: a script. Datagrams arrive in any order, repeated, lost, changed under a good MAC, or
// invented with the names of a live session. In all cases: no assertion fails, copies stay
// within placed memory, every send ends once, every placed receive comes back once, and at rest
// all pools are full.
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "rpc/base/mac.h"
#include "rpc/chan/chan.h"
#include "rpc/chan/wire.h"
#include "tests/fuzz/check.hpp"
#include "tests/fuzz/script.hpp"

namespace
{

constexpr u8 key[16] = {4, 5, 6};
constexpr u32 command_qpn = 0x31, data_qpn = 0x32;
constexpr u32 max_steps = 400, most_rest = 200000;
constexpr u32 max_length = 20000;

coop_addr address(u32 node, u32 qpn)
{
	coop_addr a{};
	a.lid = static_cast<u16>(node + 1);
	a.qpn = qpn;
	return a;
}

struct datagram {
	u32 channel;
	std::vector<u8> bytes;
};

struct side {
	side(u32 n, const coop_chan_cfg &cfg, u64 at) : index(n), now(at)
	{
		const std::size_t size = coop_chan_size(&cfg);
		FUZZ_CHECK(size);
		memory = std::make_unique<u64[]>(size / 8);
		e = coop_chan_create(memory.get(), size, &cfg, now);
		FUZZ_CHECK(e);
	}

	void on_event(const coop_chan_ev &ev)
	{
		switch (ev.kind) {
		case COOP_CHAN_EV_DELIVERED:
		case COOP_CHAN_EV_ABORTED:
			FUZZ_CHECK(placed.erase(ev.cookie) == 1);
			std::erase_if(receives,
				      [&](const auto &r) { return r.second == ev.cookie; });
			break;
		case COOP_CHAN_EV_SENT:
			FUZZ_CHECK(sends.erase(ev.cookie) == 1);
			FUZZ_CHECK(!wire.count(ev.id) || !wire.at(ev.id));
			break;
		default:
			break;
		}
	}

	void pump()
	{
		coop_chan_ev ev;
		while (coop_chan_next_event(e, now, &ev))
			on_event(ev);
		coop_chan_tx tx;
		while (coop_chan_next_tx(e, now, &tx)) {
			datagram d;
			d.channel = tx.channel;
			d.bytes.assign(tx.hdr, tx.hdr + tx.hdr_len);
			if (tx.id) {
				FUZZ_CHECK(sends.count(tx.cookie));
				FUZZ_CHECK(u64{tx.off} + tx.len <= sends.at(tx.cookie));
				++wire[tx.id];
			}
			d.bytes.resize(d.bytes.size() + tx.len, 0x5a);
			FUZZ_CHECK(d.bytes.size() <= (tx.channel ? 1024u : 512u));
			if (out.size() < 64)
				out.push_back(std::move(d));
			pending.push_back({tx.channel, tx.id});
			FUZZ_CHECK(pending.size() <= 16);
		}
		while (coop_chan_next_event(e, now, &ev))
			on_event(ev);
	}

	void done(int err)
	{
		const auto [channel, id] = pending.front();
		pending.pop_front();
		if (id)
			--wire[id];
		coop_chan_tx_done(e, channel, id, err, now);
	}

	u32 index;
	u64 now;
	std::unique_ptr<u64[]> memory;
	coop_chan *e;
	std::map<u64, u32> sends;  // length by cookie
	std::map<u64, u32> placed; // the same of receives
	std::map<u32, u32> wire;   // datagrams in the network, by id
	std::deque<std::pair<u32, u32>> pending;
	std::deque<datagram> out;
	std::vector<u32> ids;
	std::vector<std::pair<u32, u64>> receives; // rpc/chan's ids; cookies
	std::vector<u64> given_up;                 // cookies
	u64 next_cookie = 1;
	u8 mood = 0; // how the host answers PLACE
};

void take(side &to, const datagram &d, u32 from, u32 qpn)
{
	coop_chan_dgram rx{};
	rx.channel = d.channel;
	// Exactly its size, so that ASan sees a read past it.
	const std::vector<u8> exact(d.bytes);
	rx.buf = exact.data();
	rx.len = static_cast<u32>(exact.size());
	rx.src = address(from, qpn);
	coop_chan_in in;
	coop_chan_verdict v = coop_chan_rx(to.e, &rx, to.now, &in);
	if (v == COOP_CHAN_PLACE) {
		FUZZ_CHECK(in.length <= COOP_CHAN_MSG_SEGS * 65535u);
		if ((to.mood & 3) == 1)
			coop_chan_refuse(to.e,
					 static_cast<coop_chan_refusal>(1 + (to.mood >> 2) % 3),
					 to.now);
		if ((to.mood & 3) == 1 || (to.mood & 3) == 2)
			return; // 2: no answer
		const u64 cookie = to.next_cookie++;
		to.placed[cookie] = in.length;
		coop_chan_place(to.e, cookie, to.now, &in);
		to.receives.emplace_back(in.receive, cookie);
		v = COOP_CHAN_COPY;
	}
	if (v == COOP_CHAN_COPY) {
		for (const u64 cookie : to.given_up)
			FUZZ_CHECK(in.cookie != cookie);
		FUZZ_CHECK(to.placed.count(in.cookie));
		FUZZ_CHECK(u64{in.offset} + in.len <= to.placed.at(in.cookie));
		FUZZ_CHECK(u64{in.from} + in.len <= exact.size());
	}
}

void seal(std::vector<u8> &m)
{
	if (m.size() < COOP_CHAN_HEADER + COOP_CHAN_MAC)
		return;
	const u16 length = cpu_to_le16(static_cast<u16>(m.size()));
	std::memcpy(m.data() + 38, &length, 2);
	const std::size_t header = m[7] * 8u;
	if (header < COOP_CHAN_HEADER + COOP_CHAN_MAC || header > m.size())
		return;
	const u64 mac = cpu_to_le64(coop_mac(key, m.data(), header - COOP_CHAN_MAC));
	std::memcpy(m.data() + header - COOP_CHAN_MAC, &mac, 8);
}

void deliver(side &from, side &to, script &in)
{
	if (from.out.empty())
		return;
	const u8 how = in.byte();
	datagram d = pick(from.out, how);
	if (how & 16) {
		spoil(d.bytes, d.bytes.size(), 1 + (how >> 6), in);
		if (how & 32)
			seal(d.bytes);
	}
	take(to, d, from.index, d.channel ? data_qpn : command_qpn);
}

// A datagram of a live session that its sender never sent.
void made_up(side &from, side &to, script &in)
{
	coop_chan_packet p{};
	if (from.out.empty())
		return;
	const datagram &like = from.out[in.byte() % from.out.size()];
	if (coop_chan_decode(&p, key, like.bytes.data(), static_cast<u32>(like.bytes.size()),
			     true) != COOP_CHAN_D_OK)
		return;
	constexpr u8 types[] = {1, 2, 3, 4, 0x81, 0x82, 0x83, 0x84, 0x85};
	const u8 what = in.byte();
	p.type = types[what % 9];
	p.n_map = p.type == COOP_CHAN_T_ACK ? in.byte() % 64 : 0;
	for (u32 i = 0; i < p.n_map; ++i)
		p.map[i] = in.quad();
	const u8 change = in.byte();
	if (change & 1)
		p.seq += in.half();
	if (change & 2)
		p.ack += in.half();
	if (change & 4)
		p.sack = in.quad();
	if (change & 8)
		p.first = p.seq - in.byte();
	if (change & 16) {
		p.unit = in.half();
		p.offset = (p.seq - p.first) * p.unit;
		p.length = p.offset + in.half();
	}
	if (change & 32)
		p.flags ^= in.byte() & COOP_CHAN_W_ACK_NOW;
	if (change & 64)
		p.dst_session = 0;
	if (change & 128)
		p.src_session ^= in.byte();
	p.reason = in.byte() % 5;
	p.session = p.dst_session;
	const bool loaded = p.type <= 2 || p.type == COOP_CHAN_T_PROBE;
	p.payload_len = loaded ? in.half() % 900 : 0;
	if (p.type == COOP_CHAN_T_CHUNK && !(what & 128) && p.unit && p.length > p.offset)
		p.payload_len = std::min<u32>(900, std::min<u32>(p.unit, p.length - p.offset));
	p.size = static_cast<u16>(p.payload_len);
	datagram d;
	d.channel = what >> 6 & 1;
	d.bytes.resize(COOP_CHAN_COMMAND_MTU);
	d.bytes.resize(coop_chan_encode(&p, key, d.bytes.data()));
	d.bytes.resize(d.bytes.size() + p.payload_len, 0x77);
	take(to, d, from.index, d.channel ? data_qpn : command_qpn);
}

u32 peer(side &s, u32 of, bool data)
{
	coop_chan_peer_addr a{};
	a.command = address(of, command_qpn);
	if (data)
		a.data_qpn = data_qpn;
	const s64 id = coop_chan_open(s.e, &a, of, s.now);
	return id > 0 ? static_cast<u32>(id) : 0;
}

void send(side &s, u32 to, script &in)
{
	const u8 how = in.byte();
	coop_chan_msg m{};
	m.peer = how & 64 ? in.word() : peer(s, to, how & 1);
	m.flags = how >> 1 & 3;
	m.cookie = s.next_cookie++;
	m.tag = in.byte();
	m.length = how & 8 ? in.half() : in.byte();
	u32 id = 0;
	const int err = coop_chan_send(s.e, &m, s.now, &id);
	FUZZ_CHECK(err == 0 || err == -EAGAIN || err == -EMSGSIZE || err == -ENOENT);
	if (err)
		return;
	s.sends[m.cookie] = m.length;
	s.ids.push_back(id);
}

// Gives up a half-received message; its memory is the host's after the event.
void give_up(side &s, u8 which)
{
	if (s.receives.empty())
		return;
	const auto it = s.receives[which % s.receives.size()];
	const int err = coop_chan_give_up(s.e, it.first, s.now);
	FUZZ_CHECK(err == 0 || err == -ENOENT);
	if (!err)
		s.given_up.push_back(it.second);
}

void step(side *const *s, script &in)
{
	const u8 op = in.byte();
	const u32 a = op >> 7;
	side &me = *s[a], &other = *s[1 - a];
	switch (op & 15) {
	case 0:
	case 1:
		send(me, 1 - a, in);
		break;
	case 2:
	case 3:
	case 4:
		deliver(other, me, in);
		break;
	case 5:
		made_up(other, me, in);
		break;
	case 6:
		for (u32 n = 1 + in.byte() % 8; n && !me.pending.empty(); --n)
			me.done(in.byte() & 7 ? 0 : -EIO);
		break;
	case 7:
		me.now += static_cast<u64>(in.byte()) << (in.byte() & 15);
		coop_chan_expire(me.e, me.now);
		break;
	case 8:
		if (op & 16) {
			give_up(me, in.byte());
			break;
		}
		coop_chan_cancel(me.e,
				 me.ids.empty() ? in.word() : me.ids[in.byte() % me.ids.size()],
				 me.now);
		break;
	case 9:
		coop_chan_close(me.e, in.byte() & 1 ? in.word() : peer(me, 1 - a, true), me.now);
		break;
	case 10:
		me.mood = in.byte();
		break;
	case 11: { // anything at all
		datagram d;
		d.channel = in.byte() & 1;
		d.bytes.resize(in.half() % 1100);
		for (u8 &b : d.bytes)
			b = in.byte();
		const u32 magic = cpu_to_le32(COOP_CHAN_MAGIC);
		if (d.bytes.size() >= 8) {
			std::memcpy(d.bytes.data(), &magic, 4);
			d.bytes[4] = COOP_CHAN_VERSION;
		}
		seal(d.bytes);
		take(me, d, in.byte() % 3, in.byte() & 1 ? data_qpn : command_qpn);
		break;
	}
	case 12:
		if (!other.out.empty())
			other.out.pop_front(); // lost
		break;
	default: // a quiet period: everything arrives
		for (u32 n = 16; n && !other.out.empty(); --n) {
			const datagram d = other.out.front();
			other.out.pop_front();
			take(me, d, other.index, d.channel ? data_qpn : command_qpn);
		}
		while (!me.pending.empty())
			me.done(0);
	}
	me.pump();
	other.pump();
}

// The network takes nothing more; the engines give up in their own time.
void rest(side &s)
{
	s.mood = 0;
	for (u32 i = 0; i < most_rest; ++i) {
		s.pump();
		if (!s.pending.empty()) {
			while (!s.pending.empty())
				s.done(0);
			continue;
		}
		const u64 at = coop_chan_deadline(s.e);
		if (at == ~u64{0})
			break;
		s.now = std::max(s.now, at);
		coop_chan_expire(s.e, s.now);
	}
	s.pump();
	FUZZ_CHECK(coop_chan_deadline(s.e) == ~u64{0});
	FUZZ_CHECK(s.sends.empty() && s.placed.empty());
	struct coop_chan_stats st;
	coop_chan_stats(s.e, &st);
	FUZZ_CHECK(!st.sends_used && !st.receives_used && !st.segments_used && !st.active_used &&
		   !st.reorder_used);
	coop_chan_peer_info info;
	for (u32 cursor = 0; coop_chan_peer_next(s.e, &cursor, &info);)
		FUZZ_CHECK(!info.in_flight && !info.queued && !info.window);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8 *data, std::size_t size)
{
	script in(data, size);
	const u8 shape = in.byte();
	coop_chan_cfg cfg{};
	std::memcpy(cfg.key, key, sizeof(key));
	cfg.data_qpn = data_qpn;
	cfg.mtu[0] = 512;
	cfg.mtu[1] = 1024;
	cfg.credits[0] = cfg.credits[1] = 8;
	cfg.max_peers = 2;
	cfg.max_active = shape & 1 ? 1 : 2;
	cfg.max_reorder = shape & 2 ? 0 : 2;
	cfg.max_sends = 12;
	cfg.max_receives = shape & 4 ? 1 : 6;
	cfg.max_segments = 256;
	cfg.max_length = max_length;
	cfg.window = shape & 8 ? 64 : 0;
	cfg.first_seq = shape & 16 ? 0xfffffff8u : 7;
	cfg.max_tries = 3;
	cfg.rnr_tries = 3;
	cfg.quiet_us = shape & 32 ? 1 : 100000;
	cfg.flags = COOP_CHAN_F_FIRST_SEQ;
	const u64 start = 1000000;
	cfg.seed = 1;
	cfg.self = address(0, command_qpn);
	side a(0, cfg, start);
	cfg.seed = 2;
	cfg.self = address(1, command_qpn);
	side b(1, cfg, start);
	side *const s[2] = {&a, &b};
	for (u32 n = 0; in.more() && n < max_steps; ++n)
		step(s, in);
	rest(a);
	rest(b);
	return 0;
}
