// SPDX-License-Identifier: MIT
// peers.cpp - see peers.hpp.
#include "peers.hpp"

#include <algorithm>
#include <cerrno>

namespace coop::net::ud
{

namespace
{

bool same_place(const coop_chan_peer_addr &a, const coop_chan_peer_addr &b)
{
	return coop_addr_same(&a.command, &b.command) && a.command.lid == b.command.lid;
}

} // namespace

peers::peers(const options &o, identity own, const address &where, message_engine &c, resolver &r,
	     spi::sink &s) :
	options_(o),
	own_(own),
	own_address_(where),
	chan_(c),
	resolver_(r),
	sink_(s)
{
}

// ---- the core's numbers ----------------------------------------------------------

void peers::set_up(spi::peer_number n, const address &a)
{
	if (n >= all_.size())
		all_.resize(n + 1);
	peer &p = all_[n];
	p.used = true;
	p.where = a;
	p.who = identity::of(a);
	p.self = p.who == own_;
}

int peers::open(spi::peer_number n, const address &a)
{
	if (a.kind != address::form::lnet)
		return -EINVAL;
	// There is no router: each network is by itself.
	if (a.net != own_address_.net || a.instance != own_address_.instance)
		return -EHOSTUNREACH;
	set_up(n, a);
	return 0;
}

void peers::close(spi::peer_number n, std::uint64_t now)
{
	peer &p = all_[n];
	resolver_.forget(n);
	end_session(n, now);
	if (p.active)
		unwatch(n);
	active_ -= p.active;
	p = {};
}

spi::peer_number peers::number_of(identity who)
{
	const address where = who.on(own_address_);
	const spi::peer_number n = sink_.peer(where);
	if (n == spi::no_peer)
		return n;
	if (!used(n))
		set_up(n, where);
	all_[n].held = true;
	return n;
}

void peers::hold(spi::peer_number n)
{
	if (all_[n].held)
		return;
	const address a = all_[n].where;
	all_[n].held = sink_.peer(a) == n;
}

void peers::unhold(spi::peer_number n)
{
	if (std::exchange(all_[n].held, false))
		sink_.release(n); // peer_close() comes later if that was the last
}

// ---- addresses -------------------------------------------------------------------

bool peers::believable(identity who, const coop_addr &from)
{
	return who.ip && ipv4_of(from.gid) == who.ip;
}

// The packets of soft RoCE prove the host. On a device the answer of the machine's UDP socket
// proves the address, once it has come.
bool peers::believable(spi::peer_number n, const coop_addr &from) const
{
	const peer &p = all_[n];
	if (!options_.verbs)
		return believable(p.who, from);
	const coop_addr &known = p.addr.command;
	return !known.qpn || (from.lid == known.lid &&
			      std::equal(std::begin(from.gid), std::end(from.gid), known.gid));
}

bool peers::is_at(spi::peer_number n, std::uint32_t chan) const
{
	coop_chan_peer_info info;
	return ready(n) && chan_.info(chan, info) &&
	       coop_addr_same(&all_[n].addr.command, &info.addr.command);
}

peers::change peers::resolved(const resolver::result &r, std::uint64_t now)
{
	const spi::peer_number n = r.number;
	if (!used(n))
		return {};
	change c;
	// The peer may have opened a session elsewhere since. If that is the place of the answer,
	// it goes on.
	peer &p = all_[n];
	if (!r.status)
		(void)place_of_session(n, p.addr);
	const bool there = !r.status && p.chan && same_place(p.addr, r.where) &&
			   (!p.instance || p.instance == r.instance);
	if (!there && p.doubt > doubt::restarted)
		end_session(n, now);
	if (p.resolved) { // it was silent, or is doubted
		if (r.status == -ECONNREFUSED || (r.status && !p.chan)) {
			leave(n, now);
			return {-ECONNRESET, true, r.status};
		}
		if (r.status || there) {
			if (there) {
				p.instance = r.instance;
				p.doubt = doubt::none;
			}
			return {0, true, ready(n) ? 0 : r.status};
		}
		// Another machine has its address: operations under way were for the former. The
		// same one has moved, and they go on.
		if (!p.instance || p.instance != r.instance) {
			leave(n, now);
			c.lost = -ENOENT;
		}
	}
	c.status = r.status ? r.status : claim(n, r.where, now);
	if (c.status == -EAGAIN)
		return {c.lost, false, 0};
	c.settled = true;
	p.claims = false;
	if (!c.status)
		c.status = connect(n, r.where, now);
	if (!c.status) {
		p.instance = r.instance;
		p.doubt = doubt::none;
	} else if (p.resolved) { // it has moved to where it cannot be reached
		leave(n, now);
		c.lost = c.status;
	} else if (!p.chan) {
		unhold(n); // the machine that a message named is not there
	}
	return c;
}

// ---- claims ----------------------------------------------------------------------

// Who has a session with this queue pair; no_peer: none, or a stranger.
spi::peer_number peers::holder(const coop_addr &place) const
{
	const auto i = places_.find(place);
	if (i == places_.end() || !used(i->second))
		return spi::no_peer;
	const peer &p = all_[i->second];
	return p.chan && coop_addr_same(&p.addr.command, &place) ? i->second : spi::no_peer;
}

// The answer of a peer names this place. 0: it is not another's; -EAGAIN: another may be there, and
// is asked, then the peer again; -EHOSTUNREACH: it cannot be there.
int peers::claim(spi::peer_number n, const coop_chan_peer_addr &where, std::uint64_t now)
{
	peer &p = all_[n];
	if (options_.fixed_places() && !believable(p.who, where.command))
		return -EHOSTUNREACH;
	const spi::peer_number other = holder(where.command);
	if (other == spi::no_peer || other == n)
		return 0;
	peer &o = all_[other];
	if (o.speaker == p.who) {
		o.doubt = doubt::spoken;
		end_session(other, now);
		ask(other, now); // what is under way with it goes on elsewhere, or ends
		return 0;
	}
	if (o.doubt == doubt::none && p.claims)
		return -EHOSTUNREACH; // the other has just answered that it is there
	p.claims = true;
	o.doubt = std::max(o.doubt, doubt::claimed);
	ask(other, now);
	resolver_.ask_later(n, p.who, now);
	return -EAGAIN;
}

void peers::contradicted(spi::peer_number n, identity speaker, std::uint64_t now)
{
	peer &p = all_[n];
	p.doubt = doubt::spoken;
	p.speaker = speaker;
	ask(n, now);
}

// ---- sessions --------------------------------------------------------------------

// Opens a session with a peer at this address. 0 or -errno.
int peers::connect(spi::peer_number n, const coop_chan_peer_addr &where, std::uint64_t now)
{
	peer &p = all_[n];
	// If it has moved: rpc/chan knows queue pairs by number, and would go on sending to the old
	// port until the peer opens a session.
	if (p.chan && !same_place(p.addr, where))
		end_session(n, now);
	std::int64_t id;
	do
		id = chan_.open(where, n, p.who, now);
	while (id == -ENOSPC && evict(now, 0));
	if (id <= 0)
		return id == -ENOSPC ? -ENOBUFS : -EHOSTUNREACH;
	p.chan = static_cast<std::uint32_t>(id);
	sessions_.own(p.session, p.chan, n, !p.active);
	p.addr = where;
	places_[where.command] = n;
	p.resolved = true;
	hold(n);
	return 0;
}

// Where rpc/chan sends what is for it. False, and no change: it has no session.
bool peers::place_of_session(spi::peer_number n, coop_chan_peer_addr &out) const
{
	coop_chan_peer_info info;
	if (!all_[n].chan || !chan_.info(all_[n].chan, info))
		return false;
	out = info.addr;
	return true;
}

// On a device only the answer of its UDP socket proves where it is: see believable(). Without
// operations under way there is time until something is to be sent.
void peers::restarted(spi::peer_number n, std::uint64_t now)
{
	peer &p = all_[n];
	p.instance = 0;
	coop_chan_peer_addr there;
	const bool moved = place_of_session(n, there) && !same_place(p.addr, there);
	if (moved && options_.fixed_places())
		p.addr = there;
	if (options_.fixed_places())
		return;
	p.doubt = std::max(p.doubt, doubt::restarted);
	if (moved || p.active)
		ask(n, now);
}

void peers::adopt(spi::peer_number n, std::uint32_t chan, std::uint64_t now)
{
	coop_chan_peer_info info;
	if (!chan_.info(chan, info))
		return;
	peer &p = all_[n];
	// The number may have outlived the machine that the last answer was about.
	if (!p.resolved || !same_place(p.addr, info.addr))
		p.instance = 0;
	const spi::peer_number other = holder(info.addr.command);
	if (other != spi::no_peer && other != n) {
		contradicted(other, p.who, now);
		end_session(other, now);
	}
	const std::uint32_t old = std::exchange(p.chan, chan);
	sessions_.own(p.session, chan, n, !p.active);
	p.addr = info.addr;
	places_[info.addr.command] = n;
	p.resolved = true;
	p.doubt = doubt::none;
	chan_.admit(chan, n, p.who);
	if (old && old != chan)
		chan_.close(old, now);
	resolver_.forget(n);
}

void peers::appeared(const coop_chan_ev &ev, std::uint64_t now)
{
	const std::uint32_t open = chan_.sessions();
	// Keep room for the next one: rpc/chan does not report peers that it refuses for lack of
	// it.
	if (open + spare >= options_.peers)
		(void)evict(now, open < options_.peers ? ev.peer : 0);
	coop_chan_peer_info info;
	// It may be a peer's since the event was written.
	if (chan_.info(ev.peer, info) && !info.cookie)
		sessions_.add_stranger(ev.peer);
}

// -ETIMEDOUT is for the deadlines of operations.
int peers::died(spi::peer_number n, const coop_chan_ev &ev)
{
	peer &p = all_[n];
	p.death = ev.why == COOP_CHAN_WHY_SILENT      ? -EHOSTDOWN
		  : ev.why == COOP_CHAN_WHY_DATA_PATH ? -ECOMM
						      : ev.err;
	p.resolved = false;
	p.doubt = doubt::none;
	unhold(n);
	return p.death; // also of its messages, whose ends follow
}

// The machine that had this number is not there any more.
void peers::leave(spi::peer_number n, std::uint64_t now)
{
	peer &p = all_[n];
	p.resolved = false;
	end_session(n, now);
	p.doubt = doubt::none;
	p.claims = false;
	unhold(n);
}

// Its messages end with -ECONNRESET. A session from which another machine speaks is not the peer's:
// it becomes a stranger's.
void peers::end_session(spi::peer_number n, std::uint64_t now)
{
	peer &p = all_[n];
	sessions_.drop(p.session);
	p.speaker = {};
	const std::uint32_t chan = std::exchange(p.chan, 0);
	if (!chan)
		return;
	if (const auto i = places_.find(p.addr.command); i != places_.end() && i->second == n)
		places_.erase(i);
	if (p.doubt != doubt::spoken) {
		chan_.close(chan, now);
		return;
	}
	chan_.admit(chan, spi::no_peer, {});
	sessions_.add_stranger(chan);
}

void peers::reconnect(std::uint64_t now)
{
	for (spi::peer_number n = 0; n < all_.size(); n++) {
		peer &p = all_[n];
		if (!p.used || !p.chan)
			continue;
		sessions_.drop(p.session);
		chan_.close(std::exchange(p.chan, 0), now);
		// One that was dead has been asked for, and operations wait for its answer.
		if (p.resolved)
			p.resolved = connect(n, coop_chan_peer_addr(p.addr), now) == 0;
	}
}

// Ends the session that has been idle for longest; but not `spared`, and none for which rpc/chan
// has something to do, whatever peer that is for. False: there is none.
bool peers::evict(std::uint64_t now, std::uint32_t spared)
{
	for (unsigned looks = 0; looks < evict_looks; looks++) {
		const sessions::session s = sessions_.oldest();
		if (!s.chan || s.chan == spared)
			return false;
		coop_chan_peer_info info;
		if (chan_.info(s.chan, info) && (info.in_flight || info.queued)) {
			sessions_.pass_oldest();
			continue;
		}
		(void)sessions_.take_oldest();
		if (s.peer != spi::no_peer) { // else it never named its machine
			peer &p = all_[s.peer];
			p.session = 0;
			p.chan = 0;
			p.resolved = false;
			p.doubt = doubt::none;
			places_.erase(p.addr.command);
		}
		chan_.close(s.chan, now);
		if (s.peer != spi::no_peer)
			unhold(s.peer);
		return true;
	}
	return false;
}

// ---- operations under way --------------------------------------------------------

void peers::began(spi::peer_number n, std::uint64_t now)
{
	peer &p = all_[n];
	if (active_++ == 0)
		watch_at_ = now + watch_every_us;
	if (p.active++)
		return;
	watched_.join(
		n, [this](auto m) -> auto & { return all_[m].watched_at; });
	sessions_.busy(p.session);
}

void peers::ended(spi::peer_number n)
{
	peer &p = all_[n];
	if (!p.active)
		return; // the number has been reused
	active_--;
	if (--p.active)
		return;
	unwatch(n);
	sessions_.idle(p.session);
}

// The resolver says at once if a machine is gone or has restarted.
void peers::watch(std::uint64_t now)
{
	watch_at_ = now + watch_every_us;
	for (const spi::peer_number n : watched_) {
		coop_chan_peer_info info;
		if (all_[n].resolved && chan_.info(all_[n].chan, info) && info.tries >= 2)
			ask(n, now);
	}
}

void peers::probe(spi::peer_number n, bool whole, std::uint64_t now)
{
	coop_chan_msg m{all_[n].chan, COOP_CHAN_PROBE, ~0u, 0, 0};
	if (whole) {
		m.flags |= COOP_CHAN_BY_DATA;
		m.length = chan_.unit();
	}
	std::uint32_t id;
	(void)chan_.send(m, now, id);
}

} // namespace coop::net::ud
