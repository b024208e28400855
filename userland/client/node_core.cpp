// SPDX-License-Identifier: MIT
// node_core.cpp - see node_core.hpp.
#include "userland/client/node_core.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <system_error>

#include <spdlog/spdlog.h>

#include "rpc/base/addr.h"

namespace coop::client
{

namespace
{

constexpr std::uint32_t control_recvs = 512, control_sends = 256;
constexpr std::uint32_t max_peers = 4096 + 256; // all members that a daemon has, and some by hand
constexpr std::uint32_t queued_per_slot = 4;
constexpr std::uint32_t placement_chunk = 1u << 20; // bytes
constexpr std::uint32_t min_window = 64u << 10;
constexpr std::size_t completions_at_once = 256;
// A peer that never stops sending must not keep one pump from ever returning.
constexpr int rounds_per_pump = 8;
// Most that sends of data wait for what has arrived.
constexpr std::chrono::milliseconds longest_behind{2};

fetch_host::message_qp::shape control_shape(const ud::endpoint_info &info, std::uint32_t qkey)
{
	fetch_host::message_qp::shape s{std::min<std::uint32_t>(info.mtu, COOP_CTRL_MAX),
					control_recvs, control_sends, control_sends};
	s.attr.max_sge = 3;
	s.attr.qkey = qkey;
	return s;
}

coop_engine_cfg engine_config(const node_options &o, const ud::endpoint_info &info,
			      unsigned page_shift, const coop_addr &self)
{
	coop_engine_cfg cfg{};
	if (::getrandom(&cfg.seed, sizeof(cfg.seed), 0) != sizeof(cfg.seed))
		throw std::system_error(errno, std::generic_category(), "node: getrandom");
	std::copy(o.fabric_key.begin(), o.fabric_key.end(), cfg.key);
	cfg.self = self;
	cfg.page_shift = page_shift;
	cfg.mtu = info.mtu;
	cfg.max_fetches = o.num_srpc;
	cfg.max_serves = o.num_rrpc;
	cfg.max_queued = o.num_srpc * queued_per_slot;
	cfg.max_peers = max_peers;
	cfg.peer_timeout_us = o.peer_timeout_ms * 1000;
	cfg.window_bytes = static_cast<std::uint32_t>(
		std::clamp<std::size_t>(info.receive_window, min_window, 1u << 30));
	cfg.serve_bytes_s = o.serve_bytes_s;
	cfg.fetch_depth = node_requester::depth(info, page_shift);
	cfg.serve_depth = node_responder::depth(page_shift, info.mtu);
	cfg.chunk_pages = std::max<std::uint32_t>(placement_chunk >> page_shift, COOP_MAX_PAGES);
	if (o.page_mac)
		cfg.flags |= COOP_F_PAGE_TAG;
	else if (o.page_crc)
		cfg.flags |= COOP_F_PAGE_CRC;
	if (((1u << page_shift) % info.mtu) != 0)
		cfg.flags |= COOP_F_PACKED;
	return cfg;
}

} // namespace

std::uint64_t clock_us()
{
	timespec t;
	::clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<std::uint64_t>(t.tv_sec) * 1000000 +
	       static_cast<std::uint64_t>(t.tv_nsec) / 1000;
}

node_core::node_core(const node_options &o, std::unique_ptr<ud::endpoint> ep, page_store &store) :
	endpoint_(std::move(ep)),
	memory_(endpoint_->info().mtu, std::size_t{1} << store.page_shift()),
	control_(*endpoint_, memory_, control_shape(endpoint_->info(), o.qkey)),
	requester_(*endpoint_, memory_, store.page_shift(), o.num_srpc,
		   o.num_srpc * queued_per_slot),
	responder_(*endpoint_, memory_, store, o.num_rrpc, o.qkey),
	on_self_(o.on_self),
	network_(endpoint_->state()),
	completions_(completions_at_once)
{
	memory_.make(*endpoint_);
	control_.make();
	self_ = control_.self();
	if (endpoint_->info().pins_memory)
		store.keep_memory();
	if (const int err = endpoint_->register_memory(store.base(), store.size()); err != 0)
		throw std::system_error(-err, std::generic_category(),
					"node: cannot register the page store with " +
						endpoint_->info().name +
						"; lower cache_size= or raise the memlock limit");
	const coop_engine_cfg cfg = engine_config(o, endpoint_->info(), store.page_shift(), self_);
	const std::size_t size = coop_engine_size(&cfg);
	engine_memory_.resize((size + 7) / 8);
	engine_ = size != 0 ? coop_engine_init(engine_memory_.data(), size, &cfg, clock_us())
			    : nullptr;
	if (engine_ == nullptr)
		throw std::system_error(EINVAL, std::generic_category(),
					"node: ib_num_srpc=, ib_num_rrpc= or peer_timeout_ms= is "
					"out of range");
	requester_.create_qps(engine_);
	responder_.create_qps(engine_);
	assign(control_.qp(), role::control, 0);
	for (std::uint32_t slot = 0; slot < o.num_srpc; slot++)
		assign(requester_.qp(slot), role::fetch, slot);
	for (std::uint32_t slot = 0; slot < o.num_rrpc; slot++)
		assign(responder_.qp(slot), role::serve, slot);
}

void node_core::assign(std::uint32_t qp, role what, std::uint32_t slot)
{
	if (roles_.size() <= qp)
		roles_.resize(qp + 1);
	roles_[qp] = {what, slot};
}

// What happens to the device and the port. Without them the mount goes on over storage: what
// is under way ends now, and nothing new begins.
void node_core::follow(const ud::endpoint_state &s, std::uint64_t now)
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
	network_ = s;
	if (!s.port_up)
		requester_.cancel_all(now);
	const coop_addr self = control_.self();
	if (s.lost || coop_addr_same(&self, &self_))
		return;
	self_ = self;
	coop_engine_set_self(engine_, &self_);
	char text[COOP_ADDR_TEXT];
	if (coop_addr_format(&self_, text, sizeof(text)) > 0)
		spdlog::info("node: own address is now {}", text);
	if (on_self_)
		news_ = [this, self] { on_self_(self); };
}

bool node_core::pump(std::uint64_t now)
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
		// Somebody waits for what has ended; nobody is known to send more.
		if (requester_.has_ended() && requester_.in_flight() == 0) {
			drain(true, now); // what peers asked for meanwhile
			break;
		}
	}
	if (coop_engine_overdue(engine_, dry, now)) {
		coop_engine_expire(engine_, now);
		drain(true, now);
		any = true;
	}
	endpoint_->flush();
	return any;
}

void node_core::dispatch(const ud::completion &c, std::uint64_t now)
{
	const assignment a = c.qp < roles_.size() ? roles_[c.qp] : assignment{};
	switch (a.what) {
	case role::control:
		if (const auto m = control_.message(c); m.data() != nullptr) {
			const ud::address from = control_.sender(c);
			coop_engine_rx_ctrl(engine_, m.data(), static_cast<std::uint32_t>(m.size()),
					    &from, now);
		}
		control_.take(c);
		break;
	case role::fetch:
		requester_.completed(a.slot, c, now);
		break;
	case role::serve:
		responder_.completed(a.slot, c, now);
		break;
	case role::none:
		break;
	}
}

// data: segments of serves too, not only what is urgent.
bool node_core::drain(bool data, std::uint64_t now)
{
	bool any = false, more = true;
	while (more) {
		more = false;
		for (coop_tx tx; data ? coop_engine_next_tx(engine_, now, &tx)
				      : coop_engine_next_urgent_tx(engine_, now, &tx);
		     more = true)
			perform(tx, now);
		for (coop_ev ev; coop_engine_next_event(engine_, now, &ev); more = true)
			handle(ev, now);
		any |= more;
	}
	return any;
}

void node_core::perform(const coop_tx &tx, std::uint64_t now)
{
	switch (tx.kind) {
	case COOP_TX_CTRL:
		control_.send(tx.addr, tx.buf, tx.len);
		break;
	case COOP_TX_POST_RECV:
		requester_.post_recv(tx, now);
		break;
	case COOP_TX_DATA:
		responder_.send(tx, now);
		break;
	case COOP_TX_STOP_QP:
		requester_.stop_qp(tx.slot);
		break;
	case COOP_TX_RESET_QP:
		requester_.reset_qp(tx.slot);
		break;
	}
}

void node_core::handle(const coop_ev &ev, std::uint64_t now)
{
	switch (ev.kind) {
	case COOP_EV_LOOKUP:
		responder_.lookup(ev, now);
		break;
	case COOP_EV_RECHECK:
		responder_.recheck(ev, now);
		break;
	case COOP_EV_SERVE_END:
		responder_.end(ev);
		break;
	case COOP_EV_VERIFY:
		requester_.verify(ev, now);
		break;
	case COOP_EV_FETCH_DONE:
		requester_.finished(ev, now);
		break;
	case COOP_EV_PEER:
		break; // the peers text tells
	}
}

int node_core::fetch(const content_key &key, std::uint64_t file_size, block_ref &&pin,
		     std::uint64_t pages, const std::vector<std::uint32_t> &openers,
		     std::function<void(const fetch_outcome &)> &&done, std::uint64_t now)
{
	if (!network_.port_up)
		return -ENOENT;
	std::uint32_t hints[COOP_MAX_HINTS];
	std::size_t n = 0;
	for (const std::uint32_t node_id : openers) {
		const auto it = by_daemon_.find(node_id);
		if (it != by_daemon_.end() && n < COOP_MAX_HINTS)
			hints[n++] = it->second.engine_id;
	}
	const int err = requester_.submit(key, file_size, std::move(pin), pages, {hints, n},
					  std::move(done), now);
	if (err == 0) {
		drain(true, now);
		endpoint_->flush();
	}
	return err;
}

void node_core::cancel_all(std::uint64_t now)
{
	requester_.cancel_all(now);
	drain(true, now);
	endpoint_->flush();
}

void node_core::close()
{
	endpoint_.reset(); // from here on nobody writes to pages
	requester_.abandon_all();
}

void node_core::join(std::uint32_t node_id, const coop_addr &addr, std::uint64_t now)
{
	leave(node_id);
	// A node that came back under another number: the old number's leave may come later,
	// and must not take the address away then.
	std::erase_if(by_daemon_,
		      [&](const auto &p) { return coop_addr_same(&p.second.addr, &addr); });
	const s64 id = coop_engine_peer_add(engine_, &addr, COOP_PEER_BY_DAEMON, now);
	if (id > 0) {
		by_daemon_[node_id] = {addr, static_cast<std::uint32_t>(id)};
	} else if (id == -ENOSPC && !table_was_full_) {
		table_was_full_ = true;
		spdlog::warn("node: {} peers are known, the table is full: further ones are not "
			     "asked for pages",
			     max_peers);
	}
}

void node_core::leave(std::uint32_t node_id)
{
	const auto it = by_daemon_.find(node_id);
	if (it == by_daemon_.end())
		return;
	(void)coop_engine_peer_del(engine_, &it->second.addr, COOP_PEER_BY_DAEMON);
	by_daemon_.erase(it);
}

void node_core::forget_all()
{
	for (const auto &[node_id, peer] : by_daemon_)
		(void)coop_engine_peer_del(engine_, &peer.addr, COOP_PEER_BY_DAEMON);
	by_daemon_.clear();
}

int node_core::add_by_hand(const coop_addr &addr, std::uint64_t now)
{
	if (!coop_addr_valid(&addr))
		return -EINVAL;
	const s64 id = coop_engine_peer_add(engine_, &addr, COOP_PEER_BY_HAND, now);
	return id > 0 ? 0 : static_cast<int>(id);
}

} // namespace coop::client
