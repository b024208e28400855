// SPDX-License-Identifier: MIT
// node.cpp - the pump between engine and fabric, and queue pairs as hardware behaves.
#include "tests/sim/scale/node.hpp"

#include <bit>
#include <cstring>

#include "tests/sim/scale/world.hpp"

namespace coop::scale
{

namespace
{

constexpr u32 ctrl_qpn = 0x11, fetch_qpn = 0x100, serve_qpn = 0x1000;
constexpr u32 page_shift = 12, page_size = 1u << page_shift;
constexpr u32 flush_ns = 5000;
constexpr u32 pump_limit = 1u << 20; // engine calls a pump: more is a livelock
constexpr u64 never = ~u64{0};

// The page of the unit with this ordinal among those asked for.
u32 page_of(u8 asked, u32 ordinal)
{
	for (; ordinal; --ordinal)
		asked &= static_cast<u8>(asked - 1);
	return static_cast<u32>(std::countr_zero(asked));
}

} // namespace

node::node(world &w, u32 number) : w_(w), number_(number), unit_pages_(w.is().unit_pages) {}

coop_engine_cfg node::config(const shape &s)
{
	coop_engine_cfg cfg{};
	cfg.page_shift = page_shift;
	cfg.mtu = page_size;
	cfg.max_fetches = s.slots;
	cfg.max_serves = s.serves;
	cfg.max_queued = s.queued;
	cfg.max_peers = s.peers;
	cfg.peer_timeout_us = s.peer_timeout_us;
	cfg.window_bytes = (s.window_pages ? s.window_pages : s.slots * s.unit_pages) * page_size;
	cfg.fetch_depth = s.unit_pages;

	cfg.chunk_pages = s.unit_pages;
	return cfg;
}

void node::boot(void *memory, std::size_t size)
{
	const shape &s = w_.is();
	coop_engine_cfg cfg = config(s);
	cfg.seed = sim::mix(s.seed, number_);
	std::memcpy(cfg.key, w_.key(), sizeof(cfg.key));
	cfg.self = w_.net().address(number_, ctrl_qpn);
	engine_ = coop_engine_init(memory, size, &cfg, now_us());
	if (!engine_)
		return w_.counts().note("the engine refused its configuration");
	for (u32 i = 0; i < s.slots; ++i)
		coop_engine_set_fetch_qp(engine_, i, fetch_qpn + i, cfg.self.qkey);
	for (u32 i = 0; i < s.serves; ++i)
		coop_engine_set_serve_qp(engine_, i, serve_qpn + i);
	qps_.resize(s.slots);
	store_.assign((s.pages() + 63) / 64, 0);
	loads_.resize(s.window + s.relays);
	keys_.assign(loads_.size(), never);
	for (u32 i = static_cast<u32>(loads_.size()); i-- > 0;)
		free_loads_.push_back(i);
	serves_.resize(s.serves);
	for (u32 i = 0; i < s.serves; ++i)
		serves_[i].next = i + 1 < s.serves ? static_cast<u16>(i + 1) : none;
	free_serve_ = 0;
}

void node::die()
{
	engine_ = nullptr;
	++life_;
}

u64 node::now_us() const
{
	return w_.time().now() / 1000;
}

void node::run(const event &e)
{
	switch (e.kind) {
	case what::data_in:
		return data(e.a);
	case what::letter_in:
		letter(e.a);
		return pump();
	case what::sent:
		sending_ -= e.b;
		coop_engine_tx_done(engine_, e.a, e.b, 0, now_us());
		return pump();
	case what::timer:
		if (e.at != timer_at_)
			return; // an earlier one replaced it
		timer_at_ = never;
		coop_engine_expire(engine_, now_us());
		return pump();
	case what::flushed:
		flushed(e.a);
		return pump();
	case what::reply_in:
		stored(e.a, static_cast<u8>(e.b));
		return pump();
	case what::redirect:
		redirected(e.a, e.b);
		return pump();
	case what::opened:
		open_reply(e.a);
		return pump();
	case what::news:
		if (open_file *f = opened(e.a))
			f->r = w_.members().roles_of(e.a, number_);
		return;
	case what::arrive:
		arrive();
		return pump();
	default:
		return w_.counts().note("an event that is not a node's");
	}
}

// An adapter takes turns between all that is posted, so each serve would end as late as the last.
// What is not posted yet keeps the engine's order.
bool node::next_tx(coop_tx &tx)
{
	const u32 most = w_.is().send_pages;
	return most && sending_ >= most ? coop_engine_next_urgent_tx(engine_, now_us(), &tx)
					: coop_engine_next_tx(engine_, now_us(), &tx);
}

void node::pump()
{
	const u64 now = now_us();
	for (u32 calls = 0;;) {
		coop_tx tx;
		coop_ev ev;
		bool any = false;
		while (next_tx(tx) && ++calls < pump_limit) {
			on_tx(tx);
			any = true;
		}
		while (coop_engine_next_event(engine_, now, &ev) && ++calls < pump_limit) {
			on_event(ev);
			any = true;
		}
		if (calls >= pump_limit)
			return w_.counts().note("the engine always has something more to do");
		if (any)
			continue;
		if (coop_engine_deadline(engine_) > now)
			break;
		coop_engine_expire(engine_, now);
		++calls;
	}
	arm_timer();
}

void node::arm_timer()
{
	const u64 deadline = coop_engine_deadline(engine_);
	if (deadline == never || deadline * 1000 >= timer_at_)
		return;
	timer_at_ = std::max(deadline * 1000, w_.time().now());
	w_.time().at(timer_at_, what::timer, number_, life_);
}

void node::on_tx(const coop_tx &tx)
{
	switch (tx.kind) {
	case COOP_TX_CTRL:
		return w_.net().send(number_, fabric::node_of(tx.addr), tx.buf, tx.len);
	case COOP_TX_POST_RECV:
		return post(tx);
	case COOP_TX_DATA:
		return send_data(tx);
	case COOP_TX_STOP_QP:
		return stop(tx.slot);
	case COOP_TX_RESET_QP:
		qps_[tx.slot].stopped = false;
		return;
	}
}

void node::on_event(const coop_ev &ev)
{
	switch (ev.kind) {
	case COOP_EV_LOOKUP:
		return lookup(ev);
	case COOP_EV_RECHECK:
		return coop_engine_recheck_done(engine_, ev.id, ev.pages, nullptr, now_us());
	case COOP_EV_SERVE_END:
		return serve_end(ev);
	case COOP_EV_VERIFY:
		return verify(ev);
	case COOP_EV_FETCH_DONE:
		return fetched(ev);
	case COOP_EV_PEER:
	case COOP_EV_OFFER:
		return;
	}
}

// ---- receiving ----------------------------------------------------------------------

void node::post(const coop_tx &tx)
{
	queue_pair &q = qps_[tx.slot];
	load *l = of(static_cast<u32>(tx.cookie));
	if (!l || tx.n_seg > most_unit)
		return w_.counts().note("work requests for no load");
	q.load = static_cast<u32>(tx.cookie);
	q.posted = static_cast<u8>(tx.n_seg);
	q.used = 0;
	for (u32 i = 0; i < tx.n_seg; ++i) {
		q.page[i] = static_cast<u8>(page_of(l->asked, tx.seg[i].frag[0].page));
	}
}

void node::data(u32 handle)
{
	const packet p = w_.net().packets[handle];
	w_.net().packets.give(handle);
	if (p.slot >= qps_.size())
		return;
	queue_pair &q = qps_[p.slot];
	load *l = of(q.load);
	coop_rx rx{};
	rx.slot = p.slot;
	rx.src_qp = p.src_qpn;
	rx.has_imm = true;
	rx.has_gid = true;
	std::memcpy(rx.src_gid, w_.net().address(p.src, 0).gid, sizeof(rx.src_gid));
	for (u32 i = 0; i < p.n && !q.stopped && q.used < q.posted; ++i) {
		rx.wr = q.used++;
		rx.imm = p.page[i].imm;
		rx.byte_len = COOP_GRH + (p.page[i].pad ? 0 : page_size);
		if (l && !p.page[i].pad)
			l->bytes[q.page[rx.wr]] = p.page[i].tag;
		coop_engine_rx_data(engine_, &rx, now_us());
	}
	// The engine acts on the last one; the others only wait to be counted.
	if (q.used == q.posted)
		pump();
}

void node::letter(u32 handle)
{
	const scale::letter &l = w_.net().letters[handle];
	coop_addr src = w_.net().address(l.src, ctrl_qpn);
	src.qkey = 0;
	coop_engine_rx_ctrl(engine_, l.bytes.data(), l.len, &src, now_us());
	w_.net().letters.give(handle);
}

void node::stop(u32 slot)
{
	qps_[slot].stopped = true;
	w_.time().after(flush_ns, what::flushed, number_, life_, slot);
}

void node::flushed(u32 slot)
{
	queue_pair &q = qps_[slot];
	const u32 left = q.posted - q.used;
	q.used = q.posted;
	if (left)
		coop_engine_rx_flush(engine_, slot, left, now_us());
}

// Bytes here are one word a page, so a move moves words.
void node::verify(const coop_ev &ev)
{
	struct context {
		load *l;
		std::array<u64, most_unit> hold;
	} c{of(static_cast<u32>(ev.cookie)), {}};
	const auto copy = [](void *host, const coop_seg *place, u32, u32 at, bool gather) {
		auto &x = *static_cast<context *>(host);
		u64 &page = x.l->bytes[page_of(x.l->asked, place->frag[0].page)];
		u64 &hold = x.hold[at / page_size];
		(gather ? hold : page) = gather ? page : hold;
	};
	if (c.l)
		(void)coop_engine_move(engine_, &ev, copy, &c);
	coop_engine_verify_done(engine_, ev.id, ev.pages, now_us());
}

// ---- sending -------------------------------------------------------------------------

void node::send_data(const coop_tx &tx)
{
	const serve &s = serves_[static_cast<u32>(tx.cookie)];
	const u32 to = fabric::node_of(tx.addr);
	const u8 held = have(s.file, s.unit);
	packet p{};
	p.src = number_;
	p.src_qpn = serve_qpn + tx.slot;
	p.slot = static_cast<u16>(tx.addr.qpn - fetch_qpn);
	for (; p.n < tx.n_seg && p.n < most_unit; ++p.n) {
		const coop_seg &g = tx.seg[p.n];
		packet::one &out = p.page[p.n];
		out.imm = g.imm;
		out.pad = !g.n_frag;
		if (out.pad)
			continue;
		const u32 page = page_of(s.asked, g.frag[0].page);
		out.tag = held >> page & 1 ? tag(s.file, s.unit, page) : 0;
	}
	sending_ += tx.n_seg;
	w_.net().send(number_, life_, to, p, tx.id, tx.n_seg);
}

u32 node::peer(u32 other)
{
	for (const auto &[n, id] : peers_) {
		if (n == other)
			return id;
	}
	const coop_addr a = w_.net().address(other, ctrl_qpn);
	s64 id = coop_engine_peer_add(engine_, &a, COOP_PEER_BY_DAEMON, now_us());
	for (u32 i = 0; id < 0 && i < peers_.size();) {
		// The oldest makes room; one that is in use lives until its requests end.
		const coop_addr old = w_.net().address(peers_.front().first, ctrl_qpn);
		peers_.erase(peers_.begin());
		coop_engine_peer_del(engine_, &old, COOP_PEER_BY_DAEMON);
		id = coop_engine_peer_add(engine_, &a, COOP_PEER_BY_DAEMON, now_us());
	}
	if (id < 0)
		return COOP_NONE;
	peers_.push_back({other, static_cast<u32>(id)});
	return static_cast<u32>(id);
}

// ---- the store -----------------------------------------------------------------------

u64 node::tag(u32 file, u32 unit, u32 page) const
{
	return (u64{file} << 32 | (unit * unit_pages_ + page)) + 1;
}

u8 node::have(u32 file, u32 unit) const
{
	const u64 first = (u64{file} * w_.is().units + unit) * unit_pages_;
	return static_cast<u8>(store_[first / 64] >> first % 64) & all();
}

void node::add(u32 file, u32 unit, u8 pages)
{
	const u64 first = (u64{file} * w_.is().units + unit) * unit_pages_;
	store_[first / 64] |= u64{pages} << first % 64;
}

std::size_t node::bytes() const
{
	return sizeof(*this) + store_.size() * 8 + qps_.size() * sizeof(queue_pair) +
	       loads_.size() * (sizeof(load) + 12) + serves_.size() * sizeof(serve) +
	       peers_.capacity() * 8 + open_.capacity() * sizeof(open_file) + order_.size() * 2;
}

std::string node::position() const
{
	std::string out = "node " + std::to_string(number_) + ", file " + std::to_string(file_) +
			  ", unit " + std::to_string(next_) + " of " +
			  std::to_string(w_.is().units) + ":";
	for (u32 i = 0; i < loads_.size(); ++i) {
		const load &l = loads_[i];
		if (l.from == via::none || !l.reader)
			continue;
		out += " unit " + std::to_string(l.unit) + " level " + std::to_string(l.level) +
		       (l.from == via::storage ? " from storage" : " from peers") + " for " +
		       std::to_string((w_.time().now() - l.since) / 1000) + " us;";
	}
	return out;
}

void node::add_stats(tally &t) const
{
	struct coop_engine_stats st;
	coop_engine_stats(engine_, &st);
	t.attempts += st.attempts;
	t.retries += st.retries;
	t.queries += st.queries;
	t.busy += st.serves_busy;
	t.waits += st.serve_waits;
	t.wait_timeouts += st.serve_wait_timeouts;
	t.peer_down += st.peer_down;
}

} // namespace coop::scale
