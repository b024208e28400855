// SPDX-License-Identifier: MIT
// links.cpp - how links come up and end: calls, greetings, signs of life.
//
// The first request to a peer calls it. If two machines call each other at the same time there are
// two links, and each uses its own for requests, so that messages stay in order.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "coop/backlog.hpp"
#include "machine.hpp"
#include "userland/ntrdma/window/descriptors.hpp"

namespace coop::net::nt
{

namespace
{

using namespace std::chrono_literals;

constexpr auto greet_within = 4500ms;    // as long as the transport fabric
constexpr std::size_t links_of_peer = 4; // two, and those of a life that ended just now
constexpr unsigned accepted_most = 64;   // of one look: other users may call without end
constexpr std::uint32_t send_depth = 128;
constexpr std::uint64_t rings = std::uint64_t{1} << 63; // in the set: a link's bell, not its socket

rdma::unique_fd life_of(pid_t process)
{
	return rdma::unique_fd(process > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, process, 0))
					   : -1);
}

bool hangs_up(const rdma::unique_fd &socket)
{
	pollfd p{socket.get(), POLLRDHUP, 0};
	return ::poll(&p, 1, 0) > 0;
}

// Why map() of a window or a board returned null: the lack is on this side, or the peer lies.
int unmapped()
{
	return errno == ENOMEM ? -ENOBUFS : -EPROTO;
}

} // namespace

void machine::watch(int fd, std::uint64_t what)
{
	epoll_event e{};
	e.events = EPOLLIN | EPOLLRDHUP;
	e.data.u64 = what;
	::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e);
}

// Before it is closed: a child of fork may hold what is behind it open.
void machine::unwatch(const rdma::unique_fd &fd)
{
	if (fd)
		::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
}

void machine::hold(spi::peer_number n)
{
	peers_[n].holds++;
}

void machine::drop(spi::peer_number n)
{
	if (--peers_[n].holds == 0)
		sink_.release(n);
}

link &machine::make_link(nt::stage s)
{
	auto l = std::make_unique<link>();
	l->serial = next_number_++;
	l->stage = s;
	l->since = l->asked = sink_.now();
	if (free_links_.empty()) {
		l->index = static_cast<std::uint32_t>(links_.size());
		links_.push_back(nullptr);
	} else {
		l->index = free_links_.back();
		free_links_.pop_back();
	}
	awake_.push_back(l.get());
	return *(links_[l->index] = std::move(l));
}

greeting machine::make_greeting(greeting_kind k, const address &to) const
{
	greeting g;
	g.kind = k;
	g.layout = sizeof(rdma::half);
	g.receives = static_cast<std::uint32_t>(options_.receive_bytes());
	g.probe_at = reinterpret_cast<std::uintptr_t>(&probe_);
	g.probe_value = probe_;
	const std::string from = format(own_), there = format(to);
	std::memcpy(g.from, from.data(), from.size());
	std::memcpy(g.to, there.data(), there.size());
	return g;
}

// ---- calling ---------------------------------------------------------------------

void machine::dial(spi::peer_number n)
{
	link &l = make_link(stage::calling);
	l.peer = n;
	const address at = peers_[n].at;
	(void)sink_.peer(at); // the hold of a link
	hold(n);
	peers_[n].sends = &l;
	if (links_.size() - free_links_.size() > options_.max_links)
		return end_link(l, -ENOBUFS);
	call_peer(l);
}

void machine::call_peer(link &l)
{
	const address &to = peers_[l.peer].at;
	if (l.far || is_far(to))
		return call_far(l);
	const int r = call(to, l.socket);
	if (r == -EAGAIN)
		return;
	if (r)
		return end_link(l, r);
	rdma::unique_fd memory;
	try {
		l.memory = rdma::window::create(&memory);
	} catch (const std::system_error &e) {
		return end_link(l, -e.code().value());
	}
	(void)is_own_user(l.socket.get(), l.process);
	l.life = life_of(l.process);
	l.own_bell = make_bell(l);
	if (!l.own_bell)
		return end_link(l, -ENOBUFS);
	const int fds[] = {memory.get(), l.own_bell.get(), board_->fd()};
	if (!send_greeting(l.socket.get(), make_greeting(greeting_kind::hello, to), fds))
		return end_link(l, -ECONNREFUSED);
	watch(l.socket.get(), l.index + 2);
	if (l.life)
		watch(l.life.get(), l.index + 2);
	l.stage = stage::greeted;
}

int machine::take_welcome(link &l, const greeting &g, std::vector<rdma::unique_fd> &fds)
{
	if (g.kind == greeting_kind::refuse)
		return g.status < 0 && g.status > -4096 ? g.status : -EPROTO;
	if (g.kind != greeting_kind::welcome || fds.size() != 2 || g.version != greeting_version ||
	    g.layout != sizeof(rdma::half) || g.receives < control_most || !rdma::take_bell(fds[0]))
		return -EPROTO;
	l.bell = std::move(fds[0]);
	l.words = board_view::map(fds[1].get());
	if (!l.words)
		return unmapped();
	l.receives = g.receives;
	l.sign = {g.probe_at, g.probe_value};
	l.reads = options_.pull && (g.features & feature::pulls) && l.life &&
		  rdma::can_read(l.process, g.probe_at, g.probe_value);
	greeting start = make_greeting(greeting_kind::start, peers_[l.peer].at);
	if (l.reads)
		start.features |= feature::pulls;
	if (!send_greeting(l.socket.get(), start, {}))
		return -ECONNREFUSED;
	bring_up(l, 0);
	return 0;
}

// ---- being called ----------------------------------------------------------------

void machine::accept_callers()
{
	for (unsigned i = 0; i < accepted_most && listener_ && !deaf_ && !must_wait(0); i++) {
		rdma::unique_fd fd(
			::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
		if (!fd)
			return (void)must_wait(errno);
		pid_t process = 0;
		if (!is_own_user(fd.get(), process))
			continue;
		link &l = make_link(stage::heard);
		l.socket = std::move(fd);
		l.process = process;
		l.life = life_of(process);
		watch(l.socket.get(), l.index + 2);
	}
}

// Whether no caller can be accepted now. `error`: of accept(), or 0 before it.
bool machine::must_wait(int error)
{
	if (links_.size() - free_links_.size() < options_.max_links &&
	    !keeps_callers_waiting(error))
		return false;
	leave_waiting();
	return true;
}

// Leaves callers in the backlog. The set would report them for ever: tend() asks again.
void machine::leave_waiting()
{
	unwatch(listener_);
	unwatch(far_listener_);
	deaf_ = true;
	rests_ = false;
}

// Counts the link among those of its peer: those that are up, and callers that have yet to say
// START, which they may do all at once. Not those that have hung up: after a long pause of this
// process the earlier calls of a peer that is there come before its last.
int machine::meet(link &l, const address &from)
{
	(void)peer_open(l.peer, from);
	hold(l.peer);
	const auto welcomed = std::count_if(links_.begin(), links_.end(), [&](const auto &other) {
		return other && other->peer == l.peer && other->stage == stage::welcomed &&
		       !hangs_up(other->socket);
	});
	const std::size_t all = peers_[l.peer].links.size() + static_cast<std::size_t>(welcomed);
	return all >= links_of_peer ? -ENOBUFS : 0;
}

int machine::answer_hello(link &l, const greeting &g, std::vector<rdma::unique_fd> &fds)
{
	address from, to;
	if (g.kind != greeting_kind::hello || parse(g.from, from) || from.wildcard())
		return -EPROTO;
	int r = 0;
	if (g.version != greeting_version || g.layout != sizeof(rdma::half) || fds.size() != 3 ||
	    g.receives < control_most || !rdma::take_bell(fds[1]))
		r = -EPROTO;
	else if (stopping_ || parse(g.to, to) || !(to == own_))
		r = -ECONNREFUSED;
	else if (!(l.memory = rdma::window::map(fds[0].get())) ||
		 !(l.words = board_view::map(fds[2].get())))
		r = unmapped();
	else if (!(l.own_bell = make_bell(l)) || (l.peer = sink_.peer(from)) == spi::no_peer)
		r = -ENOBUFS;
	else
		r = meet(l, from);
	if (r) {
		greeting no = make_greeting(greeting_kind::refuse, from);
		no.status = r;
		(void)send_greeting(l.socket.get(), no, {});
		return r;
	}
	l.bell = std::move(fds[1]);
	l.receives = g.receives;
	l.sign = {g.probe_at, g.probe_value};
	l.reads = options_.pull && l.life && rdma::can_read(l.process, g.probe_at, g.probe_value);
	greeting welcome = make_greeting(greeting_kind::welcome, from);
	if (l.reads)
		welcome.features |= feature::pulls;
	const int own[] = {l.own_bell.get(), board_->fd()};
	if (!send_greeting(l.socket.get(), welcome, own))
		return -ECONNRESET;
	if (l.life)
		watch(l.life.get(), l.index + 2);
	l.stage = stage::welcomed;
	l.since = sink_.now();
	return 0;
}

// ---- both ------------------------------------------------------------------------

void machine::look_at_sockets()
{
	epoll_event events[32];
	const int n = ::epoll_wait(epoll_.get(), events, 32, 0);
	for (int i = 0; i < n; i++) {
		const std::uint64_t what = events[i].data.u64;
		if (what == 1) {
			accept_callers();
			accept_far();
		} else if (what & rings) {
			const std::uint64_t at = what & ~rings;
			if (at < links_.size() && links_[at] && links_[at]->aside)
				bring_back(*links_[at]);
		} else if (what > 1 && what - 2 < links_.size() && links_[what - 2]) {
			hear(*links_[what - 2]);
		}
	}
}

// Nobody reads it: each ring is an edge.
rdma::unique_fd machine::make_bell(const link &l)
{
	rdma::unique_fd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	epoll_event e{};
	e.events = EPOLLIN | EPOLLET;
	e.data.u64 = rings | l.index;
	if (fd && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &e))
		fd = rdma::unique_fd();
	return fd;
}

// Reads what the peer says on its socket: greetings, or that it hung up.
void machine::hear(link &l)
{
	if (l.ends)
		return;
	if (l.aside)
		bring_back(l);
	if (l.far)
		return hear_far(l);
	const rdma::unique_fd &life = l.port ? l.port->life() : l.life;
	greeting g;
	std::vector<rdma::unique_fd> fds;
	const bool dead = life && rdma::has_ended(life.get());
	const int came = dead ? -1 : receive_greeting(l.socket.get(), g, fds);
	if (came == 0)
		return;
	int r = came < 0 ? -ECONNREFUSED : 0;
	switch (l.stage) {
	case stage::calling:
		return;
	case stage::heard:
		r = r ? r : answer_hello(l, g, fds);
		break;
	case stage::greeted:
		r = r ? r : take_welcome(l, g, fds);
		break;
	case stage::welcomed:
		if (!r && g.kind == greeting_kind::start) {
			l.reads &= (g.features & feature::pulls) != 0;
			bring_up(l, 1);
		} else {
			r = -EPROTO;
		}
		break;
	case stage::up:
		// What it had stored, it had sent.
		l.pair->peer_gone();
		r = -ECONNRESET;
		break;
	}
	if (r)
		end_link(l, r);
}

void machine::bring_up(link &l, unsigned side)
{
	make_pair(l);
	l.port = std::make_unique<rdma::window_port>(
		std::move(l.memory), side, std::move(l.bell), l.process, std::move(l.life), l.reads,
		[this, &l] { end_link(l, -ECONNRESET); }, l.sign);
	join(l, *l.port);
}

void machine::make_pair(link &l)
{
	rdma::pair_options o;
	o.number = l.index + 1;
	o.domain = 1;
	o.send_depth = send_depth;
	o.send_queue = o.recv_queue = &queue_;
	o.shared = &receives_;
	o.pull_from = std::numeric_limits<std::uint32_t>::max(); // the transport's own part
	l.pair = std::make_unique<rdma::queue_pair>(regions_, *this, o);
	l.pair->answers_wait = true;
	l.pair->set_state(rdma::pair_state::sends);
}

void machine::join(link &l, rdma::port &port)
{
	l.stage = stage::up;
	l.since = l.asked = sink_.now();
	peer &p = peers_[l.peer];
	p.links.push_back(&l);
	if (!p.sends)
		p.sends = &l;
	l.pair->attach(port);
	block(l); // what waits for it goes out with the next progress
}

void machine::tend(time_point now)
{
	tended_ = now;
	if (deaf_ && (listener_ || far_listener_)) {
		deaf_ = false;
		for (const auto *all : {&listener_, &far_listener_})
			if (*all && options_.answer)
				watch(all->get(), 1);
	}
	for (std::size_t i = 0; i < awake_.size(); i++)
		if (!awake_[i]->ends)
			tend(*awake_[i], now);
	set_idle_aside(now);
}

void machine::tend(link &l, time_point now)
{
	if (l.stage == stage::calling)
		call_peer(l);
	if (l.stage != stage::up) {
		if (now - l.since > greet_within && !hears(l))
			end_link(l, -ECONNREFUSED);
		return;
	}
	if (l.ends)
		return;
	if (l.asking) {
		if (l.pair->answered()) {
			l.asking = false;
			l.asked = now;
		} else if (now - l.asked > options_.bound && !hears(l)) {
			end_link(l, -EHOSTDOWN);
			l.pair->peer_gone();
		}
	} else if (!l.waits()) {
		l.asked = now;
	} else if (now - l.asked > options_.bound / 4) {
		l.asking = true;
		l.asked = now;
		l.pair->ask();
	}
}

// Whether the socket of a link that seems lost held something, which is taken: then a later look
// decides. A look at the set reports some sockets, and reads a part of each. So after a pause of
// this process a sign of life may wait in one that was not read.
bool machine::hears(link &l)
{
	const nt::stage before = l.stage;
	const unsigned news = far_news_;
	hear(l);
	return l.ends || l.stage != before || far_news_ != news;
}

// ---- idle links ------------------------------------------------------------------

void machine::set_idle_aside(time_point now)
{
	if (now - aside_at_ < options_.idle / 4)
		return;
	aside_at_ = now;
	std::erase_if(awake_, [&](link *l) { return is_idle(*l, now) && set_aside(*l); });
}

bool machine::is_idle(link &l, time_point now)
{
	const bool busy = l.ends || l.waits() || l.asking || l.blocked || l.unrung ||
			  !l.streams.empty() || l.pair->starved() || l.pair->unpolled() ||
			  (l.tcp && (l.tcp->waits() || l.tcp->blocked()));
	const std::uint64_t requests = busy ? 0 : l.pair->counts().sent + l.pair->counts().served;
	if (busy || requests != l.requests) {
		l.requests = requests;
		l.used = now;
	}
	return now - l.used >= options_.idle;
}

bool machine::set_aside(link &l)
{
	if (l.port)
		l.port->wait(true);
	// Pairs with the peer's ring, as in arm().
	std::atomic_thread_fence(std::memory_order_seq_cst);
	if (l.pair->progress() || l.pair->unpolled() || l.ends) {
		if (l.port)
			l.port->wait(armed_);
		l.used = aside_at_;
		return false;
	}
	l.aside = true;
	std::erase(far_, &l);
	for (int i = 0; i < 2; i++) // its sends and its receives
		queue_.remove(*l.pair);
	return true;
}

void machine::bring_back(link &l)
{
	l.aside = false;
	l.used = l.asked = sink_.now();
	awake_.push_back(&l);
	for (int i = 0; i < 2; i++)
		queue_.add(*l.pair);
	if (l.port)
		l.port->wait(armed_);
	else
		far_.push_back(&l);
}

// ---- ends ------------------------------------------------------------------------

void machine::end_link(link &l, int status)
{
	if (!l.ends)
		l.ends = status;
	owed_bytes_ -= std::exchange(l.owed_bytes, 0);
	ends_ = true;
}

void machine::settle_ends()
{
	while (std::exchange(ends_, false))
		for (std::size_t i = 0; i < links_.size(); i++)
			if (links_[i] && links_[i]->ends)
				finish_link(*links_[i]);
	offer_room();
}

void machine::finish_link(link &l)
{
	const int status = l.ends;
	if (l.pair) {
		if (l.pair->linked())
			l.pair->fail(rdma::status::retry_exceeded);
		rdma::completion got[16];
		while (const std::size_t n = l.pair->reap(queue_, got))
			for (std::size_t i = 0; i < n; i++)
				handle(got[i]);
		l.pair->detach();
	}
	for (const spi::token t : std::exchange(l.tokens, {})) {
		const auto o = operations_.find(t);
		if (o != operations_.end() && o->second.of == &l)
			end_operation(t, status, 0);
	}
	for (const std::uint64_t id : std::exchange(l.takes, {}))
		drop_intake(id, status, false);
	unwatch(l.tcp ? l.tcp->socket() : l.socket);
	unwatch(l.port ? l.port->life() : l.life);
	unwatch(l.own_bell);
	std::erase(awake_, &l);
	std::erase(blocked_, &l);
	std::erase(unrung_, &l);
	std::erase(far_, &l);
	if (l.peer != spi::no_peer) {
		peer &p = peers_[l.peer];
		std::erase(p.links, &l);
		if (p.sends == &l) {
			p.sends = nullptr;
			for (auto all = std::exchange(p.queue, {}); !all.empty(); all.pop_front())
				sink_.completed(all.front(), status, 0);
		}
		drop(l.peer);
	}
	const std::uint32_t index = l.index;
	links_[index].reset();
	free_links_.push_back(index);
}

} // namespace coop::net::nt
