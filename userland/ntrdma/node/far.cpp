// SPDX-License-Identifier: MIT
// far.cpp - links by TCP: calls, greetings, progress.
//
// Links come up and end on the node's thread, as those by a window do. Bytes are read and sent by
// whichever thread makes progress: one that learns that a connection has ended leaves the rest to
// the node's. The set reports edges. So a socket that was full wakes the thread once it has room,
// whichever thread filled it, and nothing is missed: the thread sleeps only after it has read all
// sockets to their end.
#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "userland/include/coop/backlog.hpp"
#include "userland/ntrdma/node/node.hpp"

namespace coop::ntrdma
{

namespace
{

using namespace std::chrono_literals;

constexpr auto call_again = 50ms;
constexpr auto connects_within = 5s;
constexpr std::size_t far_callers_most = 256;
constexpr std::size_t polled_each = 16; // links that one poll of the application looks at
constexpr int tries_most = 1000;        // for the lock, before answers are given up

std::uint16_t port_of(std::uint32_t number)
{
	return static_cast<std::uint16_t>(first_port + (number >> slot_shift));
}

far_greeting make(far_kind kind, const member &m)
{
	far_greeting g;
	g.kind = kind;
	g.from = m.pair->options().number;
	g.to = m.pair->peer;
	g.own = m.by_tcp->own;
	g.peer = m.by_tcp->to;
	return g;
}

/// True if the greeting comes from the peer that the queue pair names, and means it.
bool fits(const far_greeting &g, const member &m)
{
	return g.from == m.pair->peer && g.to == m.pair->options().number &&
	       g.own == m.by_tcp->to && g.peer == m.by_tcp->own;
}

} // namespace

/// False if a process of another user has the port.
bool node::listen_far()
{
	auto port = static_cast<std::uint16_t>(first_port + slot_);
	int r = listen_tcp(ip_address{}, port, far_listener_);
	if (r == -EAFNOSUPPORT || r == -EADDRNOTAVAIL) { // a kernel without IPv6
		ip_address any{};
		any[10] = any[11] = 0xff;
		r = listen_tcp(any, port, far_listener_);
	}
	return !r;
}

void node::watch_far(const unique_fd &fd, bool up)
{
	epoll_event e{};
	e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
	e.data.fd = up ? news_of_link : fd.get();
	epoll_ctl(epoll_.get(), up ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd.get(), &e);
}

// ---- the called side -------------------------------------------------------------

void node::accept_far(ticks now)
{
	far_deaf_ = false;
	while (far_listener_ && far_callers_.size() < far_callers_most) {
		far_caller c;
		int r = accept_tcp(far_listener_.get(), c.socket, c.from);
		if (r == -EAGAIN)
			return;
		if (keeps_callers_waiting(-r)) {
			far_deaf_ = true;
			return;
		}
		if (r)
			continue; // the caller has gone
		watch_far(c.socket, false);
		c.since = now;
		far_callers_.push_back(std::move(c));
	}
}

void node::hear_far_callers(ticks now)
{
	for (auto c = far_callers_.begin(); c != far_callers_.end();) {
		int r = c->said ? 1 : receive_greeting(c->socket.get(), c->text, c->hello);
		if (r == -EPROTO) {
			tell_of_version("host " + text_of(c->from));
			far_greeting no;
			no.kind = far_kind::refuse;
			send_greeting(c->socket.get(), no);
		}
		char byte;
		bool over = r < 0 || now - c->since > bound_;
		if (r > 0 && !over) {
			c->said = true;
			// The host that it claims to be has to have sent it.
			over = c->hello.kind != far_kind::hello || c->hello.own != c->from ||
			       recv(c->socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
		}
		if (c->said && !over) {
			auto m = members_.find(c->hello.to);
			over = m == members_.end() || answer_far(*m->second, *c, now);
		}
		if (!over) {
			++c; // it may go on, or the queue pair get ready
			continue;
		}
		unwatch(c->socket);
		c = far_callers_.erase(c);
	}
}

/// False if the queue pair may take the call later.
bool node::answer_far(member &m, far_caller &c, ticks now)
{
	if (m.stage != link_stage::awaiting || !m.by_tcp || !fits(c.hello, m))
		return false;
	if (!send_greeting(c.socket.get(), make(far_kind::welcome, m)))
		return true;
	m.socket = std::move(c.socket);
	m.text = {};
	m.asked = now;
	m.stage = link_stage::welcomed;
	return true;
}

// ---- the calling side ------------------------------------------------------------

void node::call_far(member &m, ticks now)
{
	if (!m.socket) {
		if (m.asking && now - m.asked < call_again)
			return;
		m.asking = true;
		m.asked = now;
		m.text = {};
		std::uint32_t slot = m.pair->peer >> slot_shift;
		if (slot == 0 || slot >= slots)
			return;
		if (!call_tcp(m.by_tcp->own, m.by_tcp->to, port_of(m.pair->peer), m.socket))
			watch_far(m.socket, false);
	}
	if (!m.socket)
		return;
	int r = connected(m.socket.get());
	if (r == -EAGAIN && now - m.asked < connects_within)
		return;
	if (r || !send_greeting(m.socket.get(), make(far_kind::hello, m))) {
		unwatch(m.socket);
		m.socket = unique_fd{};
		m.asked = now;
		return;
	}
	m.asking = false;
	m.asked = now;
	m.stage = link_stage::greeting;
}

// ---- both ------------------------------------------------------------------------

/// Reads the greeting that a link waits for.
void node::hear_far(member &m, ticks now)
{
	bool called = m.stage == link_stage::welcomed;
	far_greeting g;
	int r = receive_greeting(m.socket.get(), m.text, g);
	if (!r && now - m.asked <= bound_)
		return;
	if (r == -EPROTO)
		tell_of_version("host " + text_of(m.by_tcp->to));
	bool well = r > 0 && g.kind == (called ? far_kind::start : far_kind::welcome) && fits(g, m);
	if (well && !called)
		well = send_greeting(m.socket.get(), make(far_kind::start, m));
	if (!well) // it has no such queue pair yet, is on its way out, or another
		return begin_again(m, called ? link_stage::awaiting : link_stage::calling, now);
	bring_up_far(m, now);
}

void node::bring_up_far(member &m, ticks now)
{
	try {
		far_.reserve(far_.size() + 1);
		m.far = std::make_unique<stream_port>(std::move(m.socket), nullptr, [this] {
			changed_ = true;
			kick();
		});
	} catch (const std::bad_alloc &) {
		m.pair->peer_gone();
		return end_link(m, link_stage::over);
	}
	m.stage = link_stage::up;
	m.since = m.asked = now;
	m.asking = false;
	m.lost = 0;
	watch_far(m.far->socket(), true);
	far_.push_back(&m);
	m.pair->attach(*m.far);
}

void node::end_far(member &m)
{
	m.lost = 0;
	if (!m.far)
		return;
	std::erase(far_, &m);
	unwatch(m.far->socket());
	m.far.reset();
}

/// The connection of a link has ended.
void node::end_lost(member &m)
{
	// What came on others counts first; a peer may leave several links at once.
	serve_all_far();
	if (m.lost == -EPROTO && m.pair->linked()) {
		m.pair->fail(status::bad_response);
		watcher_.happened(*m.pair, event::lost);
	} else {
		m.pair->peer_gone();
	}
	end_link(m, link_stage::over);
}

/// True if something came.
bool node::serve_far(member &m)
{
	if (m.lost)
		return false;
	int r = m.far->receive();
	if (r < 0) {
		m.lost = r;
		changed_ = true;
		kick();
		return true;
	}
	if (m.far->waits())
		m.far->send();
	far_reads_ += r > 0;
	return r > 0;
}

bool node::serve_all_far()
{
	bool found = false;
	for (member *m : far_)
		found |= serve_far(*m);
	return found;
}

/// For an application's thread that polls.
void node::poll_far()
{
	std::uint32_t before = far_reads_;
	for (std::size_t n = std::min(far_.size(), polled_each); n; n--) {
		if (far_next_ >= far_.size())
			far_next_ = 0;
		serve_far(*far_[far_next_++]);
	}
	if (far_reads_ != before && sleeps_ && !std::exchange(brief_, true))
		kick();
}

void node::send_answers(bool last)
{
	node_hold held{lock_, std::try_to_lock};
	for (int i = 0; i < tries_most && !held; i++) {
		wanted_.store(true, std::memory_order_relaxed);
		std::this_thread::sleep_for(100us);
		held.try_lock();
	}
	wanted_.store(false, std::memory_order_relaxed);
	if (!held)
		return;
	ending_ |= last;
	for (auto &[number, m] : members_) {
		m->pair->answers_wait = may_wait(*m);
		if (m->far)
			m->pair->tell();
	}
}

} // namespace coop::ntrdma
