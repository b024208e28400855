// SPDX-License-Identifier: MIT
// takes.cpp - what peers send, and bytes that this side takes from them; see wire.hpp.
//
// All numbers come from a peer that may lie. An intake is found by its number and must be of the
// link that names it; every length is checked against the own operation before a byte is written;
// nothing but this side writes to its memory.
#include <algorithm>
#include <cerrno>
#include <map>

#include "machine.hpp"
#include "userland/ntrdma/core/bytes.hpp"

namespace coop::net::nt
{

namespace
{

constexpr std::size_t piece = rdma::pull_bytes; // of one pull

} // namespace

void machine::take(link &l, kind k, std::span<const std::byte> bytes)
{
	if (k == kind::message)
		return arrive(l.peer, bytes);
	head h;
	if (!read_head(bytes, h))
		return end_link(l, -EPROTO);
	const auto rest = bytes.subspan(sizeof(h));
	switch (k) {
	case kind::data:
		return take_data(l, h, rest);
	case kind::done:
		return serve_done(l, h);
	case kind::refuse:
		return take_refuse(l, h);
	default:
		break;
	}
	if (l.ends)
		return; // nothing new begins
	switch (k) {
	case kind::offer:
		return take_offer(l, bytes);
	case kind::put:
	case kind::get:
		return take_request(l, k == kind::put, h, nullptr, rest);
	case kind::put_at:
	case kind::get_at: {
		little<std::uint64_t> wire;
		if (rest.size() < sizeof(wire))
			return end_link(l, -EPROTO);
		std::memcpy(&wire, rest.data(), sizeof(wire));
		const std::uint64_t offset = wire;
		return take_request(l, k == kind::put_at, h, &offset, rest.subspan(sizeof(offset)));
	}
	case kind::lend:
		return take_lend(l, h, rest);
	case kind::want:
		return serve_want(l, h);
	default:
		return end_link(l, -EPROTO);
	}
}

// ---- messages --------------------------------------------------------------------

void machine::arrive(spi::peer_number from, std::span<const std::byte> message)
{
	if (!held_.empty() || sink_.receive(message.data(), message.size(), from) == -ENOBUFS)
		keep(from, message, nullptr);
}

void machine::take_offer(link &l, std::span<const std::byte> text)
{
	if (!held_.empty() || place_offer(l, text) == -ENOBUFS)
		keep(l.peer, text, &l);
}

// Begins to take a large message, if there is a place for it. The giver is told if there never will
// be one. @return as sink::place().
int machine::begin_message(link &l, const head &h, intake *&out)
{
	spi::landing place;
	const int r = h.length > options_.max_message ? -EMSGSIZE : sink_.place(h.length, place);
	if (r) {
		head no;
		no.to = h.from;
		no.status = r;
		if (r != -ENOBUFS)
			owe(l, kind::done, no);
		return r;
	}
	out = &begin(l, 0, h.from, h.length);
	out->landing = place;
	return 0;
}

int machine::place_offer(link &l, std::span<const std::byte> text)
{
	head h;
	if (!read_head(text, h) || h.length == 0) {
		end_link(l, -EPROTO);
		return 0;
	}
	intake *i = nullptr;
	const int r = begin_message(l, h, i);
	if (i && !read_segments(*i, h, text.subspan(sizeof(h))))
		end_link(l, -EPROTO);
	return r;
}

void machine::keep(spi::peer_number from, std::span<const std::byte> bytes, const link *offered_by)
{
	make_room(bytes.size() + held_costs);
	hold(from);
	held_bytes_ += bytes.size() + held_costs;
	held_.push_back({from,
			 {bytes.begin(), bytes.end()},
			 offered_by != nullptr,
			 offered_by ? offered_by->serial : 0,
			 sink_.now() + options_.hold});
}

// Disconnects the peer with the largest share, and drops its messages, until there is room.
void machine::make_room(std::size_t bytes)
{
	while (!held_.empty() && held_bytes_ + bytes > options_.parked) {
		std::map<spi::peer_number, std::size_t> shares;
		for (const held &h : held_)
			shares[h.from] += h.bytes.size() + held_costs;
		const auto most =
			std::max_element(shares.begin(), shares.end(), [](auto &a, auto &b) {
				return a.second < b.second;
			})->first;
		for (link *l : peers_[most].links)
			end_link(*l, -ENOBUFS);
		for (std::deque<held> all = std::exchange(held_, {}); held & h : all) {
			if (h.from == most)
				let_go(h);
			else
				held_.push_back(std::move(h));
		}
	}
}

void machine::let_go(const held &h)
{
	held_bytes_ -= h.bytes.size() + held_costs;
	drop(h.from);
}

void machine::receivable()
{
	while (!held_.empty()) {
		const held &h = held_.front();
		int r = 0;
		if (!h.offer) {
			r = sink_.receive(h.bytes.data(), h.bytes.size(), h.from);
		} else {
			for (const auto &l : links_)
				if (l && l->serial == h.serial && !l->ends)
					r = place_offer(*l, h.bytes);
		}
		if (r == -ENOBUFS)
			break;
		const held gone = std::move(held_.front());
		held_.pop_front();
		let_go(gone);
	}
	ring_all();
	if (ends_)
		settle_ends();
}

// A place that was returned may suit a message that waits: the core reports new buffers only.
void machine::offer_room()
{
	if (std::exchange(room_, false))
		receivable();
}

// The place of a large message was withdrawn: the message waits for another, behind those that
// wait already, since held_ is in the order of `until`.
void machine::replace(std::uint64_t id)
{
	const auto found = intakes_.find(id);
	const intake i = std::move(found->second);
	intakes_.erase(found);
	i.of->takes.erase(id);
	sink_.abandon(i.landing);
	room_ = true;
	head h;
	h.from = i.giver;
	h.length = i.length;
	h.word = i.word;
	h.value = i.value;
	h.segments = static_cast<std::uint32_t>(i.from.size());
	const auto front = std::as_bytes(std::span(&h, 1)), list = std::as_bytes(std::span(i.from));
	std::vector<std::byte> text(front.begin(), front.end());
	text.insert(text.end(), list.begin(), list.end());
	keep(i.of->peer, text, i.of);
}

// ---- bulk ------------------------------------------------------------------------

// The passive operation that a request names, in `t`: one request at a time, whose end is its end,
// or, with `offset`, a use of a reusable one. @return 0 or -errno for the peer.
int machine::admit(link &l, const head &h, queue_type q, const std::uint64_t *offset, spi::token &t)
{
	const spi::transfer *x = sink_.find(h.to, h.key);
	if (!x || x->queue != q || x->reusable != (offset != nullptr) || operations_.count(h.to))
		return -ENOENT;
	if (x->peer != spi::no_peer && x->peer != l.peer)
		return -EPERM;
	if (int r = spi::check_range(*x, offset ? *offset : 0, h.length))
		return r;
	t = offset ? sink_.use(h.to, *offset, h.length, l.peer) : h.to;
	return t ? 0 : -ENOBUFS;
}

void machine::take_request(link &l, bool put, const head &h, const std::uint64_t *offset,
			   std::span<const std::byte> rest)
{
	head no;
	no.to = h.from;
	spi::token t = 0;
	no.status = admit(l, h, put ? queue_type::passive_bulk_recv : queue_type::passive_bulk_send,
			  offset, t);
	if (no.status)
		owe(l, put ? kind::done : kind::refuse, no);
	else if (put)
		take_put(l, h, t, rest);
	else
		serve_get(l, h, t);
}

void machine::take_put(link &l, const head &h, spi::token t, std::span<const std::byte> rest)
{
	if (!h.segments && !rest.empty()) {
		if (rest.size() != h.length) {
			sink_.given_up(t);
			return end_link(l, -EPROTO);
		}
		const spi::transfer *x = sink_.find(t);
		spi::scatter(x->memory, x->offset, rest.data(), rest.size());
		sink_.completed(t, 0, h.length);
		head answer;
		answer.to = h.from;
		return owe(l, kind::done, answer);
	}
	intake &i = begin(l, t, h.from, h.length);
	operations_.emplace(t, operation{role::filled, &l, {}, i.id, h.length});
	l.tokens.insert(t);
	if (!read_segments(i, h, rest))
		end_link(l, -EPROTO);
}

void machine::take_lend(link &l, const head &h, std::span<const std::byte> rest)
{
	const auto i = intakes_.find(h.to);
	if (i == intakes_.end())
		return unwanted(l, h);
	const operation *o = find(i->second.own, l);
	if (i->second.of != &l || !o || o->role != role::get || !i->second.from.empty() ||
	    i->second.moved || h.length != i->second.length || !h.segments ||
	    !read_segments(i->second, h, rest))
		end_link(l, -EPROTO);
	else
		i->second.giver = h.from; // of a reusable operation: the use
}

// Bytes of a get that was cancelled before they came: the peer has heard of it, but knows the use
// of a reusable operation by this number only.
void machine::unwanted(link &l, const head &h)
{
	head no;
	no.to = h.from;
	no.from = h.to;
	no.status = -ECANCELED;
	if (h.from)
		owe(l, kind::done, no);
}

void machine::take_data(link &l, const head &h, std::span<const std::byte> rest)
{
	const auto found = intakes_.find(h.to);
	if (found == intakes_.end()) // cancelled, or its place was withdrawn
		return h.value ? void() : unwanted(l, h);
	intake &i = found->second;
	spi::memory memory;
	std::size_t offset;
	if (i.of != &l || !i.from.empty() || h.value != i.moved || rest.empty() ||
	    rest.size() > i.length - i.moved || !target(i, memory, offset))
		return end_link(l, -EPROTO);
	if (h.from)
		i.giver = h.from; // as in take_lend()
	spi::scatter(memory, offset + i.moved, rest.data(), rest.size());
	i.moved += rest.size();
	if (i.moved == i.length)
		finish_intake(i);
}

void machine::take_refuse(link &l, const head &h)
{
	const auto i = intakes_.find(h.to);
	if (i == intakes_.end())
		return;
	if (i->second.of != &l)
		return end_link(l, -EPROTO);
	drop_intake(h.to, h.status ? h.status : -EPROTO, false);
}

// ---- intakes ---------------------------------------------------------------------

machine::intake &machine::begin(link &l, spi::token own, std::uint64_t giver, std::size_t length)
{
	const std::uint64_t id = next_number_++;
	l.takes.insert(id);
	return intakes_.emplace(id, intake{id, &l, own, {}, giver, length, 0, {}, 0, 0, 0, 0})
		.first->second;
}

// The peer lends segments, or this side asks for the bytes. False: the peer broke the protocol.
bool machine::read_segments(intake &i, const head &h, std::span<const std::byte> rest)
{
	if (!h.segments) {
		head want;
		want.to = i.giver;
		want.from = i.id;
		if (!rest.empty())
			return false;
		owe(*i.of, kind::want, want);
		return true;
	}
	if (!i.of->reads || h.segments > segments_most ||
	    rest.size() != h.segments * sizeof(rdma::wire_segment))
		return false;
	i.from.resize(h.segments);
	std::memcpy(i.from.data(), rest.data(), rest.size());
	std::size_t left = i.length;
	for (const rdma::wire_segment &s : i.from) {
		if (s.length == 0 || s.length > left)
			return false;
		left -= s.length;
	}
	if (left)
		return false;
	i.word = h.word;
	i.value = h.value;
	pulls_.push_back(i.id);
	return true;
}

// Where the bytes of an intake go: `memory` from `offset` on. False: its operation has ended.
bool machine::target(const intake &i, spi::memory &memory, std::size_t &offset)
{
	if (!i.own) {
		memory = i.landing.memory;
		offset = i.landing.offset;
		return true;
	}
	const spi::transfer *x = sink_.find(i.own);
	if (!x || x->length < i.length)
		return false;
	memory = x->memory;
	offset = x->offset;
	return true;
}

// Pulls the next piece, and ends the intake with the last one.
void machine::pull(intake &i)
{
	link &l = *i.of;
	spi::memory memory;
	std::size_t offset;
	if (l.ends)
		return; // its end ends the intake
	if (!target(i, memory, offset))
		return drop_intake(i.id, -ECANCELED, true);
	std::array<rdma::wire_segment, rdma::max_segments> from;
	std::array<rdma::place, rdma::max_segments> to;
	std::size_t sources = 0, places = 0, bytes = 0;
	spi::cursor c(memory, offset + i.moved);
	while (sources < from.size() && bytes < piece && i.segment < i.from.size()) {
		const rdma::wire_segment &s = i.from[i.segment];
		const std::size_t most = std::min<std::size_t>(s.length - i.into, piece - bytes);
		std::size_t n = 0;
		while (n < most && places < to.size()) {
			const auto at = c.next(most - n);
			to[places++] = {reinterpret_cast<std::uint8_t *>(at.data()), at.size()};
			n += at.size();
		}
		if (!n)
			break;
		from[sources++] = {s.addr + i.into, n};
		bytes += n;
		i.into += n;
		if (i.into == s.length) {
			i.segment++;
			i.into = 0;
		}
	}
	const int r = l.port->pull({from.data(), sources}, {to.data(), places});
	if (!l.words->lends(i.word, i.value))
		return drop_intake(i.id, -ECANCELED, true);
	if (r == -ESRCH)
		return end_link(l, -ECONNRESET);
	if (r)
		return drop_intake(i.id, -EFAULT, true);
	i.moved += bytes;
	if (i.moved == i.length)
		finish_intake(i);
	else
		pulls_.push_back(i.id);
}

void machine::finish_intake(intake &done)
{
	const intake i = std::move(done);
	intakes_.erase(i.id);
	i.of->takes.erase(i.id);
	if (i.own)
		end_operation(i.own, 0, i.length);
	else
		sink_.received(i.landing, i.of->peer);
	head h;
	h.to = i.giver;
	h.from = i.id;
	owe(*i.of, kind::done, h);
}

void machine::drop_intake(std::uint64_t id, int status, bool told)
{
	const auto found = intakes_.find(id);
	if (found == intakes_.end())
		return;
	const intake i = std::move(found->second);
	intakes_.erase(found);
	i.of->takes.erase(id);
	const auto o = operations_.find(i.own);
	if (!i.own) {
		sink_.abandon(i.landing);
		room_ = true;
	} else if (o != operations_.end() && o->second.role == role::get) {
		end_operation(i.own, status, 0);
	} else {
		give_up(i.own); // the offer stands, for others
	}
	if (told) {
		head h;
		h.to = i.giver;
		h.from = id;
		h.status = status;
		owe(*i.of, kind::done, h);
	}
}

} // namespace coop::net::nt
