// SPDX-License-Identifier: MIT
// machine_queue.cpp - operations from add() to their final event.
//
// An operation is in a slot from add() until it ends. Every way to end it (the transport, a
// deadline that the transport has obeyed, stop) goes through forget(), once: the slot's generation
// changes there, so a second report finds no slot of its token.
#include <cerrno>

#include "buffer_state.hpp"
#include "descriptor.hpp"
#include "machine.hpp"

namespace coop::net::core
{

int machine::add(net::buffer &b, const operation &op)
{
	buffer_state *s = b.state_.get();
	if (!s || !op.handler || s->domain != domain_)
		return -EINVAL;
	if (!s->acquire())
		return -EBUSY;
	int r;
	{
		hold h(*this);
		r = add_locked(*s, op, false);
		if (r)
			s->let_go();
	}
	return r;
}

int machine::add_locked(buffer_state &b, const operation &op, bool pooled)
{
	if (!operable() || transport_over_)
		return -EBADFD;
	if (op.deadline != never && now() >= op.deadline)
		return -ETIME;
	slot *s = slots_.allocate(domain_->limits().max_queued);
	if (!s)
		return -ENOBUFS;
	s->transfer.queue = op.queue;
	s->transfer.memory = b.memory;
	s->transfer.remote_part = {};
	s->to = nullptr;
	if (int r = prepare(*s, b, op)) {
		slots_.free(*s);
		return r;
	}
	s->owner = &b;
	s->handler = op.handler;
	s->context = op.context;
	s->deadline = op.deadline;
	s->added = stamp();
	time_messages();
	s->reason = 0;
	s->pooled = pooled;
	if (s->to)
		use(*s->to);
	queue(op.queue).push_back(*s);
	if (op.deadline != never)
		deadlines_.insert(*s);
	const spi::token t = slots_.token_of(*s);
	b.descriptor.clear();
	b.at.store(this, std::memory_order_relaxed);
	b.token.store(t, std::memory_order_relaxed);
	counters(op.queue).adds++;

	if (op.queue == queue_type::msg_recv) {
		s->landings = s->messages = 0;
		s->places_left = op.max_receive_msgs;
		s->filled = 0;
		if (places_) {
			open(*s);
			return 0;
		}
	}
	s->transfer.more = op.queue == queue_type::msg_send && more_follows();
	held_back_ |= s->transfer.more;
	if (int r = transport_->submit(t, s->transfer)) {
		counters(op.queue).adds--;
		forget(*s);
		return r;
	}
	if (op.queue == queue_type::passive_bulk_recv || op.queue == queue_type::passive_bulk_send)
		write_descriptor(*s);
	return 0;
}

// Checks the requirements of the operation's queue; fills in the rest of the transfer.
int machine::prepare(slot &s, const buffer_state &b, const operation &op)
{
	spi::transfer &x = s.transfer;
	x.length = op.length;
	x.peer = spi::no_peer;
	x.key = 0;
	if (op.length > b.memory.size)
		return -EFBIG;
	if (op.to && op.queue != queue_type::msg_recv) {
		auto *p = static_cast<core::peer *>(op.to);
		if (p->home.get() != this || p->orphan)
			return -EINVAL;
		s.to = p;
		x.peer = p->number;
	}
	switch (op.queue) {
	case queue_type::msg_recv:
		if (!op.min_receive_size || !op.max_receive_msgs ||
		    op.min_receive_size > b.memory.size)
			return -EINVAL;
		x.length = b.memory.size;
		x.min_receive_size = op.min_receive_size;
		x.max_receive_msgs = op.max_receive_msgs;
		return 0;
	case queue_type::msg_send:
		if (!op.to)
			return -EINVAL;
		return op.length > domain_->limits().max_message ? -EMSGSIZE : 0;
	case queue_type::passive_bulk_recv:
	case queue_type::passive_bulk_send:
		if (!op.length)
			x.length = b.memory.size;
		x.key = new_key();
		return 0;
	case queue_type::active_bulk_recv:
	case queue_type::active_bulk_send:
		return prepare_active(s, b, op);
	}
	return -EINVAL; // not an enumerator
}

int machine::prepare_active(slot &s, const buffer_state &b, const operation &op)
{
	spi::transfer &x = s.transfer;
	const bool write = op.queue == queue_type::active_bulk_send;
	descriptor d;
	if (decode(op.descriptor, d) || d.transport != domain_->id() || d.size == 0)
		return -EINVAL;
	if (d.writable != write)
		return -EPERM;
	const std::size_t mine = op.length ? op.length : b.memory.size;
	if (write ? mine > d.size : mine < d.size)
		return -EFBIG;
	core::peer *p = nullptr;
	if (int r = open_peer(d.machine, p))
		return r;
	s.to = p;
	x.peer = p->number;
	x.key = new_key();
	x.length = write ? mine : static_cast<std::size_t>(d.size);
	x.remote = d.token;
	x.remote_key = d.key;
	x.remote_part = d.part;
	return 0;
}

// If the descriptor cannot be made the operation ends: the caller finds the descriptor empty, and
// the final event gives the error.
void machine::write_descriptor(slot &s)
{
	if (!s.live)
		return;
	const spi::token t = slots_.token_of(s);
	std::byte part[256], text[descriptor::fixed + sizeof(part)];
	const std::size_t most = std::min(domain_->traits().descriptor_part, sizeof(part));
	const int n = transport_->describe(t, {part, most});
	if (n < 0) {
		cancel(s, n);
		return;
	}
	descriptor d;
	d.transport = domain_->id();
	d.writable = s.transfer.queue == queue_type::passive_bulk_recv;
	d.size = s.transfer.length;
	d.token = t;
	d.key = s.transfer.key;
	d.machine = address_;
	d.part = {part, static_cast<std::size_t>(n)};
	const std::size_t size = encode(d, text);
	s.owner->descriptor.assign(text, text + size);
}

bool machine::del(net::buffer &b)
{
	buffer_state *owner = b.state_.get();
	if (!owner)
		return false;
	hold h(*this);
	if (owner->at.load(std::memory_order_relaxed) != this)
		return false;
	slot *s = slots_.find(owner->token.load(std::memory_order_relaxed));
	if (!s || s->owner != owner)
		return false;
	counters(s->transfer.queue).dels++;
	cancel(*s, -ECANCELED);
	return true;
}

// Ends the operation early with `reason`, unless it ends otherwise first.
void machine::cancel(slot &s, int reason)
{
	if (s.reason)
		return;
	s.reason = reason;
	deadlines_.erase(s);
	if (s.transfer.queue == queue_type::msg_recv && places_)
		cancel_receive(s);
	else if (!transport_over_)
		transport_->cancel(slots_.token_of(s));
}

void machine::cancel_all(int reason)
{
	// By token: ending one operation may end others.
	std::vector<spi::token> all;
	for (slot_list &q : queues_)
		for (slot *s = q.first(); s; s = q.after(*s))
			all.push_back(slots_.token_of(*s));
	for (spi::token t : all)
		if (slot *s = slots_.find(t))
			cancel(*s, reason);
}

void machine::expire_operations()
{
	for (slot *s; (s = deadlines_.first()) && s->deadline <= now();)
		cancel(*s, -ETIMEDOUT);
}

void machine::completed(spi::token t, int status, std::size_t length)
{
	slot *s = slots_.find(t);
	if (!s) {
		late_++;
		return;
	}
	if (status == -ECANCELED && s->reason)
		status = s->reason;
	finish(*s, status, length);
}

const spi::transfer *machine::find(spi::token t)
{
	const slot *s = slots_.find(t);
	return s ? &s->transfer : nullptr;
}

std::uint64_t machine::new_key()
{
	std::uint64_t key;
	do
		key = random_.next();
	while (key == 0);
	return key;
}

// Ends an operation for any reason except a message.
void machine::finish(slot &s, int status, std::size_t length)
{
	const queue_type q = s.transfer.queue;
	buffer_state *b = s.owner;
	if (s.pooled && s.messages == 0 && !operable()) {
		forget(s);
		b->let_go();
		bool first;
		(void)pool_->give(b, first); // cannot fail: it is ours and not queued
		pool_first_ |= first;
		return;
	}
	queue_stats &c = counters(q);
	if (status || q != queue_type::msg_recv) {
		c.total_time += since(s.added);
		if (status) {
			c.failed++;
		} else {
			c.ok++;
			c.total_bytes += length;
			c.largest = std::max<std::uint64_t>(c.largest, length);
		}
	}
	events_.push_back({{nullptr, q, false, status, 0, status ? 0 : length, nullptr, s.context},
			   b,
			   s.handler,
			   nullptr,
			   {}});
	forget(s);
}

// Frees the slot; its token becomes invalid.
void machine::forget(slot &s)
{
	const queue_type q = s.transfer.queue;
	deadlines_.erase(s);
	queue(q).erase(s);
	if (s.to)
		unuse(*s.to);
	slots_.free(s);
	if ((q == queue_type::msg_recv && pool_) || fill_blocked_)
		fill_wanted_ = true;
}

std::size_t machine::queued(queue_type q)
{
	hold h(*this);
	return queue(q).count();
}

queue_stats machine::stats(queue_type q, bool reset)
{
	queue_stats c;
	{
		hold h(*this);
		time_messages();
		c = counters(q);
		if (reset)
			counters(q) = {};
	}
	c.total_time = ticks_to_ns(c.total_time);
	return c;
}

} // namespace coop::net::core
