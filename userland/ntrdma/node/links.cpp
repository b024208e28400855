// SPDX-License-Identifier: MIT
// links.cpp - how links come up and end: calls, greetings, signs of life.
//
// Everything here runs on the node's thread, under the lock. Of two queue pairs the one with the
// higher number calls. A link that failed is over until its queue pair is reset; one that never
// came up is tried again and again, as long as the queue pair names its peer. One that names itself
// calls nobody.
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "userland/include/coop/backlog.hpp"
#include "userland/ntrdma/node/node.hpp"
#include "userland/ntrdma/window/descriptors.hpp"

namespace coop::ntrdma
{

namespace
{

using namespace std::chrono_literals;

constexpr auto call_again = 50ms;
constexpr auto listen_again = 50ms; // after a lack of descriptors
constexpr std::size_t callers_most = 4096;

unique_fd life_of(pid_t process)
{
	return unique_fd{static_cast<int>(syscall(SYS_pidfd_open, process, 0))};
}

greeting make(greeting_kind kind, const queue_pair &pair, std::uint64_t *probe, bool pulls)
{
	if (!*probe) [[maybe_unused]]
		ssize_t n = getrandom(probe, sizeof(*probe), 0);
	greeting g = new_greeting(kind);
	g.from = pair.options().number;
	g.to = pair.peer;
	g.probe_at = reinterpret_cast<std::uintptr_t>(probe);
	g.probe_value = *probe;
	g.pulls = pulls;
	return g;
}

bool names_its_peer(pair_state s)
{
	return s == pair_state::ready || s == pair_state::sends;
}

} // namespace

/// The peer was not ready, or is on its way out: begins again. Time goes on, so that a peer that
/// answers and never gets ready ends what is outstanding, too.
void node::begin_again(member &m, link_stage stage, ticks now)
{
	ticks since = m.since;
	end_link(m, stage);
	m.since = since;
	m.asking = true;
	m.asked = now;
}

void node::end_link(member &m, link_stage next)
{
	m.pair->detach();
	end_far(m);
	unwatch(m.socket);
	unwatch(m.port ? m.port->life() : m.life);
	m.port.reset();
	m.memory.reset();
	m.socket = unique_fd{};
	m.bell = unique_fd{};
	m.life = unique_fd{};
	m.asking = false;
	m.stage = next;
	m.since = {};
}

void node::tend(ticks now)
{
	if (address_news_.take() && addresses_change_)
		addresses_change_(this);
	accept_callers(now);
	hear_callers(now);
	accept_far(now);
	hear_far_callers(now);
	for (auto &[number, m] : members_)
		tend(*m, now);
}

void node::tend(member &m, ticks now)
{
	queue_pair &pair = *m.pair;
	if (pair.wants_detach())
		return end_link(m, link_stage::over);
	if (m.stage == link_stage::down || m.stage == link_stage::over)
		return;
	if (m.stage != link_stage::up && !names_its_peer(pair.state()))
		return end_link(m, link_stage::over);
	if (m.since == ticks{})
		m.since = now;
	switch (m.stage) {
	case link_stage::calling:
		if (m.by_tcp)
			call_far(m, now);
		else if (pair.peer == pair.options().number)
			join_itself(m, now);
		else if (!m.asking || now - m.asked >= call_again)
			call_peer(m, now);
		break;
	case link_stage::greeting:
	case link_stage::welcomed:
		// A child of a dead peer may hold its socket open, here and below.
		if (m.by_tcp)
			hear_far(m, now);
		else if (has_ended(m.life.get()))
			begin_again(m,
				    m.stage == link_stage::welcomed ? link_stage::awaiting
								    : link_stage::calling,
				    now);
		else
			hear(m, now);
		break;
	case link_stage::up:
		if (m.lost)
			return end_lost(m);
		if (m.port && has_ended(m.port->life().get())) {
			pair.peer_gone();
			return end_link(m, link_stage::over);
		}
		if (m.port && m.socket)
			hear(m, now);
		if (m.stage == link_stage::up)
			beat(m, now);
		break;
	default:
		break;
	}
	// A peer that never came: the time counts from when something began to wait for it.
	if (m.stage == link_stage::up || m.stage == link_stage::over)
		return;
	if (!pair.sends_outstanding())
		m.since = now;
	else if (now - m.since > bound_) {
		pair.peer_gone();
		end_link(m, link_stage::over);
	}
}

/// Asks for a sign of life while something is outstanding, and ends the link if none comes.
void node::beat(member &m, ticks now)
{
	if (m.asking) {
		if (m.pair->answered())
			m.asking = false;
		else if (now - m.asked > bound_) {
			m.pair->peer_gone();
			return end_link(m, link_stage::over);
		}
	} else if (m.pair->outstanding() && now - m.asked > bound_ / 4) {
		m.asking = true;
		m.asked = now;
		m.pair->ask();
	}
}

void node::call_peer(member &m, ticks now)
{
	m.asking = true;
	m.asked = now;
	if (m.pair->peer >> slot_shift == 0)
		return;
	unique_fd socket = call(slot_name(m.pair->peer >> slot_shift));
	if (!socket)
		return;
	unique_fd memory;
	try {
		m.memory = window::create(&memory);
	} catch (const std::system_error &) {
		return; // out of descriptors or memory: tried again
	}
	m.peer = process_behind(socket.get());
	m.life = life_of(m.peer);
	int fds[] = {memory.get(), bell_.get()};
	if (!m.life ||
	    !send_greeting(socket.get(), make(greeting_kind::hello, *m.pair, &m.probe, false), fds))
		return;
	m.socket = std::move(socket);
	watch(m.socket.get());
	watch(m.life.get());
	m.asking = false;
	m.stage = link_stage::greeting;
}

/// Reads what the peer of a link sends on its socket: greetings, or that it hung up.
void node::hear(member &m, ticks now)
{
	greeting g;
	std::vector<unique_fd> fds;
	int rc = receive_greeting(m.socket.get(), &g, &fds);
	if (!rc)
		return;
	bool called = m.stage == link_stage::welcomed;
	if (m.stage == link_stage::up) {
		// Nothing is said any more: it hung up, or breaks the protocol.
		m.pair->peer_gone();
		return end_link(m, link_stage::over);
	}
	if (rc == -EPROTO)
		tell_of_version("process " + std::to_string(m.peer));
	bool fits = rc > 0 && g.from == m.pair->peer && g.to == m.pair->options().number &&
		    g.kind == (called ? greeting_kind::start : greeting_kind::welcome) &&
		    fds.size() == (called ? 0 : 1);
	if (!fits) {
		// It has no such queue pair yet, or is on its way out.
		return begin_again(m, called ? link_stage::awaiting : link_stage::calling, now);
	}
	bool pulls = g.pulls;
	if (!called) {
		if (!take_bell(fds[0]))
			return begin_again(m, link_stage::calling, now);
		m.bell = std::move(fds[0]);
		m.sign = {g.probe_at, g.probe_value};
		pulls = pulls && may_pull_ && can_read(m.peer, g.probe_at, g.probe_value);
		if (!send_greeting(m.socket.get(),
				   make(greeting_kind::start, *m.pair, &m.probe, pulls), {}))
			return begin_again(m, link_stage::calling, now);
	}
	bring_up(m, called, !called, pulls, now);
}

/// A queue pair that is its own peer writes one half and reads the same: each index of it has one
/// writer all the same, since no index belongs to both roles.
void node::join_itself(member &m, ticks now)
{
	unique_fd memory;
	try {
		m.memory = window::create(&memory);
	} catch (const std::system_error &) {
		return; // out of descriptors or memory: tried again
	}
	m.peer = getpid();
	m.life = life_of(m.peer);
	m.bell = unique_fd{fcntl(bell_.get(), F_DUPFD_CLOEXEC, 0)};
	m.sign = {};
	if (!m.life || !m.bell)
		return;
	watch(m.life.get());
	std::uint64_t seen = 1;
	bool pulls = may_pull_ && can_read(m.peer, reinterpret_cast<std::uintptr_t>(&seen), seen);
	bring_up(m, 0, 0, pulls, now);
}

void node::bring_up(member &m, unsigned side, unsigned other, bool pulls, ticks now)
{
	m.stage = link_stage::up;
	m.since = m.asked = now;
	m.asking = false;
	m.port = std::make_unique<window_port>(
		std::move(m.memory), side, other, std::move(m.bell), m.peer, std::move(m.life),
		pulls,
		[this] {
			changed_ = true;
			kick();
		},
		m.sign);
	m.pair->attach(*m.port);
}

void node::accept_callers(ticks now)
{
	if (deaf_ && now - deaf_since_ < listen_again)
		return;
	if (std::exchange(deaf_, false))
		watch(listener_.get());
	for (;;) {
		bool full = callers_.size() >= callers_most;
		unique_fd fd{full ? -1
				  : accept4(listener_.get(), nullptr, nullptr,
					    SOCK_CLOEXEC | SOCK_NONBLOCK)};
		if (!fd) {
			// The set would report a caller that cannot be accepted for ever.
			if (full || keeps_callers_waiting(errno)) {
				unwatch(listener_);
				deaf_ = true;
				deaf_since_ = now;
			}
			return;
		}
		pid_t process = process_behind(fd.get());
		if (!process)
			continue;
		watch(fd.get());
		caller c;
		c.socket = std::move(fd);
		c.process = process;
		c.since = now;
		callers_.push_back(std::move(c));
	}
}

std::list<node::caller>::iterator node::drop(std::list<caller>::iterator c)
{
	unwatch(c->socket);
	return callers_.erase(c);
}

void node::hear_callers(ticks now)
{
	for (auto c = callers_.begin(); c != callers_.end();) {
		if (!c->said) {
			int rc = receive_greeting(c->socket.get(), &c->hello, &c->fds);
			if (!rc) {
				c = now - c->since > bound_ ? drop(c) : std::next(c);
				continue;
			}
			// One that asks for `coop-verbs info` wants no link.
			if (rc == -EPROTO && c->hello.kind != greeting_kind::ask) {
				tell_of_version("process " + std::to_string(c->process));
				send_greeting(c->socket.get(), new_greeting(greeting_kind::refuse),
					      {});
			}
			bool fits = rc > 0 && c->hello.kind == greeting_kind::hello &&
				    c->fds.size() == 2 && take_bell(c->fds[1]);
			if (rc > 0 && c->hello.kind == greeting_kind::ask) {
				std::string text = describe();
				[[maybe_unused]] ssize_t n = send(c->socket.get(), text.data(),
								  text.size(), MSG_NOSIGNAL);
			}
			if (!fits) {
				c = drop(c);
				continue;
			}
			c->said = true;
		}
		auto m = members_.find(c->hello.to);
		char byte;
		bool hung_up = recv(c->socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
		if (m == members_.end() || hung_up) {
			c = drop(c);
			continue;
		}
		member &to = *m->second;
		if (to.stage == link_stage::awaiting && names_its_peer(to.pair->state()) &&
		    to.pair->peer == c->hello.from) {
			answer_call(to, *c);
			c = drop(c);
		} else {
			++c; // it may get ready, or the caller hangs up
		}
	}
}

void node::answer_call(member &m, caller &c)
{
	m.memory = window::map(c.fds[0].get());
	m.life = life_of(c.process);
	if (!m.memory || !m.life)
		return;
	m.peer = c.process;
	m.bell = std::move(c.fds[1]);
	m.sign = {c.hello.probe_at, c.hello.probe_value};
	bool pulls = may_pull_ && can_read(m.peer, c.hello.probe_at, c.hello.probe_value);
	int fd = bell_.get();
	if (!send_greeting(c.socket.get(), make(greeting_kind::welcome, *m.pair, &m.probe, pulls),
			   {&fd, 1}))
		return;
	m.socket = std::move(c.socket);
	watch(m.life.get());
	m.stage = link_stage::welcomed;
}

} // namespace coop::ntrdma
