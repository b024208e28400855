// SPDX-License-Identifier: MIT
// lab.cpp - see lab.hpp. The queue pairs behave like hardware: they use WRs in posting
// order, drop a datagram without a WR, and return the rest in a flush.
#include "tests/unit/fetch/lab.hpp"

#include <algorithm>
#include <cstring>

namespace lab
{

namespace
{

u32 checksum(const u8 *p, std::size_t n)
{
	u32 h = 2166136261u;
	while (n--)
		h = (h ^ *p++) * 16777619u;
	return h;
}

} // namespace

u8 content(u32 page, u32 off)
{
	return static_cast<u8>(page * 131 + off * 7 + (off >> 8) * 13 + 1);
}

u8 command(const std::vector<u8> &message)
{
	return message.at(5);
}

node::node(network &n, u8 number, const node_shape &shape) : net(n)
{
	cfg.seed = 1000 + number;
	cfg.self.gid[0] = 0xfe;
	cfg.self.gid[15] = number;
	cfg.self.qpn = number * 0x1000u + 0x11;
	cfg.self.qkey = 0x80000001;
	own = cfg.self;
	if (shape.first) {
		cfg.self = shape.first->cfg.self;
		std::memcpy(own.gid, cfg.self.gid, sizeof(own.gid)); // one port
	}
	cfg.shards = shape.shards;
	cfg.shard = shape.shard;
	cfg.page_shift = shape.page_shift;
	cfg.mtu = shape.mtu;
	cfg.max_fetches = shape.fetches;
	cfg.max_serves = shape.serves;
	cfg.max_queued = shape.queued;
	cfg.max_peers = 16;
	cfg.peer_timeout_us = 50000;
	cfg.window_bytes = shape.window;
	cfg.serve_bytes_s = shape.serve_bytes_s;
	cfg.fetch_depth = shape.fetch_depth;
	cfg.serve_depth = shape.serve_depth;
	cfg.flags = shape.flags | COOP_F_FORWARDS;
	if (shape.sole)
		cfg.policy = coop_policy_sole_source();
	memory.resize((coop_engine_size(&cfg) + 7) / 8);
	e = coop_engine_init(memory.data(), memory.size() * 8, &cfg, net.now);
	qps_.resize(cfg.max_fetches);
	for (u32 i = 0; i < cfg.max_fetches; ++i)
		coop_engine_set_fetch_qp(e, i, number * 0x1000u + 0x100 + i, 0x80000002);
	for (u32 i = 0; i < cfg.max_serves; ++i)
		coop_engine_set_serve_qp(e, i, number * 0x1000u + 0x200 + i);
}

int node::fetch(u32 pages, u32 *id, u64 version)
{
	coop_fetch_req req{};
	req.version = version;
	return submit(req, pages, id);
}

int node::fetch_from(u32 pages, std::vector<u32> parents, u32 level, bool relay)
{
	coop_fetch_req req{};
	req.version = 7;
	req.n_hints = req.n_parents = static_cast<u32>(parents.size());
	std::copy(parents.begin(), parents.end(), req.hints);
	req.level = level;
	req.load = true;
	req.relay = relay;
	return submit(req, pages, nullptr);
}

int node::submit(coop_fetch_req &req, u32 pages, u32 *id)
{
	req.cookie = ++cookies_;
	req.fid = {1, 2};
	req.size = 1 << 30;
	req.budget_us = budget_us;
	req.n_ext = 1;
	req.ext[0] = {0, pages, 0};
	pages_[req.cookie].assign(std::size_t{pages} << cfg.page_shift, 0xee);
	u32 scratch;
	return coop_engine_submit(e, &req, net.now, id ? id : &scratch);
}

u8 *node::byte(u64 cookie, u32 page, u32 off)
{
	return &pages_.at(cookie).at((std::size_t{page} << cfg.page_shift) + off);
}

bool node::page_right(u32 cookie, u32 page) const
{
	const std::vector<u8> &p = pages_.at(cookie);
	for (u32 off = 0; off < 1u << cfg.page_shift; ++off)
		if (p[(std::size_t{page} << cfg.page_shift) + off] != content(page, off))
			return false;
	return true;
}

// At the address that nodes share, each message goes to one of them.
bool node::gets(const std::vector<u8> &message, const coop_addr &to) const
{
	const auto len = static_cast<u32>(message.size());
	return cfg.self.qpn == to.qpn
		       ? coop_wire_shard(message.data(), len, cfg.shards) == cfg.shard
		       : own.qpn == to.qpn;
}

void node::transmit(const coop_tx &tx)
{
	switch (tx.kind) {
	case COOP_TX_CTRL: {
		std::vector<u8> message(tx.buf, tx.buf + tx.len);
		const u8 what = command(message);
		const bool by_itself = what & COOP_CMD_ANSWER || what == COOP_CMD_REQUEST;
		for (auto &n : net.nodes) {
			if (!n->gets(message, tx.addr))
				continue;
			if (!net.filter || net.filter(*n, message))
				n->ctrl(message, by_itself ? own : cfg.self);
		}
		break;
	}
	case COOP_TX_POST_RECV: {
		qp &q = qps_.at(tx.slot);
		EXPECT_EQ(q.next, q.posted.size()) << "posted over WRs in use";
		EXPECT_LE(tx.n_seg, cfg.fetch_depth ? cfg.fetch_depth : COOP_MAX_SEGS);
		EXPECT_FALSE(q.dead);
		q.posted.assign(tx.seg, tx.seg + tx.n_seg);
		for (const coop_seg &s : q.posted)
			EXPECT_EQ(s.len + s.spill, cfg.mtu);
		q.next = 0;
		q.cookie = tx.cookie;
		++posts;
		break;
	}
	case COOP_TX_DATA: {
		const u32 id = tx.id, n = tx.n_seg;
		EXPECT_LE(n, 64u);
		for (u32 i = 0; i < n; ++i) {
			const coop_seg &s = tx.seg[i];
			datagram d;
			d.to_qp = tx.addr.qpn;
			d.imm = s.imm;
			d.src_qp = own.qpn - 0x11 + 0x200 + tx.slot;
			std::memcpy(d.src_gid.data(), own.gid, 16);
			for (u32 f = 0; f < s.n_frag; ++f)
				for (u32 b = 0; b < s.frag[f].len; ++b)
					d.payload.push_back(s.frag[f].absent
								    ? 0
								    : content(s.frag[f].page,
									      s.frag[f].off + b));
			net.air.push_back(std::move(d));
		}
		if (hold_sends)
			sends.emplace_back(id, n);
		else
			coop_engine_tx_done(e, id, n, 0, net.now);
		break;
	}
	case COOP_TX_STOP_QP: {
		qp &q = qps_.at(tx.slot);
		++stops;
		q.dead = true;
		const u32 left = static_cast<u32>(q.posted.size()) - q.next;
		q.next = static_cast<u32>(q.posted.size());
		if (left)
			coop_engine_rx_flush(e, tx.slot, left, net.now);
		break;
	}
	case COOP_TX_RESET_QP:
		++resets;
		EXPECT_TRUE(qps_.at(tx.slot).dead) << "RESET without ERR (rule 2)";
		EXPECT_EQ(qps_.at(tx.slot).next, qps_.at(tx.slot).posted.size());
		if (slow_resets) {
			coop_engine_reset_begin(e, tx.slot);
			resetting.push_back(tx.slot);
		} else {
			qps_.at(tx.slot).dead = false;
		}
		break;
	}
}

void node::reset_done()
{
	const u32 slot = resetting.front();
	resetting.pop_front();
	qps_.at(slot).dead = false;
	coop_engine_reset_done(e, slot, net.now);
}

u64 node::sum(const coop_ev &ev, u32 ordinal, const u8 *bytes) const
{
	return ev.sum == COOP_SUM_TAG ? coop_engine_tag(e, &ev, ordinal, bytes)
				      : checksum(bytes, 1u << cfg.page_shift);
}

std::vector<u64> node::sums_of(const coop_ev &ev) const
{
	std::vector<u64> sums(COOP_MAX_PAGES);
	std::vector<u8> bytes(1u << cfg.page_shift);
	for (u32 i = 0; i < COOP_MAX_PAGES; ++i) {
		for (u32 b = 0; b < bytes.size(); ++b)
			bytes[b] = content(i, b);
		sums[i] = sum(ev, i, bytes.data()) ^ spoil_sums;
	}
	return sums;
}

void node::event(const coop_ev &ev)
{
	switch (ev.kind) {
	case COOP_EV_LOOKUP:
		++served;
		lookups.push_back(ev);
		if (holder != COOP_NONE &&
		    !coop_engine_lookup_pass(e, ev.id, holder, 1000 + ev.id, net.now))
			break;
		if (coming && ev.level > load_level)
			coop_engine_lookup_wait(e, ev.id, have, coming, size, 1000 + ev.id,
						net.now);
		else if (hold_lookup)
			held.push_back(ev.id);
		else if (keeps)
			coop_engine_lookup_kept(e, ev.id, have, size, 1000 + ev.id,
						ev.sum ? sums_of(ev).data() : nullptr, net.now);
		else
			coop_engine_lookup_done(e, ev.id, have, size, 1000 + ev.id, net.now);
		break;
	case COOP_EV_RECHECK:
		EXPECT_EQ(ev.cookie, 1000u + ev.id);
		++rechecks;
		coop_engine_recheck_done(e, ev.id, still, ev.sum ? sums_of(ev).data() : nullptr,
					 net.now);
		break;
	case COOP_EV_SERVE_END:
		++ended;
		break;
	case COOP_EV_VERIFY: {
		struct context {
			node &self;
			u64 cookie;
			std::vector<u8> hold;
		} c{*this, ev.cookie, std::vector<u8>(COOP_MAX_PAGES << COOP_PAGE_MAX_SHIFT)};
		const auto copy = [](void *host, const coop_seg *place, u32 len, u32 at,
				     bool gather) {
			auto &to = *static_cast<context *>(host);
			u8 *hold = &to.hold[at];
			for (u32 f = 0; f < place->n_frag; ++f)
				for (u32 k = 0; k < place->frag[f].len && len; ++k, --len) {
					u8 *b = to.self.byte(to.cookie, place->frag[f].page,
							     place->frag[f].off + k);
					if (gather)
						*hold++ = *b;
					else
						*b = *hold++;
				}
		};
		verifies.push_back(ev.n_moves);
		(void)coop_engine_move(e, &ev, copy, &c);
		u64 good = ev.pages;
		for (u32 i = 0; i < COOP_MAX_PAGES && ev.sums; ++i)
			if ((ev.pages >> i & 1) && sum(ev, i, byte(ev.cookie, i, 0)) != ev.sums[i])
				good &= ~(u64{1} << i);
		coop_engine_verify_done(e, ev.id, good, net.now);
		break;
	}
	case COOP_EV_FETCH_DONE:
		done[ev.cookie] = {ev.pages, ev.err, ev.peer};
		for (u32 i = 0; i < COOP_MAX_PAGES; ++i)
			if (ev.pages >> i & 1) {
				EXPECT_TRUE(page_right(static_cast<u32>(ev.cookie), i))
					<< "WRONG PAGE " << i;
			}
		coop_engine_fetch_release(e, ev.id, net.now);
		break;
	case COOP_EV_PEER:
		break;
	case COOP_EV_OFFER:
		offers.push_back(ev);
		break;
	}
}

bool node::pump()
{
	bool any = false;
	coop_tx tx;
	coop_ev ev;
	for (;;) {
		bool more = false;
		while (coop_engine_next_tx(e, net.now, &tx)) {
			transmit(tx);
			more = true;
		}
		while (coop_engine_next_event(e, net.now, &ev)) {
			event(ev);
			more = true;
		}
		if (!more)
			return any;
		any = true;
	}
}

void node::ctrl(const std::vector<u8> &message, const coop_addr &from)
{
	coop_addr src = from;
	src.qkey = 0;
	coop_engine_rx_ctrl(e, message.data(), static_cast<u32>(message.size()), &src, net.now);
}

void node::data(const datagram &d)
{
	const u32 slot = d.to_qp - (own.qpn - 0x11 + 0x100);
	if (slot >= qps_.size())
		return;
	qp &q = qps_[slot];
	if (q.dead || q.next == q.posted.size())
		return; // no WR: dropped
	const coop_seg &s = q.posted[q.next];
	u32 at = 0;
	for (u32 f = 0; f < s.n_frag; ++f)
		for (u32 k = 0; k < s.frag[f].len && at < d.payload.size(); ++k)
			*byte(q.cookie, s.frag[f].page, s.frag[f].off + k) = d.payload[at++];
	coop_rx rx{};
	rx.slot = slot;
	rx.wr = q.next++;
	rx.imm = d.imm;
	rx.has_imm = d.has_imm;
	rx.byte_len = COOP_GRH + static_cast<u32>(d.payload.size());
	rx.src_qp = d.src_qp;
	rx.has_gid = true;
	std::memcpy(rx.src_gid, d.src_gid.data(), 16);
	coop_engine_rx_data(e, &rx, net.now);
}

struct coop_engine_stats node::stats() const
{
	struct coop_engine_stats st;
	coop_engine_stats(e, &st);
	return st;
}

coop_peer_info node::peer(u32 id) const
{
	coop_peer_info p;
	for (u32 cursor = 0; coop_engine_peer_next(e, &cursor, &p);)
		if (p.id == id)
			return p;
	ADD_FAILURE() << "no peer " << id;
	return {};
}

u32 node::peer_id(const node &of) const
{
	coop_peer_info p;
	for (u32 cursor = 0; coop_engine_peer_next(e, &cursor, &p);)
		if (p.addr.qpn == of.cfg.self.qpn)
			return p.id;
	return COOP_NONE;
}

node &network::add(const node_shape &shape)
{
	nodes.push_back(std::make_unique<node>(*this, static_cast<u8>(nodes.size() + 1), shape));
	return *nodes.back();
}

u32 network::acquaint(node &a, node &b)
{
	coop_engine_peer_add(b.e, &a.cfg.self, COOP_PEER_BY_DAEMON, now);
	return static_cast<u32>(coop_engine_peer_add(a.e, &b.cfg.self, COOP_PEER_BY_HAND, now));
}

void network::settle()
{
	for (bool more = true; more;) {
		more = false;
		for (auto &n : nodes)
			more |= n->pump();
		if (air.empty())
			continue;
		more = true;
		if (mangle)
			mangle(air);
		std::deque<datagram> batch;
		batch.swap(air);
		now += 100;
		for (const datagram &d : batch)
			for (auto &n : nodes)
				n->data(d);
	}
}

void network::run(u64 us)
{
	const u64 end = now + us;
	for (;;) {
		settle();
		u64 next = ~u64{0};
		for (auto &n : nodes)
			next = std::min(next, coop_engine_deadline(n->e));
		if (next > end) {
			now = end;
			return;
		}
		now = std::max(now, next);
		for (auto &n : nodes)
			coop_engine_expire(n->e, now);
	}
}

} // namespace lab
