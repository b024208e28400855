// SPDX-License-Identifier: MIT
// outbox.cpp - see outbox.hpp.
#include "outbox.hpp"

#include <cerrno>

namespace coop::net::ud
{

outbox::outbox(operations &o, peers &p, message_engine &c) : operations_(o), peers_(p), chan_(c) {}

void outbox::submit(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	if (!peers_[o.peer].self)
		return go(index, now);
	o.state = op_state::loop;
	o.since = now;
	loop_.push_back(index);
	loop(now);
}

void outbox::go(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	if (!o.sending)
		o.state = op_state::address;
	if (!peers_.ready(o.peer)) {
		wait(index, now);
	} else if (o.sending || o.queue == queue_type::msg_send) {
		send(index, now);
	} else {
		reports_.push_back({index, 0});
	}
}

void outbox::wait(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	if (o.peer >= waiting_.size())
		waiting_.resize(o.peer + 1);
	queue &q = waiting_[o.peer];
	o.waiting = true;
	o.ahead = q.last;
	o.behind = none;
	(q.last != none ? operations_[q.last].behind : q.first) = index;
	q.last = index;
	peers_.ask(o.peer, now);
}

void outbox::leave(std::uint32_t index)
{
	op &o = operations_[index];
	queue &q = waiting_[o.peer];
	o.waiting = false;
	(o.ahead != none ? operations_[o.ahead].behind : q.first) = o.behind;
	(o.behind != none ? operations_[o.behind].ahead : q.last) = o.ahead;
}

void outbox::send(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	coop_chan_msg m{};
	m.peer = peers_[o.peer].chan;
	m.flags = o.high ? COOP_CHAN_URGENT : 0;
	m.cookie = index;
	m.tag = make_tag(o.sending ? tag_kind::bulk : tag_kind::message, peers_.own());
	m.length = o.sending ? bulk_message::bytes : static_cast<u32>(o.length);
	o.id = none;
	const int err = chan_.send(m, now, o.id);
	if (!o.sending)
		o.state = err == -EAGAIN ? op_state::line : op_state::sent;
	if (!err)
		peers_.began(o.peer, now);
	else if (err == -EAGAIN)
		line_.push_back(index, o.high);
	else
		over(index, err);
}

void outbox::over(std::uint32_t index, int err)
{
	const op &o = operations_[index];
	if (o.sending || o.queue != queue_type::msg_send)
		reports_.push_back({index, err});
	else
		operations_.finish(index, err, err ? 0 : o.length);
}

void outbox::sent(const coop_chan_ev &ev, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(ev.cookie);
	if (index < operations_.size() && operations_[index].id == ev.id && index == here_) {
		delivered(ev.err, now);
	} else if (index < operations_.size() && operations_[index].id == ev.id) {
		const op &o = operations_[index];
		peers_.ended(o.peer);
		int err = ev.err;
		if (err == -ETIMEDOUT) // of more than one cause
			err = peers_[o.peer].death;
		if (err == -ECANCELED && !o.sending && !o.cancelled)
			err = -ECONNRESET; // its session was given up
		if (o.sending || o.state == op_state::sent)
			over(index, err);
	}
	if (line_.empty())
		return;
	const std::uint32_t next = line_.front();
	line_.pop_front();
	if (operations_[next].state == op_state::gone)
		operations_.release(next);
	else
		go(next, now);
}

void outbox::wake(spi::peer_number n, int status, std::uint64_t now)
{
	if (n >= waiting_.size())
		return;
	std::uint32_t next = std::exchange(waiting_[n], {}).first;
	while (next != none) {
		const std::uint32_t index = next;
		next = operations_[index].behind;
		operations_[index].waiting = false;
		if (status)
			over(index, status);
		else
			go(index, now);
	}
}

bool outbox::cancel(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	o.cancelled = true;
	switch (o.state) {
	case op_state::address:
		if (o.waiting) { // perhaps for seconds, and many more may come meanwhile
			leave(index);
			operations_.finish(index, -ECANCELED, 0);
			return true;
		}
		[[fallthrough]]; // bulk is about to hear of it
	case op_state::line:
	case op_state::loop:
		o.state = op_state::gone;
		operations_.complete(index, -ECANCELED, 0);
		return true;
	case op_state::sent:
		chan_.cancel(o.id, now);
		return true;
	default:
		return false;
	}
}

// ---- to this machine itself ------------------------------------------------------

// One at a time, so that they stay in order.
void outbox::loop(std::uint64_t now)
{
	again_ = true;
	while (!loop_.empty() && here_ == none) {
		const std::uint32_t index = loop_.front();
		op &o = operations_[index];
		if (o.state == op_state::gone) {
			loop_.pop_front();
			operations_.release(index);
			continue;
		}
		again_ = false;
		const int err = chan_.deliver_here(index, o);
		if (err == -EINPROGRESS) {
			o.state = op_state::sent;
			here_ = index;
		} else if (err == -ENOBUFS && now < o.since + loop_patience_us) {
			return;
		} else {
			end_loop(err);
		}
	}
}

// The first one is over.
void outbox::end_loop(int err)
{
	const std::uint32_t index = loop_.front();
	loop_.pop_front();
	operations_.finish(index, err, err ? 0 : operations_[index].length);
}

// What the engine says later about the first one.
void outbox::delivered(int err, std::uint64_t now)
{
	op &o = operations_[std::exchange(here_, none)];
	o.state = op_state::loop;
	if (err == -ENOBUFS && o.cancelled)
		end_loop(-ECANCELED);
	else if (err != -ENOBUFS || now >= o.since + loop_patience_us)
		end_loop(err);
	else if (!again_)
		return; // until there is a buffer
	loop(now);
}

} // namespace coop::net::ud
