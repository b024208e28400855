// SPDX-License-Identifier: MIT
// node.cpp - see node.hpp.
#include "userland/client/node.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <system_error>

#include <spdlog/spdlog.h>

#include "rpc/base/addr.h"

namespace coop::client
{

namespace
{

constexpr std::uint32_t control_recvs = 512, control_sends = 256;
constexpr std::uint32_t max_peers = 16384 + 256; // all members that a daemon has, and some by hand
constexpr std::uint32_t queued_per_slot = 4;
constexpr std::uint32_t placement_chunk = 1u << 20; // bytes
constexpr std::size_t completions_at_once = 256;
// Blocks kept for a peer to take: at most this many, and this part of the store.
constexpr std::uint64_t offers_most = 16, offer_share = 16;
// A peer that never stops sending must not keep one pump from ever returning.
constexpr int rounds_per_pump = 8;
// Most that sends of data wait for what has arrived.
constexpr std::chrono::milliseconds longest_behind{2};
// Beyond peer_timeout: how long an ending node waits for its queue pairs to become quiet.
constexpr std::uint64_t quiesce_us = 1000000;
// For fetches of more pages the store has made the memory present before.
constexpr int few_pages = 8;

// Makes the page present before its datagram comes, and leaves its bytes as they are.
void touch(std::byte *page)
{
	__atomic_fetch_or(reinterpret_cast<unsigned char *>(page), 0, __ATOMIC_RELAXED);
}

fetch_host::message_qp::shape control_shape(const ud::endpoint_info &info, std::uint32_t qkey)
{
	return {.bytes = std::min<std::uint32_t>(info.mtu, COOP_CTRL_MAX),
		.recvs = control_recvs,
		.sends = control_sends,
		.own_sends = control_sends,
		.attr = {.max_send_wr = 0, .max_recv_wr = 0, .max_sge = 3, .qkey = qkey}};
}

// Most serves wait for pages on their way to this node and send nothing meanwhile.
constexpr std::uint32_t serves_a_qp = 4;

fetch_host::shape fetch_shape(const node_options &o, unsigned page_shift)
{
	return {.page_shift = page_shift,
		.fetches = o.num_srpc,
		.queued = o.num_srpc * queued_per_slot,
		.serves = o.num_rrpc * serves_a_qp,
		.serve_qps = o.num_rrpc,
		.serve_qkey = o.qkey,
		.max_sge = 4, // GRH, two fragments, spill
		.bounded = true,
		.fetches_option = "ib_num_srpc=",
		.serves_option = "ib_num_rrpc="};
}

} // namespace

// ---- life ------------------------------------------------------------------------

node::node(const node_options &o, std::unique_ptr<ud::endpoint> ep, page_store &store) :
	timeout_us_(o.peer_timeout_ms * std::uint64_t{1000}),
	background_most_(std::max(o.num_srpc / 2, 1u)),
	on_self_(o.on_self),
	on_wanted_(o.on_wanted),
	on_retrieve_(o.on_retrieve),
	others_(o.others),
	on_offered_(o.on_offered),
	store_(store),
	slab_(ep->info().mtu, std::size_t{1} << store.page_shift()),
	endpoint_(std::move(ep)),
	control_(*endpoint_, slab_, control_shape(endpoint_->info(), o.qkey)),
	fetches_(store.page_shift(), o.num_srpc * (1 + queued_per_slot)),
	departures_(o.others ? std::min(offers_most, store.stats().capacity / offer_share >>
							     (store.page_shift() + 6))
			     : 0,
		    [this] {
			    pages_settled_.store(true, std::memory_order_seq_cst);
			    driver_->nudge();
		    }),
	serves_(store, departures_, o.num_rrpc * serves_a_qp),
	host_(*endpoint_, slab_, fetches_, serves_, control_, fetch_shape(o, store.page_shift())),
	network_(endpoint_->state()),
	completions_(completions_at_once)
{
	slab_.make(*endpoint_);
	control_.make();
	self_ = control_.self();
	if (endpoint_->info().pins_memory)
		store.keep_memory();
	if (const int err = endpoint_->register_memory(store.base(), store.size()); err != 0)
		throw std::system_error(-err, std::generic_category(),
					"node: cannot register the page store with " +
						endpoint_->info().name +
						"; lower cache_size= or raise the memlock limit");
	coop_engine_cfg cfg = host_.config(o.fabric_key);
	cfg.max_peers = max_peers;
	cfg.peer_timeout_us = o.peer_timeout_ms * 1000;
	cfg.serve_bytes_s = o.serve_bytes_s;
	cfg.chunk_pages =
		std::max<std::uint32_t>(placement_chunk >> store.page_shift(), COOP_MAX_PAGES);
	cfg.flags |= COOP_F_FORWARDS;
	if (o.page_mac)
		cfg.flags |= COOP_F_PAGE_TAG;
	else if (o.page_crc)
		cfg.flags |= COOP_F_PAGE_CRC;
	host_.make(cfg, clock_us());
	fetches_.start(host_.engine(), host_.max_pages());
	serves_.start(host_, on_wanted_ != nullptr, on_retrieve_ != nullptr);
	driver_ = std::make_unique<node_driver>(*this, o.poll_us);
	store.set_watcher([this] {
		pages_settled_.store(true, std::memory_order_seq_cst);
		driver_->nudge();
	});
	store.set_leaver([this](block &b) { return departures_.leaves(b); });
}

node::~node()
{
	ending_.store(true);
	store_.set_watcher(nullptr);
	store_.set_leaver(nullptr);
	{
		const std::lock_guard lock(driver_->mutex());
		fetches_.cancel_all(clock_us());
		drain(true, clock_us());
		endpoint_->flush();
	}
	driver_->drive_until([this] { return driver_->in_flight() == 0; },
			     clock_us() + timeout_us_ + quiesce_us);
	driver_.reset();
	for (departures::leaving &l : departures_.take())
		store_.let_go(std::move(l.pin), false);
	for (offered &o : offered_)
		store_.let_go(std::move(o.pin), false);
	offered_.clear();
	endpoint_.reset(); // from here on nothing writes to pages
	fetches_.abandon_all();
	for (block_fetches::ended &e : fetches_.take_ended())
		e.done(e.outcome);
}

// ---- fetches ---------------------------------------------------------------------

int node::fetch(const content_key &key, std::uint64_t file_size, block_ref pin, std::uint64_t pages,
		const fetch_sources &from, fetch_done done)
{
	if (key.version == 0 || pages == 0 || !pin || ending_.load())
		return -ENOENT;
	std::vector<block_fetches::ended> ended;
	const block_ref held = std::popcount(pages) <= few_pages ? pin.clone() : block_ref();
	{
		const std::lock_guard lock(driver_->mutex());
		const int err =
			submit(key, file_size, std::move(pin), pages, from, std::move(done));
		if (err != 0)
			return err;
		driver_->note_submitted();
		ended = fetches_.take_ended();
	}
	// The request is under way: page faults cost nothing now.
	for (std::uint64_t left = held ? pages : 0; left != 0; left &= left - 1)
		touch(held->data(static_cast<std::uint32_t>(std::countr_zero(left))));
	if (!ended.empty())
		driver_->report(std::move(ended));
	return 0;
}

void node::flush()
{
	std::vector<block_fetches::ended> ended;
	{
		const std::lock_guard lock(driver_->mutex());
		drain(true, clock_us());
		endpoint_->flush();
		driver_->note_submitted();
		ended = fetches_.take_ended();
	}
	if (!ended.empty())
		driver_->report(std::move(ended));
}

int node::submit(const content_key &key, std::uint64_t file_size, block_ref &&pin,
		 std::uint64_t pages, const fetch_sources &from, fetch_done &&done)
{
	if (!network_.port_up)
		return -ENOENT;
	const std::uint64_t now = clock_us();
	coop_fetch_req req{};
	name_sources(from, req);
	const int err =
		fetches_.submit(key, file_size, std::move(pin), pages, req, std::move(done), now);
	if (err == 0 && !from.gather) {
		drain(true, now);
		endpoint_->flush();
	}
	return err;
}

void node::name_sources(const fetch_sources &from, coop_fetch_req &req) const
{
	const auto add = [&](std::uint32_t node_id) {
		const auto it = by_daemon_.find(node_id);
		if (it == by_daemon_.end() || req.n_hints == COOP_MAX_HINTS)
			return;
		const std::uint32_t id = it->second.engine_id;
		if (std::find(req.hints, req.hints + req.n_hints, id) == req.hints + req.n_hints)
			req.hints[req.n_hints++] = id;
	};
	for (const std::uint32_t node_id : from.parents)
		add(node_id);
	req.n_parents = req.n_hints;
	if (req.n_parents != 0) {
		req.level = from.level;
		req.load = from.load;
		req.relay = from.relay;
		req.budget_us = from.budget_us;
	}
	if (from.background)
		req.level =
			COOP_LEVEL_NO_ROLE; // no parent is asked: it queues behind the prompt ones
	for (const std::uint32_t node_id : from.openers)
		add(node_id);
}

// Loads what peers wait for. Without the engine's mutex: a load asks this node in its turn.
void node::relay(std::vector<wanted_pages> wanted)
{
	{
		const std::lock_guard lock(driver_->mutex());
		for (wanted_pages &w : wanted) {
			const std::uint32_t peer = departures_.holder(w.key, w.block, w.pages);
			w.holder = peer == COOP_NONE ? 0 : node_id_of(peer);
		}
	}
	for (const wanted_pages &w : wanted)
		(w.kernel ? on_retrieve_ : on_wanted_)(w);
	const std::lock_guard lock(driver_->mutex());
	serves_.asked_for(wanted);
	pages_settled_.store(true, std::memory_order_relaxed);
}

// ---- what leaves the store -----------------------------------------------------------

bool node::offer(const departures::leaving &l)
{
	const block &b = *l.pin;
	const std::uint64_t pages = b.only_here();
	if (pages == 0)
		return false;
	const auto first = static_cast<std::uint32_t>(std::countr_zero(pages));
	const auto end = 64 - static_cast<std::uint32_t>(std::countl_zero(pages));
	const coop_offer what = {l.key.fid,   l.key.version,
				 l.file_size, {b.index() * 64 + first, end - first, 0},
				 b.chances(), 0};
	for (const std::uint32_t id : others_(l.key, b.index())) {
		const auto it = by_daemon_.find(id);
		if (it != by_daemon_.end() &&
		    coop_engine_offer(host_.engine(), it->second.engine_id, &what) == 0)
			return true;
	}
	return false;
}

void node::offer_leaving(std::uint64_t now)
{
	const auto end = [this](block_ref pin, bool taken) {
		store_.let_go(std::move(pin), taken);
		departures_.ended();
	};
	for (departures::leaving &l : departures_.take()) {
		const bool sent = offer(l);
		l.pin->set_chances(0); // unless it is used again, it goes as the next victim
		if (sent) {
			offer_stats_.made++;
			offered_.push_back({std::move(l.pin), now + timeout_us_});
		} else {
			end(std::move(l.pin), false);
		}
	}
	std::erase_if(offered_, [&](offered &o) {
		const bool taken = o.pin->only_here() == 0;
		if (!taken && now < o.until)
			return false;
		offer_stats_.taken += taken ? 1 : 0;
		end(std::move(o.pin), taken);
		return true;
	});
}

void node::note_offered(const coop_ev &ev)
{
	const std::uint32_t first = static_cast<std::uint32_t>(ev.ext[0].index % 64);
	const std::uint32_t count = ev.ext[0].count;
	if (!on_offered_ || first + count > 64 || offers_to_take_.size() >= offers_most)
		return;
	const std::uint32_t from = node_id_of(ev.peer);
	if (from == 0)
		return;
	const std::uint64_t pages =
		(count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1) << first;
	offers_to_take_.push_back({{ev.fid, ev.version},
				   ev.ext[0].index / 64,
				   pages,
				   ev.size,
				   from,
				   static_cast<std::uint8_t>(std::min<std::uint32_t>(
					   ev.chances, block::max_chances))});
}

// The daemon's id of a peer; 0: it is none of the daemon's.
std::uint32_t node::node_id_of(std::uint32_t peer) const
{
	for (const auto &[id, p] : by_daemon_)
		if (p.engine_id == peer)
			return id;
	return 0;
}

offer_stats node::offers() const
{
	const std::lock_guard lock(driver_->mutex());
	offer_stats s = offer_stats_;
	s.waiting = departures_.kept();
	return s;
}

// ---- the engine's work -------------------------------------------------------------

bool node::pump(std::uint64_t now)
{
	using clock = std::chrono::steady_clock;
	const clock::time_point data_by = clock::now() + longest_behind;
	bool any = false, dry = false;
	if (const ud::endpoint_state s = endpoint_->state(); s.changes != network_.changes) {
		follow(s, now);
		any = true;
	}
	for (int round = 0; round < rounds_per_pump && !dry; round++) {
		const std::size_t n = endpoint_->poll(completions_);
		for (std::size_t i = 0; i < n; i++)
			dispatch(completions_[i], now);
		if (n != 0)
			control_.repost();
		dry = n == 0;
		any |= drain(dry || round + 1 == rounds_per_pump || clock::now() >= data_by, now) ||
		       !dry;
		// A thread waits for what has ended, and no peer is known to send more.
		if (fetches_.has_ended() && fetches_.in_flight() == 0) {
			drain(true, now); // what peers have asked for
			break;
		}
	}
	if (departures_.kept() != 0) {
		offer_leaving(now);
		any |= drain(true, now);
	}
	if (coop_engine_overdue(host_.engine(), dry, now)) {
		coop_engine_expire(host_.engine(), now);
		drain(true, now);
		any = true;
	}
	endpoint_->flush();
	return any;
}

void node::dispatch(const ud::completion &c, std::uint64_t now)
{
	if (c.qp != control_.qp()) {
		host_.completed(c, now);
		return;
	}
	if (const auto m = control_.message(c); m.data() != nullptr) {
		const ud::address from = control_.sender(c);
		coop_engine_rx_ctrl(host_.engine(), m.data(), static_cast<std::uint32_t>(m.size()),
				    &from, now);
	}
	control_.take(c);
}

// data: segments of serves too, not only what is urgent.
bool node::drain(bool data, std::uint64_t now)
{
	coop_engine *const engine = host_.engine();
	bool any = false, more = true;
	while (more) {
		more = false;
		for (coop_tx tx;
		     data && host_.may_send() ? coop_engine_next_tx(engine, now, &tx)
					      : coop_engine_next_urgent_tx(engine, now, &tx);
		     more = true)
			host_.perform(tx, now);
		for (coop_ev ev; coop_engine_next_event(engine, now, &ev); more = true)
			if (ev.kind == COOP_EV_OFFER)
				note_offered(ev);
			else
				host_.handle(ev, now);
		if ((pages_settled_.load(std::memory_order_relaxed) &&
		     pages_settled_.exchange(false, std::memory_order_seq_cst)) ||
		    now >= serves_.next_deadline()) {
			serves_.look_again(now);
			more = true;
		}
		any |= more;
	}
	return any;
}

// What happens to the device and the port. Without them the mount goes on over storage: what
// is under way ends now, and nothing new begins.
void node::follow(const ud::endpoint_state &s, std::uint64_t now)
{
	const std::string &name = endpoint_->info().name;
	if (s.lost && !network_.lost)
		spdlog::warn("node: {}: the device is gone; from here on everything comes from "
			     "storage, until this is mounted again",
			     name);
	else if (s.port_up != network_.port_up)
		spdlog::warn("node: {}: the port is {}", name,
			     s.port_up ? "up again: peers are asked again"
				       : "down or without an address: everything comes from "
					 "storage until it is back");
	const bool came = s.port_up && !network_.port_up;
	const bool went = !s.port_up && network_.port_up;
	network_ = s;
	if (!s.port_up)
		fetches_.cancel_all(now);
	const coop_addr self = control_.self();
	const bool moved = !s.lost && !coop_addr_same(&self, &self_);
	if (moved) {
		self_ = self;
		coop_engine_set_self(host_.engine(), &self_);
		char text[COOP_ADDR_TEXT];
		if (coop_addr_format(&self_, text, sizeof(text)) > 0)
			spdlog::info("node: own address is now {}", text);
	}
	if (on_self_ && (went || came || (moved && s.port_up)))
		news_ = [this, up = s.port_up, now_at = self_] {
			on_self_(up ? &now_at : nullptr);
		};
}

// ---- peers -----------------------------------------------------------------------

coop_addr node::self() const
{
	const std::lock_guard lock(driver_->mutex());
	return self_;
}

void node::rekey(const std::array<std::uint8_t, 16> &fabric_key)
{
	{
		const std::lock_guard lock(driver_->mutex());
		coop_engine_rekey(host_.engine(), fabric_key.data(), clock_us());
	}
	pages_settled_.store(true, std::memory_order_seq_cst); // the engine has work
	driver_->nudge();
}

void node::daemon_join(std::uint32_t node_id, const coop_addr &addr)
{
	const std::lock_guard lock(driver_->mutex());
	forget(node_id);
	// A node that came back under another number: the old number's leave may come later,
	// and must not take the address away then.
	std::erase_if(by_daemon_,
		      [&](const auto &p) { return coop_addr_same(&p.second.addr, &addr); });
	const s64 id = coop_engine_peer_add(host_.engine(), &addr, COOP_PEER_BY_DAEMON, clock_us());
	if (id > 0) {
		by_daemon_[node_id] = {addr, static_cast<std::uint32_t>(id)};
		departures_.set_peers(true);
	} else if (id == -ENOSPC && !table_was_full_) {
		table_was_full_ = true;
		spdlog::warn("node: {} peers are known, the table is full: further ones are not "
			     "asked for pages",
			     max_peers);
	}
}

void node::daemon_leave(std::uint32_t node_id)
{
	const std::lock_guard lock(driver_->mutex());
	forget(node_id);
}

bool node::find(std::uint32_t node_id, coop_addr &out) const
{
	const std::lock_guard lock(driver_->mutex());
	const auto it = by_daemon_.find(node_id);
	if (it == by_daemon_.end())
		return false;
	out = it->second.addr;
	return true;
}

void node::forget(std::uint32_t node_id)
{
	const auto it = by_daemon_.find(node_id);
	if (it == by_daemon_.end())
		return;
	(void)coop_engine_peer_del(host_.engine(), &it->second.addr, COOP_PEER_BY_DAEMON);
	by_daemon_.erase(it);
	departures_.set_peers(!by_daemon_.empty());
}

void node::daemon_forget_all()
{
	const std::lock_guard lock(driver_->mutex());
	for (const auto &[node_id, peer] : by_daemon_)
		(void)coop_engine_peer_del(host_.engine(), &peer.addr, COOP_PEER_BY_DAEMON);
	by_daemon_.clear();
}

int node::add_by_hand(const coop_addr &addr)
{
	if (!coop_addr_valid(&addr))
		return -EINVAL;
	const std::lock_guard lock(driver_->mutex());
	const s64 id = coop_engine_peer_add(host_.engine(), &addr, COOP_PEER_BY_HAND, clock_us());
	return id > 0 ? 0 : static_cast<int>(id);
}

std::vector<coop_peer_info> node::peers() const
{
	const std::lock_guard lock(driver_->mutex());
	std::vector<coop_peer_info> out;
	std::uint32_t cursor = 0;
	for (coop_peer_info p; coop_engine_peer_next(host_.engine(), &cursor, &p);)
		out.push_back(p);
	return out;
}

// ---- figures ---------------------------------------------------------------------

std::vector<coop_request_info> node::requests() const
{
	const std::lock_guard lock(driver_->mutex());
	std::vector<coop_request_info> out;
	std::uint32_t cursor = 0;
	for (coop_request_info r;
	     coop_engine_request_next(host_.engine(), &cursor, clock_us(), &r);)
		out.push_back(r);
	return out;
}

struct coop_engine_stats node::stats() const
{
	const std::lock_guard lock(driver_->mutex());
	struct coop_engine_stats s;
	coop_engine_stats(host_.engine(), &s);
	return s;
}

ud::endpoint_stats node::endpoint_stats() const
{
	const std::lock_guard lock(driver_->mutex());
	return endpoint_->stats();
}

ud::endpoint_state node::endpoint_state() const
{
	const std::lock_guard lock(driver_->mutex());
	return endpoint_->state();
}

void node::reset_stats()
{
	const std::lock_guard lock(driver_->mutex());
	coop_engine_stats_reset(host_.engine());
	offer_stats_ = {};
	endpoint_->reset_stats();
}

} // namespace coop::client
