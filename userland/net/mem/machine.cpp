// SPDX-License-Identifier: MIT
// machine.cpp - see machine.hpp and hub.hpp.
//
// Bulk data take two copies and three packets where one copy would do: this transport is meant to
// be simple and correct, not fast.
#include "machine.hpp"

#include <algorithm>
#include <cerrno>

namespace coop::net::mem
{

machine::~machine()
{
	leave();
}

int machine::start(const address &own)
{
	own_ = own;
	hub::instance().insert(own_, box_);
	listed_ = true;
	if (options_.start_delay.count())
		starts_ = sink_.now() + options_.start_delay;
	else
		sink_.started();
	return 0;
}

void machine::expire(time_point now)
{
	if (now >= starts_) {
		starts_ = never;
		sink_.started();
	}
	if (!receives_.empty())
		receivable();
	while (!held_.empty() && held_.front().until <= now) {
		if (options_.remote_errors)
			answer(held_.front().message, kind::ended, -ENOBUFS);
		held_.pop_front();
	}
}

time_point machine::deadline() const
{
	if (held_.empty())
		return starts_;
	// Without places the core does not report a new receive buffer, and the thread may sleep:
	// look at once.
	if (!receives_.empty())
		return time_point{};
	return std::min(starts_, held_.front().until);
}

void machine::leave()
{
	if (!listed_)
		return;
	listed_ = false;
	hub::instance().erase(own_);
	for (const packet &p : box_->close())
		if (p.kind == kind::message || p.kind == kind::get || p.kind == kind::put)
			answer(p, kind::ended, -ECONNRESET);
	for (const held &h : held_)
		answer(h.message, kind::ended, -ECONNRESET);
	held_.clear();
}

void machine::stop()
{
	starts_ = never;
	leave();
	sink_.stopped();
}

bool machine::send(const address &to, packet &&p)
{
	p.from = own_;
	const std::shared_ptr<mailbox> box = hub::instance().find(to);
	return box && box->push(std::move(p));
}

void machine::answer(const packet &p, kind k, int status)
{
	packet a{k, {}};
	a.remote = p.token;
	a.status = status;
	a.length = p.length;
	// If this fails the requester has gone, and nothing is left to report to.
	(void)send(p.from, std::move(a));
}

int machine::submit(spi::token t, const spi::transfer &x)
{
	packet p{};
	switch (x.queue) {
	case queue_type::msg_recv:
		receives_.push_back({t, x.memory, 0});
		return 0;
	case queue_type::passive_bulk_recv:
	case queue_type::passive_bulk_send:
		outstanding_.insert(t);
		return 0;
	case queue_type::msg_send:
		p.kind = kind::message;
		break;
	case queue_type::active_bulk_send:
		p.kind = kind::put;
		break;
	case queue_type::active_bulk_recv:
		p.kind = kind::get;
		break;
	}
	p.token = t;
	p.remote = x.remote;
	p.key = x.remote_key;
	p.length = x.length;
	p.high = x.high && p.kind == kind::message;
	p.ranged = x.reusable;
	p.offset = x.remote_offset;
	if (p.kind != kind::get) {
		p.data.resize(x.length);
		spi::gather(x.memory, 0, p.data.data(), x.length);
	}
	const bool lost = options_.lose && ++sent_ % options_.lose == 0;
	const bool arrives = lost || send(peers_[x.peer], std::move(p));
	if (x.queue == queue_type::msg_send && !options_.remote_errors)
		sink_.completed(t, 0, x.length);
	else if (!arrives)
		sink_.completed(t, -ECONNREFUSED, 0);
	else
		outstanding_.insert(t);
	return 0;
}

void machine::cancel(spi::token t)
{
	if (outstanding_.erase(t)) {
		sink_.completed(t, -ECANCELED, 0);
		return;
	}
	for (auto it = receives_.begin(); it != receives_.end(); ++it)
		if (it->token == t) {
			receives_.erase(it);
			sink_.completed(t, -ECANCELED, 0);
			return;
		}
}

int machine::peer_open(spi::peer_number n, const address &a)
{
	if (n >= peers_.size())
		peers_.resize(n + 1);
	peers_[n] = a;
	return 0;
}

spi::peer_number machine::number_of(const address &a)
{
	const spi::peer_number n = sink_.peer(a);
	if (n != spi::no_peer)
		(void)peer_open(n, a);
	return n;
}

unsigned machine::progress(unsigned budget)
{
	if (!receives_.empty())
		receivable();
	unsigned n = 0;
	for (packet p; n < budget && box_->pop(p); n++)
		handle(p);
	return n;
}

void machine::handle(packet &p)
{
	const spi::transfer *x = nullptr;
	switch (p.kind) {
	case kind::message:
		if (!held_.empty() || !take(p))
			hold(std::move(p));
		return;
	case kind::get:
		serve_get(p);
		return;
	case kind::put: {
		const int r = passive(p, queue_type::passive_bulk_recv, x);
		if (r == 0)
			spi::scatter(x->memory, p.offset, p.data.data(), p.data.size());
		if (r == 0 && !x->reusable) {
			outstanding_.erase(p.remote);
			sink_.completed(p.remote, 0, p.length);
		}
		answer(p, kind::ended, r);
		return;
	}
	case kind::data:
		x = outstanding_.erase(p.remote) ? sink_.find(p.remote) : nullptr;
		if (x) {
			spi::scatter(x->memory, 0, p.data.data(), p.data.size());
			sink_.completed(p.remote, 0, p.length);
		}
		answer(p, kind::got, x ? 0 : -ECANCELED);
		return;
	case kind::got:
		x = sink_.find(p.remote);
		if (p.status == 0 && !(x && x->reusable) && outstanding_.erase(p.remote))
			sink_.completed(p.remote, 0, p.length);
		return;
	case kind::ended:
		outstanding_.erase(p.remote);
		sink_.completed(p.remote, p.status, p.length);
		return;
	}
}

bool machine::take(const packet &p)
{
	const spi::peer_number from = number_of(p.from);
	int r = -ENOBUFS; // no room for another peer
	if (from != spi::no_peer) {
		r = options_.places ? place(p, from) : place_in_order(p, from);
		sink_.release(from);
		if (r == -ENOBUFS)
			return false;
	}
	if (options_.remote_errors)
		answer(p, kind::ended, r);
	return true;
}

int machine::place(const packet &p, spi::peer_number from)
{
	spi::landing l;
	if (int r = sink_.place(p.length, l))
		return r;
	spi::scatter(l.memory, l.offset, p.data.data(), p.data.size());
	sink_.received(l, from);
	return 0;
}

int machine::place_in_order(const packet &p, spi::peer_number from)
{
	if (receives_.empty())
		return -ENOBUFS;
	receive &r = receives_.front();
	if (p.length > r.memory.size - r.offset) {
		if (r.offset == 0)
			return -EMSGSIZE;
		// Retire it: its last message left too little room for this one.
		const spi::token t = r.token;
		receives_.pop_front();
		sink_.completed(t, 0, 0);
		return place_in_order(p, from);
	}
	const std::size_t at = r.offset;
	spi::scatter(r.memory, at, p.data.data(), p.data.size());
	r.offset += p.length;
	if (!sink_.received_in(r.token, at, p.length, from))
		receives_.pop_front();
	return 0;
}

void machine::hold(packet &&p)
{
	if (held_.size() < mailbox::most)
		held_.push_back({std::move(p), sink_.now() + options_.hold});
	else if (options_.remote_errors)
		answer(p, kind::ended, -ENOBUFS);
}

void machine::receivable()
{
	while (!held_.empty() && take(held_.front().message))
		held_.pop_front();
}

int machine::passive(const packet &p, queue_type q, const spi::transfer *&x)
{
	x = sink_.find(p.remote, p.key);
	if (!x || x->queue != q || x->reusable != p.ranged || !outstanding_.count(p.remote))
		return -ENOENT;
	if (x->peer != spi::no_peer && !(peers_[x->peer] == p.from))
		return -EPERM;
	return spi::check_range(*x, p.offset, p.length);
}

void machine::serve_get(packet &p)
{
	const spi::transfer *x = nullptr;
	if (int r = passive(p, queue_type::passive_bulk_send, x)) {
		answer(p, kind::ended, r);
		return;
	}
	packet d{kind::data, {}};
	d.token = p.remote;
	d.remote = p.token;
	d.length = p.length;
	d.data.resize(p.length);
	spi::gather(x->memory, p.offset, d.data.data(), p.length);
	(void)send(p.from, std::move(d));
}

} // namespace coop::net::mem
