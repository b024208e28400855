// SPDX-License-Identifier: MIT
// machine_peers.cpp - peers of a machine: their addresses and sessions.
//
// A peer is asked for its queue pairs when something is to be sent to it for the first time,
// or again after it was dead. A peer that speaks first is known by its tag and needs no
// question where its packets tell its host; a device's do not, so there its host is asked
// whether that is the machine. A session at rpc/chan is kept, by a hold on the peer's number,
// until the peer is dead or another needs the place.
#include <algorithm>
#include <cerrno>

#include "machine.hpp"
#include "rpc/base/addr.h"

namespace coop::net::ud
{

machine::peer &machine::at(spi::peer_number n)
{
	if (n >= peers_.size())
		peers_.resize(n + 1);
	return peers_[n];
}

void machine::set_up(peer &p, const address &a)
{
	p.used = true;
	p.where = a;
	p.who = identity::of(a);
	p.self = p.who == own_;
}

int machine::peer_open(spi::peer_number n, const address &a)
{
	if (a.kind != address::form::lnet)
		return -EINVAL;
	// There is no router: each network is by itself.
	if (a.net != own_address_.net || a.instance != own_address_.instance)
		return -EHOSTUNREACH;
	set_up(at(n), a);
	return 0;
}

void machine::peer_close(spi::peer_number n)
{
	if (n >= peers_.size() || !peers_[n].used)
		return;
	peer &p = peers_[n];
	resolver_->forget(n);
	reader_->forget(n);
	for (const std::uint32_t index : p.waiting) { // they have ended before
		if (ops_[index].state == op_state::telling)
			telling_--;
		if (ops_[index].question)
			question_over(ops_[index], -ECANCELED);
		else if (ops_[index].result)
			remember(ops_[index], *ops_[index].result);
		release(index);
	}
	const std::uint32_t chan = p.chan;
	for (std::uint32_t i = p.bulk; i != none; i = ops_[i].after)
		ops_[i].under_way = false; // ends later, when the number may be another's
	sessions_.drop(p.session);
	if (p.active)
		unwatch(n);
	active_ -= p.active;
	p = peer{};
	if (chan && chan_) {
		const std::uint64_t now = now_us();
		(void)coop_chan_close(chan_, chan, now);
		drain(now);
	}
}

void machine::hold(spi::peer_number n)
{
	if (peers_[n].held)
		return;
	const address a = peers_[n].where;
	peers_[n].held = sink_.peer(a) == n;
}

void machine::unhold(spi::peer_number n)
{
	if (!std::exchange(peers_[n].held, false))
		return;
	sink_.release(n); // peer_close() comes later if that was the last
}

// Opens a session with a peer at this address. 0 or -errno.
int machine::connect(spi::peer_number n, const coop_chan_peer_addr &where, std::uint64_t now)
{
	peer &p = peers_[n];
	// It has moved: rpc/chan knows queue pairs by number, and would go on sending to the old
	// port.
	if (p.chan && (p.addr.command.lid != where.command.lid ||
		       !coop_addr_same(&p.addr.command, &where.command))) {
		sessions_.drop(p.session);
		(void)coop_chan_close(chan_, p.chan, now);
		p.chan = 0;
	}
	s64 id = coop_chan_open(chan_, &where, n + 1, now);
	while (id == -ENOSPC && evict(now, 0))
		id = coop_chan_open(chan_, &where, n + 1, now);
	if (id <= 0)
		return id == -ENOSPC ? -ENOBUFS : -EHOSTUNREACH;
	p.chan = static_cast<std::uint32_t>(id);
	sessions_.own(p.session, p.chan, n, !p.active);
	p.addr = where;
	p.resolved = true;
	hold(n);
	return 0;
}

// Whether somebody at `from` may be who he says. On soft RoCE his packets tell his host; on a
// device it is his machine's UDP socket that tells where he is, once it has been asked.
bool machine::believable(spi::peer_number n, identity who, const coop_addr &from) const
{
	if (!options_.verbs)
		return identity{static_cast<std::uint32_t>(from.gid[12] << 24 | from.gid[13] << 16 |
							   from.gid[14] << 8 | from.gid[15])}
			       .ip == who.ip;
	const peer &p = peers_[n];
	if (!p.addr.command.qpn)
		return true; // nobody knows better
	return from.lid == p.addr.command.lid &&
	       std::equal(std::begin(from.gid), std::end(from.gid), p.addr.command.gid);
}

// The same of a session.
bool machine::is_at(spi::peer_number n, std::uint32_t chan) const
{
	coop_chan_peer_info info;
	return peers_[n].resolved && coop_chan_peer_get(chan_, chan, &info) == 0 &&
	       coop_addr_same(&peers_[n].addr.command, &info.addr.command);
}

// A session that the peer began.
void machine::adopt(spi::peer_number n, std::uint32_t chan, std::uint64_t now)
{
	coop_chan_peer_info info;
	if (coop_chan_peer_get(chan_, chan, &info))
		return;
	peer &p = peers_[n];
	const std::uint32_t old = p.chan;
	p.chan = chan;
	sessions_.own(p.session, chan, n, !p.active);
	p.addr = info.addr;
	p.resolved = true;
	(void)coop_chan_set_cookie(chan_, chan, n + 1);
	if (old && old != chan)
		(void)coop_chan_close(chan_, old, now);
	resolver_->forget(n);
	wake_waiting(n, 0, now);
}

void machine::resolved(const resolver::result &r, std::uint64_t now)
{
	if (r.number >= peers_.size() || !peers_[r.number].used)
		return;
	peer &p = peers_[r.number];
	int status = r.status;
	if (p.resolved) { // it was asked because nothing was heard of it, or of a rival
		if (status == -ECONNREFUSED) {
			gone(r.number, -ECONNRESET, now);
			return;
		}
		const bool here = coop_addr_same(&p.addr.command, &r.where.command) &&
				  p.addr.command.lid == r.where.command.lid;
		if (status || (here && (!p.instance || p.instance == r.instance))) {
			if (!status)
				p.instance = r.instance;
			return;
		}
		// Another machine at its address: what was under way was for the former.
		gone(r.number, -ENOENT, now);
	}
	if (!status)
		status = connect(r.number, r.where, now);
	if (!status)
		peers_[r.number].instance = r.instance;
	wake_waiting(r.number, status, now);
	if (status && !peers_[r.number].chan)
		unhold(r.number); // who claimed to be there is not
}

// What waited for the address goes on, or ends.
void machine::wake_waiting(spi::peer_number n, int status, std::uint64_t now)
{
	std::vector<std::uint32_t> waiting;
	waiting.swap(peers_[n].waiting);
	for (const std::uint32_t index : waiting) {
		if (ops_[index].state == op_state::gone)
			release(index);
		else if (status && ops_[index].sending)
			told(index, status, now);
		else if (status)
			finish(index, status, 0);
		else
			go(index, now);
	}
}

// rpc/chan has given it up, and says why. -ETIMEDOUT is for the deadlines of operations.
void machine::died(spi::peer_number n, const coop_chan_ev &ev, std::uint64_t now)
{
	const int status = ev.why == COOP_CHAN_WHY_SILENT      ? -EHOSTDOWN
			   : ev.why == COOP_CHAN_WHY_DATA_PATH ? -ECOMM
							       : ev.err;
	peers_[n].death = status; // and of its messages, whose ends follow
	lost(n, status, now);
}

// As they stand now: what is done about one may end others.
std::vector<std::uint32_t> machine::bulk_with(spi::peer_number n) const
{
	std::vector<std::uint32_t> all;
	for (std::uint32_t i = peers_[n].bulk; i != none; i = ops_[i].after)
		all.push_back(i);
	return all;
}

// Asks whether it lives, or takes datagrams of full length. EV_PEER_DEAD tells if not.
void machine::probe(const peer &p, bool whole, std::uint64_t now)
{
	coop_chan_msg m{p.chan, COOP_CHAN_PROBE, none, 0, 0};
	if (whole) {
		m.flags |= COOP_CHAN_BY_DATA;
		m.length = coop_chan_unit(chan_);
	}
	std::uint32_t id;
	(void)coop_chan_send(chan_, &m, now, &id);
}

// It does not answer any more.
void machine::lost(spi::peer_number n, int status, std::uint64_t now)
{
	peers_[n].resolved = false;
	for (const std::uint32_t i : bulk_with(n))
		if (ops_[i].under_way && ops_[i].peer == n)
			cancel_bulk(i, status, now);
	unhold(n);
}

// Another session with it has begun: it may be another machine, which knows of no PUT.
void machine::restarted(spi::peer_number n, std::uint64_t now)
{
	peers_[n].instance = 0;
	for (const std::uint32_t i : bulk_with(n)) {
		op &o = ops_[i];
		if (o.under_way && o.peer == n && o.state == op_state::offered && !o.sending &&
		    !o.ending) {
			o.sending = true;
			go(i, now);
		}
	}
}

// The machine that we knew under this number is not there any more.
void machine::gone(spi::peer_number n, int status, std::uint64_t now)
{
	reader_->forget(n);
	const std::uint32_t chan = std::exchange(peers_[n].chan, 0);
	sessions_.drop(peers_[n].session);
	if (chan)
		(void)coop_chan_close(chan_, chan, now); // its messages end with -ECONNRESET
	lost(n, status, now);
}

void machine::count_active(spi::peer_number n, int by)
{
	peer &p = peers_[n];
	const auto d = static_cast<std::uint32_t>(by);
	if (by < 0 && !p.active)
		return; // the number is another's by now
	watch_soon();
	watched_.join(
		n, [this](auto m) -> auto & { return peers_[m].watched_at; });
	if (p.active == 0)
		sessions_.busy(p.session);
	p.active += d;
	active_ += d;
	if (p.active == 0) {
		unwatch(n);
		sessions_.idle(p.session);
	}
}

// Before there is the first to be watched.
void machine::watch_soon()
{
	if (!active_ && begun_.empty())
		watch_at_ = now_us() + watch_every_us;
}

// Ends the session with the peer that nothing has been under way with for longest; but not
// `spared`, and none that rpc/chan has something to do for, whoever it is for. False: there is
// none.
bool machine::evict(std::uint64_t now, std::uint32_t spared)
{
	sessions::session s;
	for (unsigned looks = 0;; looks++) {
		s = sessions_.oldest();
		if (!s.chan || s.chan == spared || looks == evict_looks)
			return false;
		coop_chan_peer_info info;
		if (coop_chan_peer_get(chan_, s.chan, &info) || !(info.in_flight || info.queued))
			break;
		sessions_.pass_oldest();
	}
	(void)sessions_.take_oldest();
	if (s.peer != spi::no_peer) { // else it never said who it is
		peers_[s.peer].session = 0;
		peers_[s.peer].chan = 0;
		peers_[s.peer].resolved = false;
	}
	(void)coop_chan_close(chan_, s.chan, now);
	if (s.peer != spi::no_peer)
		unhold(s.peer);
	return true;
}

} // namespace coop::net::ud
