// SPDX-License-Identifier: MIT
// machine_receive.cpp - placing messages in receive buffers.
//
// If the transport lets the core choose, messages are packed one after another into the oldest open
// buffer. A place is given out when a message begins to arrive; places may complete in any order. A
// buffer is shut when it has room for no further message, and ends with the last of its places. A
// buffer that has taken messages and has no room for the next one is retired, so that it does not
// block those after it.
#include <cerrno>

#include "buffer_state.hpp"
#include "machine.hpp"
#include "processors.hpp"

namespace coop::net::core
{

bool machine::has_room(const slot &s) const
{
	return s.places_left != 0 &&
	       s.transfer.memory.size - s.filled >= s.transfer.min_receive_size;
}

void machine::open(slot &s)
{
	s.open = true;
	open_.push_back(s);
}

void machine::shut(slot &s)
{
	s.open = false;
	open_.erase(s);
	fill_wanted_ |= pool_ != nullptr;
}

int machine::place(std::size_t length, spi::landing &out)
{
	slot *s = nullptr;
	const int r = room_for(length, s);
	if (r == 0) {
		out = {slots_.token_of(*s), s->transfer.memory, s->filled, length};
		s->landings++;
		give_out(*s, length);
	}
	return r;
}

int machine::receive(const void *message, std::size_t length, spi::peer_number from)
{
	slot *s = nullptr;
	if (int r = room_for(length, s))
		return r;
	const std::size_t offset = s->filled;
	spi::scatter(s->transfer.memory, offset, message, length);
	give_out(*s, length);
	this->message(*s, offset, length, from, !s->open && s->landings == 0);
	return 0;
}

// Gives out the next `length` bytes of the buffer.
void machine::give_out(slot &s, std::size_t length)
{
	s.filled += length;
	s.places_left--;
	if (!has_room(s))
		shut(s);
}

// Finds the buffer for the next message, of this length.
int machine::room_for(std::size_t length, slot *&out)
{
	for (;;) {
		slot *s = open_.first();
		if (!s && pool_ && fill_wanted_ && operable()) {
			// A buffer has just been filled, and the pool may supply the next.
			fill_wanted_ = false;
			fill_from_pool();
			s = open_.first();
		}
		if (!s) {
			starved_ = true;
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
			finish(*s, 0, 0);
	}
}

void machine::received(const spi::landing &l, spi::peer_number from)
{
	slot *s = slots_.find(l.token);
	if (!s || s->landings == 0) {
		late_++;
		return;
	}
	s->landings--;
	message(*s, l.offset, l.length, from, !s->open && s->landings == 0);
}

void machine::abandon(const spi::landing &l)
{
	slot *s = slots_.find(l.token);
	if (!s || s->landings == 0) {
		late_++;
		return;
	}
	s->landings--;
	if (l.offset + l.length == s->filled) {
		s->filled = l.offset;
		s->places_left++;
		if (!s->open && !s->reason && has_room(*s)) {
			s->open = true;
			open_.push_front(*s);
		}
	}
	if (!s->open && s->landings == 0)
		finish(*s, s->reason, 0);
}

bool machine::received_in(spi::token t, std::size_t offset, std::size_t length,
			  spi::peer_number from)
{
	slot *s = slots_.find(t);
	if (!s || s->places_left == 0 || offset > s->transfer.memory.size ||
	    length > s->transfer.memory.size - offset) {
		late_++;
		return false;
	}
	s->places_left--;
	s->filled = offset + length;
	const bool more = has_room(*s);
	message(*s, offset, length, from, !more);
	return more;
}

void machine::message(slot &s, std::size_t offset, std::size_t length, spi::peer_number from,
		      bool last)
{
	queue_stats &c = counters(queue_type::msg_recv);
	c.ok++;
	c.total_bytes += length;
	c.largest = std::max<std::uint64_t>(c.largest, length);
	if (sync_) {
		untimed_++;
		untimed_begun_ += s.added;
	} else {
		c.total_time += since(s.added);
	}
	s.messages++;

	core::peer &sender = peers_[from];
	use(sender);
	events_.push_back(
		{{nullptr, queue_type::msg_recv, !last, 0, offset, length, &sender, s.context},
		 s.owner,
		 s.handler,
		 &sender,
		 {}});
	if (last)
		forget(s);
}

void machine::cancel_receive(slot &s)
{
	if (s.open)
		shut(s);
	if (s.landings == 0)
		finish(s, s.reason, 0);
	else if (!transport_over_)
		transport_->cancel(slots_.token_of(s));
}

void machine::set_deficit(std::uint32_t n)
{
	const std::uint32_t before = deficit_.exchange(n);
	if (!before && n)
		short_at_ = pool_->add_short(*this);
	else if (before && !n)
		pool_->remove_short(short_at_);
}

void machine::fill_from_pool()
{
	// A buffer whose places are all given out takes no other message, and its senders may be
	// slow, or never finish.
	const slot_list &q = places_ ? open_ : queue(queue_type::msg_recv);
	fill_blocked_ = false;
	while (q.count() < pool_length_) {
		// The queue limit binds, not the pool. Taking a buffer in vain would make others
		// believe that the pool had been empty.
		if (slots_.live() >= domain_->limits().max_queued)
			break;
		const auto t = pool_->take(colour_);
		pool_below_ |= t.below;
		if (!t.buffer) {
			// A thread that returns a buffer sees the deficit, or we see the buffer
			// here.
			set_deficit(pool_length_ - q.count());
			if (pool_->free.load() == 0)
				return;
			continue;
		}
		if (add_pooled(*t.buffer)) {
			bool first;
			(void)pool_->give(t.buffer, first);
			pool_first_ |= first;
			fill_wanted_ = false; // do not retry at once
			break;
		}
	}
	fill_blocked_ = q.count() < pool_length_;
	set_deficit(0);
}

int machine::add_pooled(buffer_state &b)
{
	operation op;
	op.queue = queue_type::msg_recv;
	op.min_receive_size = pool_min_size_;
	op.max_receive_msgs = pool_max_msgs_;
	op.handler = pool_handler_;
	if (!b.acquire())
		return -EBUSY;
	const int r = add_locked(b, op, true);
	if (r)
		b.let_go();
	return r;
}

// The pool's notifications that this machine causes are made as the hold ends, on the processors of
// the machine's callbacks. The set is constant after start(), and there is no deficit before.
void machine::provision()
{
	const stay_on there(cpus_);
	hold h(*this);
	if (operable() && pool_)
		fill_from_pool();
}

} // namespace coop::net::core
