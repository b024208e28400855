// SPDX-License-Identifier: MIT
// machine_message.cpp - messages: operations on their way to rpc/chan and back, and the places
// of those that arrive.
//
// A place is given out for a message as its first datagram arrives. The memory is ours to
// write, not the network's, so a place can be given back at any time: what still comes for
// it is dropped.
#include <algorithm>
#include <cerrno>

#include "machine.hpp"

namespace coop::net::ud
{

// ---- operations ------------------------------------------------------------------

// A free one, or none. References into ops_ end here.
std::uint32_t machine::allocate(spi::token t, const spi::transfer &x)
{
	if (free_ops_.empty()) {
		if (ops_.size() == options_.max_operations + extra_ops)
			return none;
		free_ops_.push_back(static_cast<std::uint32_t>(ops_.size()));
		ops_.emplace_back();
	}
	const std::uint32_t index = free_ops_.back();
	free_ops_.pop_back();
	op &o = ops_[index];
	o.token = t;
	o.queue = x.queue;
	o.ending = o.cancelled = o.sending = false;
	o.attempts = 0;
	o.status = 0;
	o.serving = 0;
	o.under_way = false;
	o.asked = o.question = false;
	o.result.reset();
	o.peer = x.peer;
	static_cast<spi::memory &>(o.memory) = x.memory;
	o.memory.keys = {};
	if (options_.verbs)
		lend(o);
	o.length = x.length;
	o.remote = x.remote;
	o.key = x.key;
	o.remote_key = x.remote_key;
	if (t)
		by_token_.insert(t, index);
	return index;
}

// So that the device takes it from where it lies. What fits a command is copied faster than
// its memory is registered; without keys everything is copied.
void machine::lend(op &o)
{
	if (!o.memory.registration ||
	    (o.queue == queue_type::msg_send && o.length <= channels_->mtu(COOP_CHAN_COMMAND)))
		return;
	const auto enter = [this](const segment &s, std::unique_ptr<coop::ud::lent_memory> &region,
				  std::uint32_t &key) {
		return endpoint_->lend_memory(s.base, s.length, region, key);
	};
	if (keys_.find(o.memory, this, enter, o.memory.keys))
		o.memory.keys = {};
}

void machine::release(std::uint32_t index)
{
	unlist_reading(index);
	ops_[index].state = op_state::free;
	free_ops_.push_back(index);
}

// Tells the core. What is left of it is released, unless it stands in a line.
void machine::finish(std::uint32_t index, int status, std::size_t length)
{
	op &o = ops_[index];
	if (o.queue != queue_type::msg_send) {
		end_bulk(index, status, length);
		return;
	}
	const spi::token t = o.token;
	by_token_.erase(t);
	release(index);
	sink_.completed(t, status, length);
}

int machine::submit(spi::token t, const spi::transfer &x)
{
	const std::uint64_t now = now_us();
	if (x.queue == queue_type::msg_recv)
		return -EINVAL; // places are asked for
	// The device's MTU may leave room for less than the domain could promise.
	if (x.queue == queue_type::msg_send && x.length > max_length_)
		return -EMSGSIZE;
	const std::uint32_t index = allocate(t, x);
	if (index == none)
		return -ENOBUFS;
	op &o = ops_[index];
	if (x.queue == queue_type::passive_bulk_recv || x.queue == queue_type::passive_bulk_send) {
		o.state = op_state::passive;
		// For one alone: who that is has to be known when he asks.
		if (options_.verbs && o.peer != spi::no_peer && !peers_[o.peer].resolved &&
		    !peers_[o.peer].self)
			resolver_->ask(o.peer, peers_[o.peer].who, now);
		return 0;
	}
	const peer &p = peers_[o.peer];
	if (p.self && x.queue == queue_type::msg_send) {
		if (!loop(index, now)) {
			o.state = op_state::loop;
			o.since = now;
			loop_.push_back(index);
		}
		return 0;
	}
	if (p.self) {
		const int status = bulk_to_self(index);
		const std::size_t length = ops_[index].length;
		by_token_.erase(t);
		release(index);
		sink_.completed(t, status, status ? 0 : length);
		return 0;
	}
	go(index, now);
	// The end point sends those that are alike in one system call.
	if (!x.more || ++held_back_ == held_back_most)
		drain(now);
	return 0;
}

void machine::flush()
{
	if (chan_)
		drain(now_us());
}

// On, towards its peer; asks for the address first if need be.
void machine::go(std::uint32_t index, std::uint64_t now)
{
	op &o = ops_[index];
	peer &p = peers_[o.peer];
	if (!p.resolved) {
		if (!o.sending)
			o.state = op_state::address;
		p.waiting.push_back(index);
		resolver_->ask(o.peer, p.who, now);
		return;
	}
	if (o.sending || o.queue == queue_type::msg_send)
		send(index, now);
	else
		begin_reading(index, now);
}

// To rpc/chan: the message, or the bulk message that lies ready.
void machine::send(std::uint32_t index, std::uint64_t now)
{
	op &o = ops_[index];
	coop_chan_msg s{};
	s.peer = peers_[o.peer].chan;
	s.cookie = index;
	s.tag = make_tag(o.sending ? tag_kind::bulk : tag_kind::message, own_);
	s.length = o.sending ? text_bytes : static_cast<u32>(o.length);
	o.id = none;
	const int err = coop_chan_send(chan_, &s, now, &o.id);
	if (!o.sending)
		o.state = err == -EAGAIN ? op_state::line : op_state::sent;
	if (!err) {
		count_active(o.peer, 1);
	} else if (err == -EAGAIN) {
		line_.push_back(index);
	} else {
		if (o.sending)
			told(index, err, now);
		else
			finish(index, err, 0);
	}
}

void machine::sent(const coop_chan_ev &ev, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(ev.cookie);
	if (index < ops_.size() && ops_[index].id == ev.id) {
		op &o = ops_[index];
		count_active(o.peer, -1);
		int err = ev.err;
		if (err == -ETIMEDOUT) // which rpc/chan says of more than one way to die
			err = peers_[o.peer].death;
		if (o.sending) {
			told(index, err, now);
		} else if (o.state == op_state::sent) {
			if (err == -ECANCELED && !o.cancelled)
				err = -ECONNRESET; // its session was given up
			finish(index, err, err ? 0 : o.length);
		}
	}
	if (line_.empty())
		return;
	const std::uint32_t next = line_.front();
	line_.pop_front();
	if (ops_[next].state == op_state::gone)
		release(next);
	else
		go(next, now);
}

void machine::cancel(spi::token t)
{
	const std::uint64_t now = now_us();
	const std::uint32_t index = by_token_.find(t);
	if (index == none) {
		// A receive buffer: its places are given back, and senders told.
		for (std::uint32_t slot; (slot = places_of_.find(t)) != none;) {
			place_slot &p = places_[slot];
			unlist(slot);
			p.told = true;
			(void)coop_chan_give_up(chan_, p.receive, now);
			sink_.abandon(p.landing);
		}
		drain(now);
		return;
	}
	op &o = ops_[index];
	o.cancelled = true;
	switch (o.state) {
	case op_state::address:
	case op_state::line:
	case op_state::loop:
		o.state = op_state::gone;
		by_token_.erase(t);
		sink_.completed(t, -ECANCELED, 0);
		return;
	case op_state::sent:
		(void)coop_chan_cancel(chan_, o.id, now);
		break;
	case op_state::passive:
	case op_state::reading:
	case op_state::offered:
		cancel_bulk(index, -ECANCELED, now);
		break;
	case op_state::free:
	case op_state::gone:
	case op_state::telling:
		return;
	}
	drain(now);
}

// ---- to ourselves ----------------------------------------------------------------

// False: there is no buffer yet.
bool machine::loop(std::uint32_t index, std::uint64_t now)
{
	op &o = ops_[index];
	spi::landing l;
	const int err = sink_.place(o.length, l);
	if (err == -ENOBUFS)
		return false;
	if (!err) {
		spi::cursor to(l.memory, l.offset);
		spi::cursor from(o.memory);
		std::size_t left = o.length;
		for (auto piece = from.next(left); !piece.empty(); piece = from.next(left)) {
			left -= piece.size();
			while (!piece.empty()) {
				const auto into = to.next(piece.size());
				std::memcpy(into.data(), piece.data(), into.size());
				piece = piece.subspan(into.size());
			}
		}
		sink_.received(l, o.peer);
	}
	finish(index, err, err ? 0 : o.length);
	return true;
}

void machine::receivable()
{
	const std::uint64_t now = now_us();
	while (!loop_.empty()) {
		const std::uint32_t index = loop_.front();
		if (ops_[index].state == op_state::gone) {
			loop_.pop_front();
			release(index);
			continue;
		}
		if (!loop(index, now)) {
			if (now - ops_[index].since < loop_patience_us)
				return;
			finish(index, -ENOBUFS, 0);
		}
		loop_.pop_front();
	}
}

// ---- arriving --------------------------------------------------------------------

// A message begins. `copy`: bytes of this datagram are to be copied.
void machine::place(coop_chan_in &in, const coop_addr &from, bool &copy, std::uint64_t now)
{
	const identity who = identity::unpack(in.tag & ((1ull << 50) - 1));
	const std::uint32_t chan = in.peer;
	const bool known = in.peer_cookie != 0;
	const bool bulk = in.tag >> 56 == std::uint64_t(tag_kind::bulk);
	copy = false;
	const bool forged = !options_.verbs && !believable(0, who, from);
	if (stopping_ || forged || who == own_ || (in.tag >> 50 & 63) != 0 ||
	    (!bulk && in.tag >> 56 != std::uint64_t(tag_kind::message)) ||
	    (bulk && in.length != text_bytes) ||
	    (known && !(peers_[in.peer_cookie - 1].who == who))) {
		coop_chan_refuse(chan_, COOP_CHAN_NO_LISTENER, now);
		return;
	}
	spi::peer_number n;
	if (known) {
		n = static_cast<spi::peer_number>(in.peer_cookie - 1);
		sessions_.used(peers_[n].session);
	} else {
		const address where = who.on(own_address_);
		n = resolver_->crowded() ? spi::no_peer : sink_.peer(where);
		if (n == spi::no_peer) {
			coop_chan_refuse(chan_, COOP_CHAN_NO_BUFFER, now);
			return;
		}
		if (!at(n).used)
			set_up(peers_[n], where);
		peers_[n].held = true;
		if (options_.verbs && !is_at(n, chan)) {
			resolver_->ask(n, who, now); // and he will ask again
			coop_chan_refuse(chan_, COOP_CHAN_NO_BUFFER, now);
			return;
		}
	}
	int err = 0;
	spi::landing l;
	if (!bulk)
		err = sink_.place(in.length, l);
	else if (ops_.size() - free_ops_.size() > options_.max_operations + extra_ops / 2)
		err = -ENOBUFS;
	if (err) {
		coop_chan_refuse(chan_, err == -EMSGSIZE ? COOP_CHAN_TOO_LONG : COOP_CHAN_NO_BUFFER,
				 now);
	} else {
		if (free_places_.empty()) {
			free_places_.push_back(static_cast<std::uint32_t>(places_.size()));
			places_.emplace_back();
		}
		const std::uint32_t slot = free_places_.back();
		free_places_.pop_back();
		place_slot &p = places_[slot];
		p.landing = l;
		p.from = n;
		p.bulk = bulk;
		p.told = false;
		coop_chan_place(chan_, slot, now, &in);
		p.receive = in.receive;
		copy = true;
	}
	if (!known)
		adopt(n, chan, now);
}

// With the others of its receive buffer, from where it is found when that is cancelled.
void machine::list(std::uint32_t slot)
{
	place_slot &p = places_[slot];
	p.listed = true;
	p.before = none;
	p.after = places_of_.find(p.landing.token);
	if (p.after != none) {
		places_[p.after].before = slot;
		places_of_.erase(p.landing.token);
	}
	places_of_.insert(p.landing.token, slot);
}

void machine::unlist(std::uint32_t slot)
{
	place_slot &p = places_[slot];
	if (!std::exchange(p.listed, false))
		return;
	if (p.after != none)
		places_[p.after].before = p.before;
	if (p.before != none) {
		places_[p.before].after = p.after;
		return;
	}
	places_of_.erase(p.landing.token);
	if (p.after != none)
		places_of_.insert(p.landing.token, p.after);
}

void machine::copy_in(const coop_chan_in &in, const std::byte *datagram)
{
	place_slot &p = places_[in.cookie];
	if (p.bulk) {
		if (in.offset + in.len <= p.text.size())
			std::memcpy(p.text.data() + in.offset, datagram + in.from, in.len);
		return;
	}
	if (p.told)
		return;
	if (in.len)
		spi::scatter(p.landing.memory, p.landing.offset + in.offset, datagram + in.from,
			     in.len);
	if (!in.last) {
		sessions_.used(peers_[p.from].session); // what is long is not the one to end
		if (!p.listed)
			list(static_cast<std::uint32_t>(in.cookie));
		return;
	}
	// The program has it before anything else is done about it.
	unlist(static_cast<std::uint32_t>(in.cookie));
	p.told = true;
	owed_ = true;
	sink_.received(p.landing, p.from);
}

void machine::landed(std::uint32_t slot, bool whole, std::uint64_t now)
{
	place_slot &p = places_[slot];
	const bool told = p.told, bulk = p.bulk;
	const spi::landing l = p.landing;
	const spi::peer_number from = p.from;
	const auto text = p.text;
	unlist(slot);
	free_places_.push_back(slot);
	if (bulk) {
		if (whole)
			bulk_text(text.data(), from, now);
	} else if (!told) {
		if (whole)
			sink_.received(l, from);
		else
			sink_.abandon(l);
	}
}

} // namespace coop::net::ud
