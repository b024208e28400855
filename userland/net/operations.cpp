// SPDX-License-Identifier: MIT
// operations.cpp - see operations.hpp.
#include "operations.hpp"

#include <algorithm>
#include <cerrno>

#include "descriptor.hpp"
#include "pool_state.hpp"

namespace coop::net::core
{

namespace
{

std::uint64_t first_generation(random_source &random)
{
	return random.next() % slot_table::generations + 1;
}

} // namespace

operations::operations(station &s, peers &p, delivery &d, machine &home) :
	station_(s),
	peers_(p),
	delivery_(d),
	home_(home),
	slots_(first_generation(random_)),
	queues_{slot_list(slots_, &slot::in_queue), slot_list(slots_, &slot::in_queue),
		slot_list(slots_, &slot::in_queue), slot_list(slots_, &slot::in_queue),
		slot_list(slots_, &slot::in_queue), slot_list(slots_, &slot::in_queue)}
{
}

int operations::add(buffer_state &b, const operation &op, bool pooled, slot *&placed)
{
	if (!station_.operable() || station_.over)
		return -EBADFD;
	if (op.deadline != never && station_.now() >= op.deadline)
		return -ETIME;
	slot *s = slots_.allocate(station_.domain->limits().max_queued + uses_);
	if (!s)
		return -ENOBUFS;
	s->transfer.queue = op.queue;
	s->transfer.reusable = false;
	s->transfer.offset = s->transfer.remote_offset = s->transfer.remote_size = 0;
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
	s->added = station_.stamp();
	time_messages();
	s->reason = 0;
	s->ended = false;
	s->pooled = pooled;
	if (s->to)
		peers_.use(*s->to);
	queue(op.queue).push_back(*s);
	if (op.deadline != never)
		deadlines_.insert(*s);
	const spi::token t = slots_.token_of(*s);
	b.descriptor.clear();
	b.at.store(&home_, std::memory_order_relaxed);
	b.token.store(t, std::memory_order_relaxed);
	counters(op.queue).adds++;

	if (op.queue == queue_type::msg_recv) {
		s->landings = s->messages = 0;
		s->places_left = op.max_receive_msgs;
		s->filled = 0;
		if (station_.places) {
			placed = s;
			return 0;
		}
	}
	s->transfer.high = op.priority == priority::high;
	s->transfer.more = op.queue == queue_type::msg_send && delivery_.more_follows();
	held_back_ |= s->transfer.more;
	if (int r = station_.transport->submit(t, s->transfer)) {
		counters(op.queue).adds--;
		forget(*s);
		return r;
	}
	if (op.queue == queue_type::passive_bulk_recv || op.queue == queue_type::passive_bulk_send)
		write_descriptor(*s);
	return 0;
}

// Checks the requirements of the operation's queue; fills in the rest of the transfer.
int operations::prepare(slot &s, const buffer_state &b, const operation &op)
{
	spi::transfer &x = s.transfer;
	x.length = op.length;
	x.peer = spi::no_peer;
	x.key = 0;
	if (op.length > b.memory.size)
		return -EFBIG;
	if (op.to && op.queue != queue_type::msg_recv) {
		auto *p = static_cast<core::peer *>(op.to);
		if (p->home.get() != &home_ || p->orphan)
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
		return op.length > station_.domain->limits().max_message ? -EMSGSIZE : 0;
	case queue_type::passive_bulk_recv:
	case queue_type::passive_bulk_send:
		if (!op.length)
			x.length = b.memory.size;
		x.key = new_key();
		x.reusable = op.reusable;
		return op.reusable && !station_.domain->traits().visible.reusable_descriptors
			       ? -EOPNOTSUPP
			       : 0;
	case queue_type::active_bulk_recv:
	case queue_type::active_bulk_send:
		return prepare_active(s, b, op);
	}
	return -EINVAL; // not an enumerator
}

int operations::prepare_active(slot &s, const buffer_state &b, const operation &op)
{
	spi::transfer &x = s.transfer;
	const bool write = op.queue == queue_type::active_bulk_send;
	descriptor d;
	if (decode(op.descriptor, d) || d.transport != station_.domain->id() || d.size == 0)
		return -EINVAL;
	if (d.writable != write)
		return -EPERM;
	if (int r = prepare_range(x, b, op, d))
		return r;
	core::peer *p = nullptr;
	if (int r = peers_.open(d.machine, p))
		return r;
	s.to = p;
	x.peer = p->number;
	x.key = new_key();
	x.remote = d.token;
	x.remote_key = d.key;
	x.remote_part = d.part;
	return 0;
}

// Which bytes the operation moves.
int operations::prepare_range(spi::transfer &x, const buffer_state &b, const operation &op,
			      const descriptor &d)
{
	const bool write = x.queue == queue_type::active_bulk_send;
	const std::size_t mine = op.length ? op.length : b.memory.size;
	x.reusable = d.reusable;
	x.remote_offset = op.offset;
	x.remote_size = static_cast<std::size_t>(d.size);
	if (!d.reusable) {
		if (op.offset)
			return -EINVAL;
		x.length = write ? mine : x.remote_size;
		return (write ? mine > d.size : mine < d.size) ? -EFBIG : 0;
	}
	if (!station_.domain->traits().visible.reusable_descriptors)
		return -EOPNOTSUPP;
	if (op.offset > d.size)
		return -EFBIG;
	const std::size_t rest = x.remote_size - op.offset;
	x.length = write || op.length ? mine : rest;
	if (x.length == 0)
		return -EINVAL;
	return x.length > rest || x.length > b.memory.size ? -EFBIG : 0;
}

// If the descriptor cannot be made the operation ends: the caller finds the descriptor empty, and
// the final event gives the error.
void operations::write_descriptor(slot &s)
{
	if (!s.live)
		return;
	const spi::token t = slots_.token_of(s);
	std::byte part[256], text[descriptor::fixed + sizeof(part)];
	const std::size_t most = std::min(station_.domain->traits().descriptor_part, sizeof(part));
	const int n = station_.transport->describe(t, {part, most});
	if (n < 0) {
		cancel(s, n);
		return;
	}
	descriptor d;
	d.transport = station_.domain->id();
	d.writable = s.transfer.queue == queue_type::passive_bulk_recv;
	d.reusable = s.transfer.reusable;
	d.size = s.transfer.length;
	d.token = t;
	d.key = s.transfer.key;
	d.machine = own_;
	d.part = {part, static_cast<std::size_t>(n)};
	const std::size_t size = encode(d, text);
	s.owner->descriptor.assign(text, text + size);
}

slot *operations::of(const buffer_state &owner)
{
	if (owner.at.load(std::memory_order_relaxed) != &home_)
		return nullptr;
	slot *s = slots_.find(owner.token.load(std::memory_order_relaxed));
	return s && s->owner == &owner ? s : nullptr;
}

std::vector<spi::token> operations::all()
{
	std::vector<spi::token> all;
	for (slot_list &q : queues_)
		for (slot *s = q.first(); s; s = q.after(*s))
			all.push_back(slots_.token_of(*s));
	return all;
}

bool operations::note(slot &s, int reason)
{
	if (s.reason)
		return false;
	s.reason = reason;
	deadlines_.erase(s);
	return true;
}

void operations::cancel(slot &s, int reason)
{
	if (!note(s, reason) || station_.over)
		return;
	const spi::token t = slots_.token_of(s);
	std::vector<spi::token> uses; // none begins from here on
	for (std::uint32_t i = s.first_use; i != no_slot; i = slots_.at(i).in_queue.next)
		uses.push_back(slots_.token_of(slots_.at(i)));
	for (const spi::token u : uses)
		if (slots_.find(u) && !station_.over)
			station_.transport->cancel(u);
	if (!station_.over)
		station_.transport->cancel(t);
}

std::uint64_t operations::new_key()
{
	std::uint64_t key;
	do
		key = random_.next();
	while (key == 0);
	return key;
}

// Uses are counted apart from what the program adds, so neither takes the other's slots. They are
// half as many at most: transports have things to share out between the two. A peer may have as
// many as are still free, so one that begins uses and never finishes them leaves some for others.
spi::token operations::use(spi::token reusable, std::size_t offset, std::size_t length,
			   spi::peer_number by)
{
	slot *p = slots_.find(reusable);
	const std::uint32_t most = station_.domain->limits().max_queued;
	if (by >= uses_of_.size())
		uses_of_.resize(by + 1);
	if (!p || !p->transfer.reusable || p->reason || p->ended ||
	    uses_ + uses_of_[by] >= (most + 1) / 2)
		return 0;
	slot *s = slots_.allocate(2 * most);
	if (!s)
		return 0;
	const std::uint32_t next = p->first_use;
	s->transfer = p->transfer;
	s->transfer.key = 0;
	s->transfer.reusable = false;
	s->transfer.offset = offset;
	s->transfer.length = length;
	s->owner = nullptr;
	s->to = nullptr;
	s->reason = 0;
	s->user = by;
	s->parent = p->index;
	s->in_queue = {next, no_slot};
	if (next != no_slot)
		slots_.at(next).in_queue.previous = s->index;
	p->first_use = s->index;
	uses_++;
	uses_of_[by]++;
	return slots_.token_of(*s);
}

void operations::given_up(spi::token t)
{
	slot *s = slots_.find(t);
	if (s && s->parent != no_slot)
		end_use(*s);
}

void operations::end_use(slot &s)
{
	slot &p = slots_.at(std::exchange(s.parent, no_slot));
	const slot::links l = s.in_queue;
	(l.previous == no_slot ? p.first_use : slots_.at(l.previous).in_queue.next) = l.next;
	if (l.next != no_slot)
		slots_.at(l.next).in_queue.previous = l.previous;
	free_use(s);
	if (p.ended && p.first_use == no_slot)
		finish(p, p.reason, 0);
}

void operations::free_use(slot &s)
{
	uses_of_[s.user]--;
	uses_--;
	slots_.free(s);
}

void operations::end(slot &s, int status, std::size_t length)
{
	if (s.parent != no_slot)
		return end_use(s);
	if (s.first_use == no_slot)
		return finish(s, status, length);
	s.ended = true;
	s.reason = status ? status : -ECANCELED;
}

void operations::finish(slot &s, int status, std::size_t length)
{
	const queue_type q = s.transfer.queue;
	buffer_state *b = s.owner;
	if (s.pooled && s.messages == 0 && !station_.operable()) {
		forget(s);
		b->let_go();
		bool first;
		(void)b->pooled.pool->give(b, first); // cannot fail: it is ours and not queued
		station_.pool_not_empty |= first;
		return;
	}
	queue_stats &c = counters(q);
	if (status || q != queue_type::msg_recv)
		c.total_time += station_.since(s.added);
	if (status)
		c.failed++;
	else if (q != queue_type::msg_recv)
		count(c, length);
	delivery_.push({{nullptr, q, false, status, 0, status ? 0 : length, nullptr, s.context},
			b,
			s.handler,
			nullptr,
			{}});
	forget(s);
}

void operations::forget(slot &s)
{
	const queue_type q = s.transfer.queue;
	for (std::uint32_t i = std::exchange(s.first_use, no_slot); i != no_slot;) {
		slot &u = slots_.at(i);
		i = u.in_queue.next;
		u.parent = no_slot;
		free_use(u);
	}
	deadlines_.erase(s);
	queue(q).erase(s);
	if (s.to)
		peers_.unuse(*s.to);
	slots_.free(s);
	station_.fill |= (q == queue_type::msg_recv && station_.pooled) || station_.blocked;
}

void operations::count(queue_stats &c, std::size_t length)
{
	c.ok++;
	c.total_bytes += length;
	c.largest = std::max<std::uint64_t>(c.largest, length);
}

void operations::count_message(const slot &s, std::size_t length)
{
	queue_stats &c = counters(queue_type::msg_recv);
	count(c, length);
	if (delivery_.sync) {
		untimed_++;
		untimed_begun_ += s.added;
	} else {
		c.total_time += station_.since(s.added);
	}
}

queue_stats operations::stats(queue_type q, bool reset)
{
	time_messages();
	return reset ? std::exchange(counters(q), {}) : counters(q);
}

} // namespace coop::net::core
