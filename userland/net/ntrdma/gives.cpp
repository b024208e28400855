// SPDX-License-Identifier: MIT
// gives.cpp - own requests, and what peers take from this side; see wire.hpp.
//
// post() stores a request only if the rings have room for all of it, so its bytes are copied when
// it returns. What finds no room waits: answers in link::owed, requests in peer::queue, bytes that
// a peer asked for in link::streams.
#include <algorithm>
#include <cerrno>
#include <endian.h>
#include <utility>

#include "machine.hpp"

namespace coop::net::nt
{

namespace
{

// One request into a link's rings.
constexpr std::uint32_t pieces_most = rdma::max_segments;
constexpr std::size_t owed_most = 64u << 20; // bytes of answers to all peers
constexpr unsigned refrained = 16;           // messages that are offered after one in vain

std::span<const std::byte> bytes_of(const head &h)
{
	return std::as_bytes(std::span(&h, 1));
}

// The request of an active operation, and its kind.
struct request {
	request(kind plain, kind at, const spi::transfer &x) :
		what(x.reusable ? at : plain),
		size(x.reusable ? sizeof(whole) : sizeof(whole.head))
	{
		head &h = whole.head;
		h.to = x.remote;
		h.key = x.remote_key;
		h.length = x.length;
		whole.offset = x.remote_offset;
	}
	std::span<const std::byte> bytes() const
	{
		return std::as_bytes(std::span(&whole, 1)).first(size);
	}

	kind what;
	std::size_t size;
	ranged_head whole{};
};

} // namespace

bool machine::post(link &l, kind k, spi::token t, std::span<const std::byte> front,
		   const spi::memory *memory, std::size_t offset, std::size_t length)
{
	if (l.stage != stage::up || l.ends ||
	    !l.pair->takes(static_cast<std::uint32_t>(front.size() + length)))
		return false;
	if (l.aside)
		bring_back(l);
	rdma::send_request r{};
	r.id = t;
	r.op = rdma::operation::send_imm;
	r.flags = t ? rdma::signalled : 0;
	r.imm = htole32(static_cast<std::uint32_t>(k));
	const auto add = [&](const std::byte *at, std::size_t n) {
		r.at[r.segments++] = {reinterpret_cast<std::uintptr_t>(at),
				      static_cast<std::uint32_t>(n), all_memory_};
	};
	if (!front.empty())
		add(front.data(), front.size());
	if (length) {
		const std::uint32_t before = r.segments;
		spi::cursor c(*memory, offset);
		std::size_t left = length;
		while (left && r.segments < pieces_most) {
			const auto piece = c.next(left);
			add(piece.data(), piece.size());
			left -= piece.size();
		}
		if (left) {
			scratch_.resize(length);
			spi::gather(*memory, offset, scratch_.data(), length);
			r.segments = before;
			add(scratch_.data(), length);
		}
	}
	if (l.pair->post_send(r)) {
		end_link(l, -EIO); // impossible: there is room
		return false;
	}
	l.pair->store_posts();
	if (!l.unrung) {
		l.unrung = true;
		unrung_.push_back(&l);
	}
	return true;
}

bool machine::post_operation(link &l, spi::token t, const spi::transfer &x)
{
	if (x.queue == queue_type::active_bulk_recv)
		return post_get(l, t, x);
	const std::size_t most = std::min<std::size_t>(options_.eager, l.receives);
	if (x.queue == queue_type::msg_send && x.length <= most)
		return post(l, kind::message, t, {}, &x.memory, 0, x.length);
	if (x.queue == queue_type::msg_send && goes_unasked(l, x))
		return place_message(l, t, x);
	return post_offer(l, t, x);
}

// Notes the segments of `length` bytes. @return how many.
std::size_t machine::segments_of(const spi::memory &m, std::size_t offset, std::size_t length)
{
	segments_.clear();
	spi::cursor c(m, offset);
	for (auto piece = c.next(length); !piece.empty(); piece = c.next(length)) {
		segments_.push_back({reinterpret_cast<std::uintptr_t>(piece.data()), piece.size()});
		length -= piece.size();
	}
	return segments_.size();
}

// A large message, or an active_bulk_send.
bool machine::post_offer(link &l, spi::token t, const spi::transfer &x)
{
	const bool put = x.queue == queue_type::active_bulk_send;
	if (!l.pair->takes(ranged_most))
		return false;
	operation o{put ? role::put : role::offer, &l, {}, 0, x.length};
	request q(put ? kind::put : kind::offer, kind::put_at, x);
	head &h = q.whole.head;
	h.from = t;
	std::vector<std::byte> text;
	bool posted;
	if (put && x.length <= std::min<std::size_t>(options_.eager, l.receives) - q.size) {
		posted = post(l, q.what, 0, q.bytes(), &x.memory, 0, x.length);
	} else {
		if (l.reads) {
			o.loan = board_->lend();
			h.word = o.loan.word;
			h.value = o.loan.value;
			h.segments = static_cast<std::uint32_t>(segments_of(x.memory, 0, x.length));
		} else {
			segments_.clear();
		}
		const auto list = std::as_bytes(std::span(segments_));
		text.assign(q.bytes().begin(), q.bytes().end());
		text.insert(text.end(), list.begin(), list.end());
		posted = (!l.reads || o.loan.value) && post(l, q.what, 0, text);
	}
	if (!posted) {
		board_->end(o.loan);
		return false;
	}
	operations_.emplace(t, o);
	l.tokens.insert(t);
	return true;
}

bool machine::post_get(link &l, spi::token t, const spi::transfer &x)
{
	if (!l.pair->takes(sizeof(ranged_head)))
		return false;
	const intake &i = begin(l, t, x.remote, x.length);
	request q(kind::get, kind::get_at, x);
	q.whole.head.from = i.id;
	operations_.emplace(t, operation{role::get, &l, {}, i.id, x.length});
	l.tokens.insert(t);
	if (post(l, q.what, 0, q.bytes()))
		return true;
	forget(t);
	return false;
}

void machine::owe(link &l, kind k, const head &h, std::span<const rdma::wire_segment> list)
{
	if (l.ends)
		return;
	if (l.owed.empty() && list.empty() && post(l, k, 0, bytes_of(h)))
		return;
	const auto segments = std::as_bytes(list);
	std::vector<std::byte> text(sizeof(k) + sizeof(h) + segments.size());
	std::memcpy(text.data(), &k, sizeof(k));
	std::memcpy(text.data() + sizeof(k), &h, sizeof(h));
	if (!segments.empty())
		std::memcpy(text.data() + sizeof(k) + sizeof(h), segments.data(), segments.size());
	l.owed_bytes += text.size();
	owed_bytes_ += text.size();
	l.owed.push_back(std::move(text));
	if (owed_bytes_ > owed_most)
		disown();
	if (!l.ends)
		(void)drain(l);
}

// Peers ask and ask, and take no answer: disconnects the one to which most is owed.
void machine::disown()
{
	link *most = nullptr;
	for (const auto &l : links_)
		if (l && !l->ends && (!most || l->owed_bytes > most->owed_bytes))
			most = l.get();
	end_link(*most, -EPROTO);
}

void machine::block(link &l)
{
	if (l.blocked)
		return;
	l.blocked = true;
	blocked_.push_back(&l);
}

// Posts what waits, as far as there is room. @return whether anything was posted.
bool machine::drain(link &l)
{
	bool moved = false;
	while (!l.owed.empty()) {
		const auto &text = l.owed.front();
		kind k;
		std::memcpy(&k, text.data(), sizeof(k));
		if (!post(l, k, 0, std::span(text).subspan(sizeof(k)))) {
			block(l);
			return moved;
		}
		if (!l.ends) { // or it owes no longer
			l.owed_bytes -= text.size();
			owed_bytes_ -= text.size();
		}
		l.owed.pop_front();
		moved = true;
	}
	// A chunk of each stream, then requests, and so on: none waits for all of another.
	unsigned turns = 8, large = 8;
	for (bool more = true; more && !l.ends;) {
		more = false;
		for (std::size_t i = 0; i < l.streams.size(); i++) {
			stream &s = l.streams[i];
			const spi::transfer *x = sink_.find(s.token);
			head h;
			h.to = s.intake;
			// A reader knows the use of a reusable operation by this. To a message's
			// taker it would mean that the message is not wanted.
			if (const auto o = operations_.find(s.token);
			    o != operations_.end() && o->second.role == role::lent)
				h.from = s.token;
			h.value = s.moved;
			const std::size_t n =
				std::min(l.tcp ? placed_at_once : l.receives - sizeof(h),
					 s.length - s.moved);
			if (!x || !n ||
			    !(l.tcp ? place_next(l, s, *x, n)
				    : post(l, kind::data, 0, bytes_of(h), &x->memory,
					   x->offset + s.moved, n))) {
				if (x && n)
					break; // nor is there room for the others
				l.streams.erase(l.streams.begin() +
						static_cast<std::ptrdiff_t>(i--));
				continue;
			}
			s.moved += n;
			more = moved = true;
			// The machine's lock is held: other links have their turn.
			if (l.tcp && !--turns)
				break;
		}
		auto &queue = peers_[l.peer].queue;
		const bool sends = peers_[l.peer].sends == &l;
		for (unsigned i = 0; i < 16 && sends && large && !queue.empty(); i++) {
			const spi::token t = queue.front();
			if (const spi::transfer *x = sink_.find(t)) {
				const bool chunk = l.tcp && x->length > options_.eager;
				if (!post_operation(l, t, *x))
					break;
				moved = true;
				large -= chunk;
			}
			queue.pop_front();
			more = true;
		}
		if (!turns || !large)
			break;
	}
	if (!l.ends &&
	    (!l.streams.empty() || (peers_[l.peer].sends == &l && !peers_[l.peer].queue.empty())))
		block(l);
	return moved;
}

void machine::ring(link &l)
{
	l.unrung = false;
	if (l.stage == stage::up && l.pair->linked())
		l.pair->flush_posts();
	if (l.tcp)
		note_room(l);
}

void machine::ring_all()
{
	if (unrung_.empty())
		return;
	for (link *l : unrung_)
		ring(*l);
	unrung_.clear();
}

// ---- ends ------------------------------------------------------------------------

// The operation, if this peer may say something of it.
machine::operation *machine::find(spi::token t, const link &l)
{
	const auto o = operations_.find(t);
	return o == operations_.end() || o->second.of != &l ? nullptr : &o->second;
}

void machine::forget(spi::token t)
{
	const auto o = operations_.find(t);
	if (o == operations_.end())
		return;
	board_->end(o->second.loan);
	link &l = *o->second.of;
	if (const auto u = l.uses.find(o->second.reader);
	    o->second.role == role::lent && u != l.uses.end() && u->second == t)
		l.uses.erase(u);
	if (l.tcp)
		l.tcp->withdraw(t);
	l.tokens.erase(t);
	if (o->second.intake) {
		l.takes.erase(o->second.intake);
		intakes_.erase(o->second.intake);
	}
	operations_.erase(o);
}

void machine::end_operation(spi::token t, int status, std::size_t length)
{
	forget(t);
	sink_.completed(t, status, length);
}

void machine::give_up(spi::token t)
{
	forget(t);
	sink_.given_up(t);
}

// ---- the peer takes --------------------------------------------------------------

// Lends the operation `t`, which admit() has found.
void machine::serve_get(link &l, const head &h, spi::token t)
{
	const spi::transfer *x = sink_.find(t);
	operation &o = operations_.emplace(t, operation{role::lent, &l, {}, 0, h.length, h.from})
			       .first->second;
	l.tokens.insert(t);
	l.uses.emplace(h.from, t);
	const bool small = h.length <= l.receives - sizeof(head);
	if (l.reads && !small)
		o.loan = board_->lend();
	if (!o.loan.value) {
		l.streams.push_back({t, h.from, 0, h.length});
		(void)drain(l);
		return;
	}
	head answer;
	answer.to = h.from;
	answer.from = t;
	answer.length = h.length;
	answer.word = o.loan.word;
	answer.value = o.loan.value;
	answer.segments = static_cast<std::uint32_t>(segments_of(x->memory, x->offset, h.length));
	owe(l, kind::lend, answer, segments_);
}

void machine::serve_want(link &l, const head &h)
{
	const operation *o = find(h.to, l);
	if (!o || (o->role != role::offer && o->role != role::put)) {
		head no; // cancelled meanwhile
		no.to = h.from;
		no.status = -ECANCELED;
		return owe(l, kind::refuse, no);
	}
	if (o->unasked)
		l.refrains = refrained; // the peer had no place
	std::erase_if(l.streams, [&](const stream &s) { return s.token == h.to; });
	l.streams.push_back({h.to, h.from, 0, o->length});
	(void)drain(l);
}

void machine::serve_done(link &l, const head &h)
{
	spi::token own = h.to;
	const operation *o = find(own, l);
	if (!o) // its bytes came as placements, which do not name the use, or none came yet
		if (const auto u = l.uses.find(h.from); u != l.uses.end())
			o = find(own = u->second, l);
	if (!o)
		return; // cancelled meanwhile
	switch (o->role) {
	case role::offer:
	case role::put:
		if (o->unasked && h.status == -ENOBUFS)
			l.refrains = refrained;
		std::erase_if(l.streams, [&](const stream &s) { return s.token == own; });
		return end_operation(own, h.status, h.status ? 0 : o->length);
	case role::lent:
		if (h.from != o->reader)
			return; // it was refused, and did not know yet when it gave up
		std::erase_if(l.streams, [&](const stream &s) { return s.token == own; });
		return h.status ? give_up(own) : end_operation(own, 0, o->length);
	case role::get:
	case role::filled:
		return;
	}
}

} // namespace coop::net::nt
