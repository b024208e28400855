// SPDX-License-Identifier: MIT
// node.cpp - life and death of a node, and the pump between engine and world.
#include "tests/sim/node.hpp"

#include <algorithm>
#include <cstring>

#include "rpc/base/mac.h"
#include "tests/sim/world.hpp"

namespace coop::sim
{

namespace
{

constexpr u32 ctrl_depth = 256; // WRs on the control queue pair
constexpr u32 ctrl_qpn = 0x11, fetch_qpn = 0x100, first_serve_qpn = 0x400, life_qpn = 0x1000;
constexpr u32 pump_limit = 1u << 20; // engine calls per pump: more is a livelock
constexpr u64 never = ~u64{0};

} // namespace

node::node(world &w, u16 number, u32 lies, u32 poll_us) :
	w_(w),
	number_(number),
	lies_(lies),
	poll_us_(poll_us)
{
}

node::~node() = default;

std::string node::who() const
{
	return "node " + std::to_string(number_) + " (" + w_.shape().name + ", seed " +
	       std::to_string(w_.seed()) + "): ";
}

coop_addr node::address() const
{
	return w_.net().address(number_, ctrl_qpn + generation_of_qpns_ * life_qpn, 0x1c00b);
}

u32 node::serve_qpn(u32 slot) const
{
	return first_serve_qpn + slot + generation_of_qpns_ * life_qpn;
}

void node::boot()
{
	const scenario &s = w_.shape();
	++life_;
	if (!s.same_qpns)
		++generation_of_qpns_;
	coop_engine_cfg cfg{};
	cfg.seed = mix(w_.seed(), u64{number_} << 32 | life_);
	std::memcpy(key_, w_.key(), sizeof(key_));
	std::memcpy(cfg.key, key_, sizeof(cfg.key));
	cfg.self = address();
	cfg.page_shift = s.page_shift;
	cfg.mtu = s.mtu;
	cfg.max_fetches = s.max_fetches;
	cfg.max_serves = s.max_serves;
	cfg.max_queued = s.max_queued;
	cfg.max_peers = s.nodes + 2;
	cfg.peer_timeout_us = s.peer_timeout_us;
	cfg.window_bytes = s.window_bytes;
	cfg.serve_bytes_s = s.serve_bytes_s;
	cfg.chunk_pages = (1u << 20) >> s.page_shift;
	cfg.flags = (s.page_crc ? COOP_F_PAGE_CRC : 0) | (s.page_tag ? COOP_F_PAGE_TAG : 0) |
		    (s.packed ? COOP_F_PACKED : 0) | COOP_F_FORWARDS |
		    (w_.test_flags() & ~(break_mac | break_copies));
	cfg.policy = s.sole ? coop_policy_sole_source() : coop_policy_many_sources();
	const std::size_t size = coop_engine_size(&cfg);
	memory_.reset(new u64[size / 8 + 1]);
	engine_ = coop_engine_init(memory_.get(), size, &cfg, w_.time().now());
	if (!engine_) {
		w_.broken(who() + "the engine refused its configuration");
		return;
	}
	store_ = std::make_unique<sim::store>(w_.memory(), w_.truth(), s.block_pages,
					      s.store_blocks);
	qps_ = std::vector<fetch_qp>(s.max_fetches);
	for (u32 i = 0; i < s.max_fetches; ++i) {
		qps_[i].qp.open(fetch_qpn + i + generation_of_qpns_ * life_qpn,
				static_cast<u32>(w_.rng().next()) & 0x7fffffff);
		coop_engine_set_fetch_qp(engine_, i, qps_[i].qp.qpn(), qps_[i].qp.qkey());
	}
	for (u32 i = 0; i < s.max_serves; ++i)
		coop_engine_set_serve_qp(engine_, i, serve_qpn(i));
	if (lies_)
		liar_ = std::make_unique<liar>(w_, number_, lies_);
	timer_at_ = never;
	poll_pending_ = false;
	std::fill(std::begin(peer_ids_), std::end(peer_ids_), 0);
	dead_since_ = never;
}

void node::die()
{
	collect_stats();
	for (const read &r : reads_)
		w_.counts().abandoned += r.active && r.submitted && !r.done;
	std::vector<std::string> wrong;
	store_->clear(wrong);
	if (honest()) {
		for (const std::string &text : wrong)
			w_.wrong(who() + "found at its death: " + text);
	}
	engine_ = nullptr;
	store_.reset();
	qps_.clear();
	reads_.clear();
	serves_.clear();
	done_.clear();
	letters_.clear();
	letter_bytes_.clear();
	++life_; // voids its scheduled events
}

void node::start_readers()
{
	for (u32 i = 0; i < w_.shape().readers; ++i)
		think(i);
}

void node::rekey()
{
	std::memcpy(key_, w_.key(), sizeof(key_));
	coop_engine_rekey(engine_, key_, w_.time().now());
	pump();
}

void node::hear(u16 about)
{
	if (!engine_ || about == number_)
		return;
	const u64 now = w_.time().now();
	const coop_addr fresh = w_.at(about).address();
	const bool up = w_.at(about).alive() || w_.shape().dead_peer;
	coop_addr &known = peer_addr_[about];
	if (peer_ids_[about] && (!up || std::memcmp(&known, &fresh, sizeof(fresh)))) {
		coop_engine_peer_del(engine_, &known, COOP_PEER_BY_DAEMON);
		coop_engine_peer_del(engine_, &known, COOP_PEER_BY_HAND);
		peer_ids_[about] = 0;
	}
	if (up && !peer_ids_[about]) {
		u32 origin = COOP_PEER_BY_DAEMON;
		if (w_.rng().chance(w_.shape().by_hand_ppm))
			origin |= COOP_PEER_BY_HAND;
		const s64 id = coop_engine_peer_add(engine_, &fresh, origin, now);
		if (id > 0) {
			peer_ids_[about] = static_cast<u32>(id);
			known = fresh;
		} else if (id != -ENOSPC) {
			w_.broken(who() + "peer_add returned " + std::to_string(id));
		}
	}
	pump();
}

void node::run(const event &e)
{
	if (!engine_ || e.life != life_)
		return;
	switch (e.kind) {
	case what::poll:
		return poll();
	case what::timer:
		if (e.arg != timer_at_)
			return; // another deadline replaced it
		timer_at_ = never;
		coop_engine_expire(engine_, w_.time().now());
		return pump();
	case what::burst:
		return burst(e.arg);
	case what::answer:
		return answer(e.arg);
	case what::verified:
		return verified(e.arg);
	case what::stored:
		return from_storage(e.arg);
	case what::released:
		take(e.arg);
		return pump();
	case what::flushed:
		return flush_appears(static_cast<u32>(e.arg));
	case what::think:
		return read_some(static_cast<u32>(e.arg));
	case what::rekey:
		return rekey();
	case what::news:
		return hear(static_cast<u16>(e.arg));
	case what::arrive:
	case what::fault:
	case what::restart:
		return; // the world handles these
	}
}

u64 node::latency(u32 most)
{
	return w_.rng().below(most + 1);
}

void node::wake()
{
	if (poll_pending_)
		return;
	poll_pending_ = true;
	w_.time().after(latency(poll_us_), what::poll, number_, life_, 0);
}

void node::arrive(const packet &p)
{
	if (!engine_) {
		++w_.counts().cut;
		return;
	}
	const u32 base = generation_of_qpns_ * life_qpn;
	if (p.dst_qpn == address().qpn) {
		if (p.qkey != address().qkey || letters_.size() >= ctrl_depth) {
			++w_.counts().no_wr;
			return;
		}
		letters_.push_back(
			{static_cast<u32>(letter_bytes_.size()), p.len, p.src_qpn, p.src});
		letter_bytes_.insert(letter_bytes_.end(), p.bytes, p.bytes + p.len);
		return wake();
	}
	const u32 slot = p.dst_qpn - base - fetch_qpn;
	if (slot >= qps_.size()) {
		++w_.counts().no_wr;
		return;
	}
	fetch_qp &q = qps_[slot];
	completion c;
	u64 trespass = 0;
	switch (q.qp.arrive(p, w_.time().now(), c, trespass)) {
	case queue_pair::outcome::dropped:
		++w_.counts().no_wr;
		break;
	case queue_pair::outcome::died:
		w_.broken(who() + "a datagram within the MTU was longer than its WR");
		w_.time().after(1 + latency(200), what::flushed, number_, life_, slot);
		break;
	case queue_pair::outcome::written:
		c.slot = slot;
		done_.push_back(c);
		wake();
		break;
	}
	if (trespass && !w_.test_flags())
		w_.broken(who() + "a WR wrote into memory that its fetch had given up");
}

void node::tell(const completion &c)
{
	const u64 now = w_.time().now();
	fetch_qp &q = qps_[c.slot];
	if (c.flushed) {
		q.owed -= std::min(q.owed, c.wr);
		coop_engine_rx_flush(engine_, c.slot, c.wr, now);
		return;
	}
	q.owed -= q.owed ? 1 : 0;
	coop_rx rx{};
	rx.slot = c.slot;
	rx.wr = c.wr;
	rx.imm = c.imm;
	rx.byte_len = c.byte_len;
	rx.src_qp = c.src_qp;
	rx.has_imm = c.has_imm;
	rx.has_gid = !w_.shape().by_lid;
	if (rx.has_gid)
		std::memcpy(rx.src_gid, w_.net().address(c.src, 0, 0).gid, 16);
	coop_engine_rx_data(engine_, &rx, now);
}

void node::tell(const letter &l, u8 *bytes)
{
	if (w_.test_flags() & break_mac && l.len >= COOP_WIRE_HEADER + COOP_WIRE_MAC) {
		u8 *end = bytes + l.at + l.len - COOP_WIRE_MAC;
		const u64 mac = coop_mac(key_, bytes + l.at, l.len - COOP_WIRE_MAC);
		std::memcpy(end, &mac, COOP_WIRE_MAC);
	}
	const coop_addr src = w_.net().address(l.src, l.src_qpn, 0);
	if (liar_)
		liar_->overhear(bytes + l.at, l.len);
	coop_engine_rx_ctrl(engine_, bytes + l.at, l.len, &src, w_.time().now());
}

void node::poll()
{
	poll_pending_ = false;
	polled_.swap(done_);
	polled_letters_.swap(letters_);
	polled_bytes_.swap(letter_bytes_);
	const bool data_first = w_.rng().coin(), each = w_.rng().below(4) == 0;
	for (u32 pass = 0; pass < 2; ++pass) {
		if ((pass == 0) == data_first) {
			for (const completion &c : polled_) {
				tell(c);
				if (each)
					pump();
			}
		} else {
			for (const letter &l : polled_letters_) {
				tell(l, polled_bytes_.data());
				if (each)
					pump();
			}
		}
	}
	polled_.clear();
	polled_letters_.clear();
	polled_bytes_.clear();
	if (liar_)
		liar_->act(address());
	pump();
}

void node::pump()
{
	const u64 now = w_.time().now();
	for (u32 calls = 0;;) {
		coop_tx tx;
		coop_ev ev;
		bool any = false;
		while (coop_engine_next_tx(engine_, now, &tx) && ++calls < pump_limit) {
			on_tx(tx);
			any = true;
		}
		while (coop_engine_next_event(engine_, now, &ev) && ++calls < pump_limit) {
			on_event(ev);
			any = true;
		}
		if (calls >= pump_limit) {
			w_.broken(who() + "the engine always has something more to do");
			break;
		}
		if (any)
			continue;
		if (coop_engine_deadline(engine_) > now)
			break;
		coop_engine_expire(engine_, now);
		if (++calls > 1000 && coop_engine_deadline(engine_) <= now) {
			w_.broken(who() + "expire() leaves a deadline that has passed");
			break;
		}
	}
	check_window();
	arm_timer();
}

void node::arm_timer()
{
	const u64 at = coop_engine_deadline(engine_), now = w_.time().now();
	if (at == never || at >= timer_at_)
		return;
	// Timers are late, never early.
	const u64 in = (at > now ? at - now : 0) + latency(poll_us_ / 4);
	timer_at_ = now + in;
	w_.time().after(in, what::timer, number_, life_, timer_at_);
}

// The bytes that peers are asked to send right now. A fetch above the window goes alone.
void node::check_window()
{
	u64 invited = 0;
	u32 fetches = 0;
	for (const fetch_qp &q : qps_) {
		if (!q.owed)
			continue;
		++fetches;
		invited += q.invited;
	}
	if (fetches > 1 && invited > w_.shape().window_bytes && !w_.test_flags())
		w_.broken(who() + std::to_string(invited) + " bytes are invited, the window is " +
			  std::to_string(w_.shape().window_bytes));
}

void node::on_tx(const coop_tx &tx)
{
	switch (tx.kind) {
	case COOP_TX_CTRL:
		return send_ctrl(tx);
	case COOP_TX_POST_RECV:
		return post(tx);
	case COOP_TX_DATA:
		return queue_data(tx);
	case COOP_TX_STOP_QP:
		return stop_qp(tx.slot);
	case COOP_TX_RESET_QP:
		return reset_qp(tx.slot);
	}
	w_.broken(who() + "an unknown piece of work");
}

void node::send_ctrl(const coop_tx &tx)
{
	packet &p = w_.net().fresh();
	if (tx.len > COOP_CTRL_MAX || tx.len > w_.shape().mtu) {
		w_.broken(who() + "a control message of " + std::to_string(tx.len) + " bytes");
		return;
	}
	p.len = tx.len;
	std::memcpy(p.bytes, tx.buf, tx.len);
	p.src = number_;
	p.src_qpn = address().qpn;
	p.has_imm = false;
	p.control = true;
	p.imm = 0;
	coop_addr to = tx.addr;
	if (liar_) {
		const auto it = serves_.find(tx.cookie);
		const bool other =
			it != serves_.end() && it->second.id == tx.id && it->second.other;
		if (!liar_->speak(p, to, other ? &it->second.of : nullptr))
			return;
	}
	if (w_.shape().dead_peer && w_.net().node_of(tx.addr) == 0 &&
	    p.bytes[5] == COOP_CMD_REQUEST) {
		for (const read &r : reads_)
			tardy_ += r.active && r.submitted && r.id == tx.id && r.since > dead_since_;
	}
	w_.net().send(to, latency(1));
}

void node::on_event(const coop_ev &ev)
{
	switch (ev.kind) {
	case COOP_EV_LOOKUP:
		return lookup(ev);
	case COOP_EV_RECHECK:
		return recheck(ev);
	case COOP_EV_SERVE_END:
		return serve_end(ev);
	case COOP_EV_VERIFY:
		return verify(ev);
	case COOP_EV_FETCH_DONE:
		return fetch_done(ev);
	case COOP_EV_PEER:
		if (ev.peer == peer_ids_[0] && ev.health == COOP_PEER_OPEN)
			dead_since_ = std::min(dead_since_, w_.time().now());
		return;
	case COOP_EV_OFFER: // a liar's, since no node makes offers here
		return;
	}
	w_.broken(who() + "an unknown event");
}

bool node::idle() const
{
	return !engine_ ||
	       (serves_.empty() && done_.empty() && letters_.empty() &&
		std::none_of(reads_.begin(), reads_.end(), [](const read &r) { return r.active; }));
}

void node::collect_stats()
{
	struct coop_engine_stats st;
	coop_engine_stats(engine_, &st);
	tally &t = w_.counts();
	t.displaced += st.segs_displaced;
	t.retries += st.retries;
	t.passed += st.serves_forwarded;
	t.mac_bad += st.ctrl_mac;
	t.crc_bad += st.crc_bad;
	t.tag_bad += st.tag_bad;
	t.served += st.serve_pages;
	t.changed += st.serve_changed;
}

void node::judge_rest()
{
	if (!engine_)
		return;
	const u64 now = w_.time().now();
	for (const read &r : reads_) {
		if (r.active)
			w_.stuck(who() + "a fetch of " + std::to_string(now - r.since) +
				 " us has not ended");
	}
	struct coop_engine_stats st;
	coop_engine_stats(engine_, &st);
	if (st.invited_bytes)
		w_.broken(who() + "at rest, but invites " + std::to_string(st.invited_bytes) +
			  " bytes");
	coop_request_info req;
	for (u32 cursor = 0; coop_engine_request_next(engine_, &cursor, now, &req);)
		w_.broken(who() + "at rest, but has a " + (req.serve ? "serve" : "fetch") +
			  " in state " + req.state);
	coop_peer_info peer;
	for (u32 cursor = 0; coop_engine_peer_next(engine_, &cursor, &peer);) {
		if (peer.in_flight)
			w_.broken(who() + "at rest, but a peer has " +
				  std::to_string(peer.in_flight) + " in flight");
	}
	for (const fetch_qp &q : qps_) {
		if ((q.owed || q.qp.posted()) && !w_.test_flags())
			w_.broken(who() + "at rest, but WRs are posted");
	}
	if (w_.shape().dead_peer && tardy_)
		w_.broken(who() + std::to_string(tardy_) +
			  " fetches asked a peer that was known to be dead");
	std::vector<std::string> wrong;
	for (auto &b : store_->blocks())
		store_->judge(*b, b->valid, wrong);
	if (honest()) {
		for (const std::string &text : wrong)
			w_.wrong(who() + "found at the end: " + text);
	}
	collect_stats();
}

} // namespace coop::sim
