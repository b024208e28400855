// SPDX-License-Identifier: MIT
// tcp.cpp - links to machines of other hosts, by TCP.
//
// A caller connects from its own address, and the called machine compares it with the one in the
// greeting. After the greetings the connection belongs to a stream_port. It has no doorbell: a
// machine that polls asks its sockets, and one that sleeps does so on the set.
//
// Bytes that a peer asked for go out from their memory as placements, one at a time on a link, and
// arrive in theirs. An operation that ends withdraws what has not left (forget()); bytes for an
// intake that has ended are dropped.
#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "machine.hpp"

namespace coop::net::nt
{

namespace
{

constexpr std::size_t asked_each = 4; // above: one question to the set is cheaper
// Callers that have yet to greet. Whoever reaches the port may be one, and shall not take all
// descriptors of the program.
constexpr std::ptrdiff_t strangers_most = 256;

} // namespace

/// The places of a link's intakes.
class machine::far_places final : public rdma::placements
{
public:
	far_places(machine &m, link &l) : machine_(m), link_(l) {}

	std::optional<std::size_t> places(std::uint64_t id, std::uint64_t offset,
					  std::uint64_t length, std::span<rdma::place> out) override
	{
		const auto found = machine_.intakes_.find(id);
		if (found == machine_.intakes_.end())
			return 0; // cancelled, or its place was withdrawn
		const intake &i = found->second;
		if (i.of != &link_ || !i.from.empty() || offset != i.moved ||
		    length > i.length - i.moved)
			return std::nullopt;
		spi::memory memory;
		std::size_t at;
		if (!machine_.target(i, memory, at)) {
			machine_.drop_intake(id, -ECANCELED, true);
			return 0;
		}
		spi::cursor c(memory, at + i.moved);
		std::size_t n = 0;
		while (length && n < out.size()) {
			const auto piece = c.next(length);
			out[n++] = {reinterpret_cast<std::uint8_t *>(piece.data()), piece.size()};
			length -= piece.size();
		}
		return n;
	}
	std::optional<std::uint64_t> message(std::uint64_t giver, std::uint32_t length) override
	{
		return machine_.take_message(link_, giver, length);
	}
	void placed(std::uint64_t id, std::uint64_t bytes) override
	{
		intake &i = machine_.intakes_.find(id)->second;
		i.moved += bytes;
		if (i.moved == i.length)
			machine_.finish_intake(i);
	}

private:
	machine &machine_;
	link &link_;
};

bool machine::is_far(const address &a) const
{
	return options_.reach == reach::tcp ||
	       (options_.reach == reach::both && spi::check_own_ip(a.ip) != 0);
}

// ---- connections -----------------------------------------------------------------

void machine::call_far(link &l)
{
	if (l.socket)
		return; // it connects
	l.far = true;
	const address &to = peers_[l.peer].at;
	if (const int r = rdma::call_tcp(own_.ip, to.ip, tcp_port(to), l.socket))
		return end_link(l, r);
	epoll_event e{};
	e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
	e.data.u64 = l.index + 2;
	::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, l.socket.get(), &e);
	l.writes = true;
}

void machine::accept_far()
{
	auto strangers = std::count_if(awake_.begin(), awake_.end(), [](const link *l) {
		return l->far && l->stage == stage::heard && !l->ends;
	});
	while (far_listener_ && !deaf_ && !must_wait(0)) {
		if (strangers >= strangers_most)
			return leave_waiting();
		rdma::unique_fd fd;
		rdma::ip_address from;
		const int r = rdma::accept_tcp(far_listener_.get(), fd, from);
		if (must_wait(-r) || r == -EAGAIN)
			return;
		if (r)
			continue; // the caller has gone
		strangers++;
		link &l = make_link(stage::heard);
		l.far = true;
		l.from = from;
		l.socket = std::move(fd);
		watch(l.socket.get(), l.index + 2);
	}
}

// Watches for room only while something waits for it.
void machine::note_room(link &l)
{
	const bool wants = l.tcp && l.tcp->blocked();
	if (wants == l.writes)
		return;
	l.writes = wants;
	epoll_event e{};
	e.events = EPOLLIN | EPOLLRDHUP | (wants ? std::uint32_t{EPOLLOUT} : 0);
	e.data.u64 = l.index + 2;
	const int fd = l.tcp ? l.tcp->socket().get() : l.socket.get();
	::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &e);
}

// ---- greetings -------------------------------------------------------------------

int machine::send_far(link &l, greeting_kind k, const address &to, int status)
{
	tcp_greeting g;
	g.kind = k;
	g.receives = static_cast<std::uint32_t>(options_.receive_bytes());
	g.takes = takes_messages;
	g.status = status;
	g.from = format(own_);
	g.to = format(to);
	if (k == greeting_kind::hello || k == greeting_kind::welcome) {
		while (::getrandom(l.nonce_own.data(), l.nonce_own.size(), 0) !=
		       static_cast<ssize_t>(l.nonce_own.size()))
			continue;
		g.own = l.nonce_own;
	}
	const auto text = put(g, options_.key, l.nonce_peer);
	// It is the first of a connection, or the second: there is room.
	const ssize_t n =
		::send(l.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
	return n == static_cast<ssize_t>(text.size()) ? 0 : -ECONNREFUSED;
}

void machine::hear_far(link &l)
{
	int r = 0;
	if (l.stage == stage::up) {
		r = l.tcp->receive();
		far_news_ += r > 0;
		if (r == -ECONNRESET)
			l.pair->peer_gone(); // what it had stored, it had sent
		return r < 0 ? end_link(l, r) : void();
	}
	if (l.stage == stage::calling) {
		r = rdma::connected(l.socket.get());
		if (r == -EAGAIN)
			return;
		if (!r) {
			note_room(l);
			l.stage = stage::greeted;
			r = send_far(l, greeting_kind::hello, peers_[l.peer].at);
		}
		return r ? end_link(l, r) : void();
	}
	std::array<std::uint8_t, tcp_greeting::size> text;
	const ssize_t n =
		::recv(l.socket.get(), text.data(), text.size() - l.text.size(), MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0)
		return end_link(l, -ECONNREFUSED);
	l.text.insert(l.text.end(), text.begin(), text.begin() + n);
	if (l.text.size() < text.size())
		return;
	std::copy(l.text.begin(), l.text.end(), text.begin());
	l.text = {};
	tcp_greeting g;
	const bool called = l.stage == stage::heard || l.stage == stage::welcomed;
	const nonce mine = l.stage == stage::heard ? nonce{} : l.nonce_own;
	r = get(text, options_.key, mine, g);
	if (!r)
		r = take_far_greeting(l, g);
	if (!r)
		return;
	if (called) {
		address to;
		if (parse(g.from, to))
			to = own_; // it has not said who it is
		(void)send_far(l, greeting_kind::refuse, to, r);
	}
	end_link(l, r);
}

int machine::take_far_greeting(link &l, const tcp_greeting &g)
{
	if (l.stage == stage::heard)
		return answer_far_hello(l, g);
	if (l.stage == stage::welcomed) {
		if (g.kind != greeting_kind::start)
			return -EPROTO;
		bring_up_far(l);
		return 0;
	}
	if (g.kind == greeting_kind::refuse)
		return g.status < 0 && g.status > -4096 ? g.status : -EPROTO;
	if (g.kind != greeting_kind::welcome || g.receives < control_most)
		return -EPROTO;
	l.receives = g.receives;
	l.unasked = (g.takes & takes_messages) != 0;
	l.nonce_peer = g.own;
	if (const int r = send_far(l, greeting_kind::start, peers_[l.peer].at))
		return r;
	bring_up_far(l);
	return 0;
}

int machine::answer_far_hello(link &l, const tcp_greeting &g)
{
	address from, to;
	l.nonce_peer = g.own; // first: without it the caller believes no reason
	if (g.kind != greeting_kind::hello || parse(g.from, from) || from.wildcard())
		return -EPROTO;
	int r = 0;
	if (g.receives < control_most)
		r = -EPROTO;
	else if (from.ip != l.from)
		r = -EACCES; // it claims to be another host
	else if (stopping_ || parse(g.to, to) || !(to == own_))
		r = -ECONNREFUSED;
	else if ((l.peer = sink_.peer(from)) == spi::no_peer)
		r = -ENOBUFS;
	else
		r = meet(l, from);
	if (!r)
		r = send_far(l, greeting_kind::welcome, from);
	if (r)
		return r;
	l.receives = g.receives;
	l.unasked = (g.takes & takes_messages) != 0;
	l.stage = stage::welcomed;
	l.since = sink_.now();
	return 0;
}

void machine::bring_up_far(link &l)
{
	l.places = std::make_unique<far_places>(*this, l);
	try {
		l.tcp = std::make_unique<rdma::stream_port>(
			std::move(l.socket), l.places.get(),
			[this, &l] { end_link(l, -ECONNRESET); });
	} catch (const std::bad_alloc &) {
		return end_link(l, -ENOBUFS);
	}
	make_pair(l);
	far_.push_back(&l);
	join(l, *l.tcp);
}

// ---- progress --------------------------------------------------------------------

// @return from how many peers something came.
unsigned machine::look_at_streams()
{
	far_news_ = 0;
	if (far_.size() > asked_each)
		look_at_sockets();
	else
		for (link *l : far_)
			if (!l->ends)
				hear_far(*l);
	return far_news_;
}

// Sends what waits, signs of life among it. @return on how many links there is room again.
unsigned machine::flush_streams()
{
	unsigned n = 0;
	for (link *l : far_) {
		if (l->tcp->waits()) {
			const bool busy = l->tcp->placing();
			l->tcp->send();
			n += busy && !l->tcp->placing();
		}
		note_room(*l);
	}
	return n;
}

void machine::note_pieces(const spi::memory &m, std::size_t offset, std::size_t length)
{
	pieces_.clear();
	spi::cursor c(m, offset);
	while (length) {
		const auto piece = c.next(length);
		pieces_.push_back(
			{reinterpret_cast<const std::uint8_t *>(piece.data()), piece.size()});
		length -= piece.size();
	}
}

bool machine::place_next(link &l, const stream &s, const spi::transfer &x, std::size_t length)
{
	if (l.tcp->placing())
		return false;
	note_pieces(x.memory, x.offset + s.moved, length);
	l.tcp->put_at(s.intake, s.moved, pieces_, s.token);
	return true;
}

// ---- messages that are not asked for ---------------------------------------------

// An offer and its answer take a round trip. So a large message goes without them to a peer that
// takes it: one without a place drops the bytes, keeps the head as an offer, and asks for the bytes
// once it has a place. Then the next messages are offered first.
bool machine::goes_unasked(link &l, const spi::transfer &x)
{
	if (!l.tcp || !l.unasked || x.length > rdma::placement_most)
		return false;
	// An offer need not wait for the bytes of another operation.
	if (l.tcp->placing() && !l.tcp->placing_message())
		return false;
	if (!l.refrains)
		return true;
	l.refrains--;
	return false;
}

bool machine::place_message(link &l, spi::token t, const spi::transfer &x)
{
	if (l.ends || l.tcp->placing())
		return false;
	if (l.aside)
		bring_back(l);
	operations_.emplace(t, operation{role::offer, &l, {}, 0, x.length, 0, true});
	l.tokens.insert(t);
	note_pieces(x.memory, x.offset, x.length);
	l.tcp->put_message(t, pieces_, t);
	note_room(l);
	return true;
}

// @return the number of the intake; or one that no intake has, so the bytes are dropped.
std::uint64_t machine::take_message(link &l, std::uint64_t giver, std::uint32_t length)
{
	constexpr std::uint64_t dropped = 0;
	if (l.ends)
		return dropped; // nothing new begins
	head h;
	h.from = giver;
	h.length = length;
	intake *i = nullptr;
	if (!held_.empty() || begin_message(l, h, i) == -ENOBUFS)
		keep(l.peer, std::as_bytes(std::span(&h, 1)), &l);
	return i ? i->id : dropped;
}

} // namespace coop::net::nt
