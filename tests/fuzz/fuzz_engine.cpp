// SPDX-License-Identifier: MIT
// fuzz_engine.cpp - two engines, driven by bytes.
//
// The bytes choose what the network and the peers do: any datagram in any order, genuine or
// invented with a good MAC, any immediate data, flushes, lost queue pairs, jumps of time, any
// answer of a page store. The program keeps the host contract of engine.h: a WR completes once,
// a send completes once, an event is answered once. At the end it answers everything and lets
// time pass: both engines must come to rest with nothing invited and nothing in flight.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "rpc/base/mac.h"
#include "rpc/fetch/wire.h"
#include "tests/fuzz/check.hpp"
#include "tests/fuzz/script.hpp"

namespace
{

constexpr u32 slots = 3, serves = 2, max_steps = 600, window = 1u << 18;
constexpr u32 most_rest = 4000;    // deadlines until both are at rest
constexpr u32 call_limit = 200000; // engine calls in one pump: more is a livelock
constexpr u8 key[16] = {7};

struct segment {
	u32 slot, imm, len, src_qp;
};

struct datagram {
	std::vector<u8> bytes;
	coop_addr to;
};

class side
{
public:
	explicit side(const coop_engine_cfg &cfg)
	{
		const std::size_t size = coop_engine_size(&cfg);
		FUZZ_CHECK(size);
		memory_.reset(new u64[(size + 7) / 8]);
		e = coop_engine_init(memory_.get(), size, &cfg, now);
		FUZZ_CHECK(e);
		for (u32 i = 0; i < slots; ++i)
			coop_engine_set_fetch_qp(e, i, 0x100 + i, 0x55);
		for (u32 i = 0; i < serves; ++i)
			coop_engine_set_serve_qp(e, i, 0x200 + i);
	}

	static coop_addr address(u32 who)
	{
		coop_addr a{};
		a.gid[10] = a.gid[11] = 0xff;
		a.gid[12] = 10;
		a.gid[15] = static_cast<u8>(1 + who);
		a.qpn = 0x11;
		a.qkey = 0x1c00b;
		return a;
	}

	void pump()
	{
		coop_tx tx;
		coop_ev ev;
		u32 calls = 0;
		for (bool any = true; any;) {
			any = false;
			while (coop_engine_next_tx(e, now, &tx)) {
				FUZZ_CHECK(++calls < call_limit);
				work(tx);
				any = true;
			}
			while (coop_engine_next_event(e, now, &ev)) {
				FUZZ_CHECK(++calls < call_limit);
				event(ev);
				any = true;
			}
		}
	}

	void work(const coop_tx &tx)
	{
		switch (tx.kind) {
		case COOP_TX_CTRL:
			FUZZ_CHECK(tx.len <= COOP_CTRL_MAX);
			if (sent.size() < 64)
				sent.push_back({{tx.buf, tx.buf + tx.len}, tx.addr});
			break;
		case COOP_TX_POST_RECV:
			FUZZ_CHECK(tx.slot < slots && tx.n_seg && tx.n_seg <= COOP_MAX_SEGS);
			FUZZ_CHECK(posted[tx.slot] == 0 && !stopped[tx.slot]);
			posted[tx.slot] = tx.n_seg;
			next_wr[tx.slot] = 0;
			for (u32 i = 0; i < tx.n_seg; ++i)
				FUZZ_CHECK(tx.seg[i].len + tx.seg[i].spill >= COOP_MTU_MIN);
			break;
		case COOP_TX_DATA:
			FUZZ_CHECK(tx.slot < serves && tx.n_seg && tx.n_seg <= 64);
			sends.push_back({tx.id, tx.n_seg});
			for (u32 i = 0; i < tx.n_seg && wire.size() < 2048; ++i)
				wire.push_back({tx.addr.qpn - 0x100, tx.seg[i].imm, tx.seg[i].len,
						0x200 + tx.slot});
			break;
		case COOP_TX_STOP_QP:
			stopped[tx.slot] = true;
			break;
		case COOP_TX_RESET_QP:
			FUZZ_CHECK(posted[tx.slot] == 0);
			stopped[tx.slot] = false;
			break;
		}
	}

	void event(const coop_ev &ev)
	{
		switch (ev.kind) {
		case COOP_EV_LOOKUP:
			lookups.push_back(ev.id);
			break;
		case COOP_EV_RECHECK:
			rechecks.push_back(ev.id);
			break;
		case COOP_EV_SERVE_END:
			drop(lookups, ev.id);
			drop(rechecks, ev.id);
			for (const auto &s : sends)
				FUZZ_CHECK(s.id != ev.id); // the network still reads its memory
			break;
		case COOP_EV_VERIFY:
			for (u32 i = 0; i < ev.n_moves; ++i)
				move(ev, ev.moves[i]);
			verifies.push_back({ev.id, ev.pages});
			break;
		case COOP_EV_FETCH_DONE:
			FUZZ_CHECK(std::find(running.begin(), running.end(), ev.id) !=
				   running.end());
			drop(running, ev.id);
			done.push_back(ev.id);
			break;
		case COOP_EV_PEER:
		case COOP_EV_OFFER:
			break;
		}
	}

	void move(const coop_ev &ev, const coop_move &m)
	{
		coop_seg seg, into;
		FUZZ_CHECK(coop_engine_fetch_seg(e, ev.id, m.seg, &seg));
		FUZZ_CHECK(coop_engine_fetch_seg(e, ev.id, m.into, &into));
		FUZZ_CHECK(seg.len <= into.len); // the segment fits
	}

	// Does everything that the host owes.
	bool settle()
	{
		bool any = false;
		for (u32 s = 0; s < slots; ++s) {
			if (stopped[s] && posted[s]) {
				const u32 n = posted[s];
				posted[s] = 0;
				coop_engine_rx_flush(e, s, n, now);
				any = true;
			}
		}
		while (!sends.empty()) {
			const auto s = sends.front();
			sends.pop_front();
			coop_engine_tx_done(e, s.id, s.n, 0, now);
			any = true;
		}
		for (u32 id : take(lookups)) {
			coop_engine_lookup_done(e, id, 0, 0, 1, now);
			any = true;
		}
		for (u32 id : take(rechecks)) {
			coop_engine_recheck_done(e, id, 0, nullptr, now);
			any = true;
		}
		for (const auto &v : verifies)
			coop_engine_verify_done(e, v.id, v.pages, now);
		any |= !verifies.empty();
		verifies.clear();
		for (u32 id : take(done)) {
			coop_engine_fetch_release(e, id, now);
			any = true;
		}
		pump();
		return any;
	}

	static std::vector<u32> take(std::vector<u32> &v)
	{
		std::vector<u32> out;
		out.swap(v);
		return out;
	}
	static void drop(std::vector<u32> &v, u32 id)
	{
		v.erase(std::remove(v.begin(), v.end(), id), v.end());
	}

	struct send {
		u32 id, n;
	};
	struct verdict {
		u32 id;
		u64 pages;
	};
	coop_engine *e = nullptr;
	u64 now = 1000000;
	std::deque<datagram> sent;
	std::deque<send> sends;
	std::vector<u32> lookups, rechecks, done, running;
	std::vector<verdict> verifies;
	u32 posted[slots] = {}, next_wr[slots] = {};
	bool stopped[slots] = {};
	std::deque<segment> wire; // data that this side sent
	u32 peer_id = 0;

private:
	std::unique_ptr<u64[]> memory_;
};

void hand_over(side &to, const std::vector<u8> &bytes, u32 from)
{
	const std::vector<u8> exact(bytes);
	const coop_addr src = side::address(from);
	coop_engine_rx_ctrl(to.e, exact.data(), static_cast<u32>(exact.size()), &src, to.now);
}

void seal(std::vector<u8> &m)
{
	const u64 mac = cpu_to_le64(coop_mac(key, m.data(), m.size() - COOP_WIRE_MAC));
	std::memcpy(m.data() + m.size() - COOP_WIRE_MAC, &mac, 8);
}

void submit(side &s, script &in)
{
	coop_fetch_req req{};
	const u8 shape = in.byte();
	req.cookie = in.byte();
	req.fid = {1, static_cast<u64>(1 + (shape & 3))};
	req.version = 5;
	req.size = 1u << 22;
	req.n_ext = shape & 0x80 ? in.byte() % 6 : 1 + (shape >> 2 & 1);
	u64 at = in.byte();
	for (u32 i = 0; i < req.n_ext && i < COOP_MAX_EXTENTS; ++i) {
		req.ext[i] = {at, static_cast<u32>(1 + in.byte() % 12), 0};
		at += req.ext[i].count + in.byte() % 9;
	}
	req.n_hints = shape >> 3 & 1;
	req.hints[0] = shape & 0x40 ? in.word() : s.peer_id;
	req.budget_us = shape & 0x20 ? in.word() % (2 * COOP_BUDGET_MOST_US) : 0;
	u32 id;
	const int err = coop_engine_submit(s.e, &req, s.now, &id);
	FUZZ_CHECK(err == 0 || err == -EAGAIN || err == -ENOENT || err == -EINVAL);
	if (!err)
		s.running.push_back(id);
}

void complete(side &s, const coop_rx &rx)
{
	--s.posted[rx.slot];
	coop_engine_rx_data(s.e, &rx, s.now);
}

// Stray data: any completion that a queue pair can bring.
void stray(side &s, u32 from, script &in)
{
	const u32 slot = in.byte() % slots;
	if (!s.posted[slot])
		return;
	coop_rx rx{};
	const u8 how = in.byte();
	rx.slot = slot;
	rx.wr = s.next_wr[slot]++;
	rx.imm = in.word();
	rx.byte_len = how & 2 ? 40 + (in.word() & 0xffff) : 40 + (how & 4 ? 0 : 1024);
	rx.src_qp = how & 8 ? in.word() : 0x200 + (how >> 4 & 1);
	rx.has_imm = !(how & 32);
	rx.has_gid = !(how & 64);
	std::memcpy(rx.src_gid, side::address(how & 128 ? 9 : from).gid, 16);
	complete(s, rx);
}

// Delivers some of the other side's data, in any order, repeated, or slightly changed.
void arrive(side &s, side &other, u32 from, script &in)
{
	const u8 how = in.byte();
	for (u32 n = 1 + (how & 31); n && !other.wire.empty(); --n) {
		const std::size_t i = how & 32 ? in.byte() % other.wire.size() : 0;
		const segment g = other.wire[i];
		if (!(how & 64))
			other.wire.erase(other.wire.begin() + static_cast<std::ptrdiff_t>(i));
		if (g.slot >= slots || !s.posted[g.slot])
			continue;
		coop_rx rx{};
		rx.slot = g.slot;
		rx.wr = s.next_wr[g.slot]++;
		rx.imm = how & 128 ? g.imm ^ in.byte() : g.imm;
		rx.byte_len = COOP_GRH + g.len;
		rx.src_qp = g.src_qp;
		rx.has_imm = true;
		rx.has_gid = true;
		std::memcpy(rx.src_gid, side::address(from).gid, 16);
		complete(s, rx);
	}
}

void made_up(side &s, u32 from, script &in)
{
	std::vector<u8> m(COOP_WIRE_HEADER + COOP_WIRE_MAC + in.byte() * 2u);
	const u32 magic = cpu_to_le32(COOP_WIRE_MAGIC);
	for (u8 &b : m)
		b = in.byte();
	std::memcpy(m.data(), &magic, 4);
	if (m[4] & 0x80)
		m[4] = COOP_WIRE_VERSION;
	const std::uint16_t length = cpu_to_le16(static_cast<std::uint16_t>(m.size()));
	std::memcpy(m.data() + 20, &length, 2);
	seal(m);
	hand_over(s, m, from);
}

void deliver(side &from, side &to, u32 who, script &in)
{
	if (from.sent.empty())
		return;
	const u8 how = in.byte();
	datagram d = pick(from.sent, how);
	if (how & 16) {
		spoil(d.bytes, d.bytes.size() - COOP_WIRE_MAC, 1 + (how >> 5), in);
		seal(d.bytes);
	}
	hand_over(to, d.bytes, who);
}

void step(side *const *s, script &in)
{
	const u8 op = in.byte();
	const u32 a = op >> 7;
	side &me = *s[a], &other = *s[1 - a];
	switch (op & 15) {
	case 0:
	case 1:
		submit(me, in);
		break;
	case 2:
	case 3:
		deliver(other, me, 1 - a, in);
		break;
	case 4:
		stray(me, 1 - a, in);
		break;
	case 5:
		arrive(me, other, 1 - a, in);
		break;
	case 6:
		made_up(me, in.byte() & 1 ? 1 - a : 5, in);
		break;
	case 7: {
		const u32 slot = in.byte() % slots;
		if (me.posted[slot]) {
			const u32 n = 1 + in.byte() % me.posted[slot];
			me.posted[slot] -= n;
			coop_engine_rx_flush(me.e, slot, n, me.now);
		}
		break;
	}
	case 8:
		me.now += in.byte() << (in.byte() & 15);
		coop_engine_expire(me.e, me.now);
		break;
	case 9:
		for (u32 id : side::take(me.lookups)) {
			const u64 have = in.quad();
			const u32 how = in.byte();
			const u64 size = how & 1 ? 1u << 22 : in.quad();
			const u64 sums[COOP_MAX_PAGES] = {have};
			if (how & 8 &&
			    coop_engine_lookup_pass(me.e, id, in.byte() & 31, 7, me.now) == 0)
				continue;
			if (how & 2)
				coop_engine_lookup_kept(me.e, id, have, size, 7,
							how & 4 ? sums : nullptr, me.now);
			else
				coop_engine_lookup_done(me.e, id, have, size, 7, me.now);
		}
		break;
	case 10:
		if (in.byte() & 1) {
			const coop_offer o = {{1, 2},    7, in.quad(), {in.byte(), 1, 0},
					      in.byte(), 0};
			(void)coop_engine_offer(me.e, in.byte() & 31, &o);
		}
		for (u32 id : side::take(me.rechecks)) {
			const u64 sums[COOP_MAX_PAGES] = {in.word()};
			coop_engine_recheck_done(me.e, id, in.quad(), sums, me.now);
		}
		break;
	case 11:
		if (!me.sends.empty()) {
			auto &f = me.sends.front();
			const u32 n = 1 + in.byte() % f.n, id = f.id;
			f.n -= n;
			if (!f.n)
				me.sends.pop_front();
			coop_engine_tx_done(me.e, id, n, in.byte() & 7 ? 0 : -EIO, me.now);
		}
		break;
	case 12:
		if (!me.verifies.empty()) {
			const auto v = me.verifies.back();
			me.verifies.pop_back();
			coop_engine_verify_done(
				me.e, v.id, in.byte() & 1 ? v.pages : in.quad() & v.pages, me.now);
		}
		break;
	case 13:
		coop_engine_cancel(me.e, me.running.empty() ? in.word() : me.running.back(),
				   me.now);
		break;
	case 14: {
		const coop_addr peer = side::address(1 - a);
		if (in.byte() & 1) {
			coop_engine_peer_del(me.e, &peer, COOP_PEER_BY_DAEMON);
		} else {
			const s64 id =
				coop_engine_peer_add(me.e, &peer, COOP_PEER_BY_DAEMON, me.now);
			me.peer_id = id > 0 ? static_cast<u32>(id) : 0;
		}
		break;
	}
	case 15:
		for (u32 id : side::take(me.done))
			coop_engine_fetch_release(me.e, id, me.now);
		break;
	}
	me.pump();
}

void rest(side &s)
{
	// Answers the engine's events and lets time pass until nothing is in flight.
	for (u32 i = 0; i < most_rest; ++i) {
		const bool any = s.settle();
		u32 cursor = 0;
		coop_request_info info;
		if (!any && s.running.empty() &&
		    !coop_engine_request_next(s.e, &cursor, s.now, &info))
			break;
		const u64 at = coop_engine_deadline(s.e);
		s.now = at != ~u64{0} && at > s.now ? at : s.now + 1;
		coop_engine_expire(s.e, s.now);
		s.pump();
	}
	FUZZ_CHECK(s.running.empty());
	struct coop_engine_stats st;
	coop_engine_stats(s.e, &st);
	FUZZ_CHECK(st.window_bytes <= window && st.invited_bytes == 0);
	coop_request_info info;
	for (u32 cursor = 0; coop_engine_request_next(s.e, &cursor, s.now, &info);)
		FUZZ_CHECK(!"at rest, but a request is in flight");
	coop_peer_info peer;
	for (u32 cursor = 0; coop_engine_peer_next(s.e, &cursor, &peer);)
		FUZZ_CHECK(peer.in_flight == 0);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8 *data, std::size_t size)
{
	script in(data, size);
	const u8 shape = in.byte();
	coop_engine_cfg cfg{};
	std::memcpy(cfg.key, key, sizeof(key));
	cfg.page_shift = 12;
	cfg.mtu = shape & 1 ? 4096 : shape & 2 ? 1000 : 1024;
	cfg.max_fetches = slots;
	cfg.max_serves = serves;
	cfg.max_queued = 4;
	cfg.max_peers = 4;
	cfg.peer_timeout_us = 20000;
	cfg.window_bytes = window;
	cfg.serve_bytes_s = shape & 4 ? 1u << 20 : 0;
	cfg.chunk_pages = 256;
	cfg.flags = (shape & 8 ? COOP_F_PAGE_CRC : 0) | (shape & 16 ? COOP_F_PACKED : 0) |
		    (shape & 32 ? COOP_F_PAGE_TAG : 0) | COOP_F_FORWARDS;
	cfg.seed = 1;
	cfg.self = side::address(0);
	side a(cfg);
	cfg.seed = 2;
	cfg.self = side::address(1);
	side b(cfg);
	side *const s[2] = {&a, &b};
	for (u32 i = 0; i < 2; ++i) {
		const coop_addr peer = side::address(1 - i);
		s[i]->peer_id = static_cast<u32>(
			coop_engine_peer_add(s[i]->e, &peer, COOP_PEER_BY_DAEMON, s[i]->now));
		// Requests are passed on to these, and answers may name them; nobody is there.
		for (u32 who = 2; who < 4; ++who) {
			const coop_addr other = side::address(who);
			coop_engine_peer_add(s[i]->e, &other, COOP_PEER_BY_DAEMON, s[i]->now);
		}
	}
	for (u32 n = 0; in.more() && n < max_steps; ++n)
		step(s, in);
	rest(a);
	rest(b);
	return 0;
}
