// SPDX-License-Identifier: MIT
// receive_queue.cpp - see receive_queue.hpp.
#include "receive_queue.hpp"

#include <cerrno>

namespace coop::net::core
{

receive_queue::receive_queue(station &s, operations &o, peers &p, delivery &d, machine &home) :
	station_(s),
	operations_(o),
	peers_(p),
	delivery_(d),
	home_(home),
	open_(o.open_list())
{
}

bool receive_queue::has_room(const slot &s)
{
	return s.places_left != 0 &&
	       s.transfer.memory.size - s.filled >= s.transfer.min_receive_size;
}

// A buffer that its pool got back last is the likeliest to be in the caches, so it goes before
// buffers of the pool that nothing has come for yet. Not while the program waits with buffers of
// its own: those of the pool would overtake them for ever.
void receive_queue::open(slot &s)
{
	s.open = true;
	const slot *first = open_.first();
	if (s.pooled && !own_open_ && first && !first->messages && !first->landings)
		open_.push_front(s);
	else
		open_.push_back(s);
	own_open_ += !s.pooled;
}

void receive_queue::shut(slot &s)
{
	s.open = false;
	own_open_ -= !s.pooled;
	open_.erase(s);
	station_.fill |= station_.pooled;
}

int receive_queue::place(std::size_t length, spi::landing &out)
{
	slot *s = nullptr;
	const int r = find_room(length, s);
	if (r == 0) {
		out = {operations_.token_of(*s), s->transfer.memory, s->filled, length};
		s->landings++;
		reserve(*s, length);
	}
	return r;
}

int receive_queue::receive(const void *bytes, std::size_t length, spi::peer_number from)
{
	slot *s = nullptr;
	if (int r = find_room(length, s))
		return r;
	const std::size_t offset = s->filled;
	spi::scatter(s->transfer.memory, offset, bytes, length);
	reserve(*s, length);
	message(*s, offset, length, from, !s->open && s->landings == 0);
	return 0;
}

// The next `length` bytes of the buffer.
void receive_queue::reserve(slot &s, std::size_t length)
{
	s.filled += length;
	s.places_left--;
	if (!has_room(s))
		shut(s);
}

// Finds the buffer for the next message, of this length.
int receive_queue::find_room(std::size_t length, slot *&out)
{
	for (;;) {
		slot *s = open_.first();
		if (!s && station_.fill) {
			// A buffer has just been filled, and the pool may supply the next.
			fill();
			s = open_.first();
		}
		if (!s) {
			station_.starved = true;
			return -ENOBUFS;
		}
		if (length <= s->transfer.memory.size - s->filled) {
			out = s;
			return 0;
		}
		if (s->filled == 0 && s->messages == 0 && s->landings == 0)
			return -EMSGSIZE;
		shut(*s);
		if (s->landings == 0)
			operations_.finish(*s, 0, 0);
	}
}

// The operation that this piece was reserved of; null: it has ended.
slot *receive_queue::landing_of(const spi::landing &l)
{
	slot *s = operations_.find(l.token);
	if (!s || s->landings == 0)
		return nullptr;
	s->landings--;
	return s;
}

void receive_queue::received(const spi::landing &l, spi::peer_number from)
{
	if (slot *s = landing_of(l))
		message(*s, l.offset, l.length, from, !s->open && s->landings == 0);
}

void receive_queue::abandon(const spi::landing &l)
{
	slot *s = landing_of(l);
	if (!s)
		return;
	if (l.offset + l.length == s->filled) {
		s->filled = l.offset;
		s->places_left++;
		if (!s->open && !s->reason && has_room(*s)) {
			s->open = true;
			open_.push_front(*s);
			own_open_ += !s->pooled;
		}
	}
	if (!s->open && s->landings == 0)
		operations_.finish(*s, s->reason, 0);
}

bool receive_queue::received_in(spi::token t, std::size_t offset, std::size_t length,
				spi::peer_number from)
{
	slot *s = operations_.find(t);
	if (!s || s->places_left == 0 || offset > s->transfer.memory.size ||
	    length > s->transfer.memory.size - offset)
		return false;
	s->places_left--;
	s->filled = offset + length;
	const bool more = has_room(*s);
	message(*s, offset, length, from, !more);
	return more;
}

void receive_queue::message(slot &s, std::size_t offset, std::size_t length, spi::peer_number from,
			    bool last)
{
	operations_.count_message(s, length);
	s.messages++;
	peer &sender = peers_[from];
	peers_.use(sender);
	delivery_.push(
		{{nullptr, queue_type::msg_recv, !last, 0, offset, length, &sender, s.context},
		 s.owner,
		 s.handler,
		 &sender,
		 {}});
	if (last)
		operations_.forget(s);
}

void receive_queue::cancel(slot &s, int reason)
{
	if (!operations_.note(s, reason))
		return;
	if (s.open)
		shut(s);
	if (s.landings == 0)
		operations_.finish(s, s.reason, 0);
	else if (!station_.over)
		station_.transport->cancel(operations_.token_of(s));
}

void receive_queue::drop(slot &s)
{
	if (s.open)
		shut(s);
	s.landings = 0;
}

// ---- the pool --------------------------------------------------------------------

void receive_queue::set_deficit(std::uint32_t n)
{
	const std::uint32_t before = deficit_.exchange(n);
	if (!before && n)
		short_at_ = pool->add_short(home_);
	else if (before && !n)
		pool->remove_short(short_at_);
}

void receive_queue::fill()
{
	station_.fill = false;
	if (!pool || !station_.operable())
		return;
	// A buffer whose places are all given out takes no other message, and its senders may be
	// slow, or never finish.
	const slot_list &q = station_.places ? open_ : operations_.queue(queue_type::msg_recv);
	station_.blocked = false;
	while (q.count() < length) {
		// The queue limit binds, not the pool. Taking a buffer in vain would make others
		// believe that the pool had been empty.
		if (operations_.full())
			break;
		const auto t = pool->take(colour);
		station_.pool_below |= t.below;
		if (!t.buffer) {
			// A thread that returns a buffer sees the deficit, or we see the buffer
			// here.
			set_deficit(length - q.count());
			if (pool->free.load() == 0)
				return;
			continue;
		}
		if (add_pooled(*t.buffer)) {
			bool first;
			(void)pool->give(t.buffer, first);
			station_.pool_not_empty |= first;
			station_.fill = false; // do not retry at once
			break;
		}
	}
	station_.blocked = q.count() < length;
	set_deficit(0);
}

int receive_queue::add_pooled(buffer_state &b)
{
	operation op;
	op.queue = queue_type::msg_recv;
	op.min_receive_size = min_size;
	op.max_receive_msgs = max_msgs;
	op.handler = handler;
	if (!b.acquire())
		return -EBUSY;
	slot *placed = nullptr;
	const int r = operations_.add(b, op, true, placed);
	if (r)
		b.let_go();
	else if (placed)
		open(*placed);
	return r;
}

} // namespace coop::net::core
