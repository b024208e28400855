// SPDX-License-Identifier: MIT
// peer_rails.cpp - see peer_rails.hpp.
#include "peer_rails.hpp"

#include <algorithm>

#include "rpc/base/addr.h"

namespace coop::net::ud
{

namespace
{

constexpr std::uint64_t shortest_rail_pause_us = 250000, longest_rail_pause_us = 16000000;
constexpr std::uint64_t not_again = ~0ull; // until the answer has come
// A peer's path is kept while messages come over it that often.
constexpr std::uint64_t path_quiet_us = 300000;
constexpr std::uint32_t timeouts_a_path = 2;

std::uint64_t pause_after(std::uint32_t failures)
{
	return std::min(shortest_rail_pause_us << std::min(failures, 8u), longest_rail_pause_us);
}

// Another host than the one at `first`, which a question may be sent to.
bool is_host(std::uint32_t ip, std::uint32_t first)
{
	return ip >> 24 != 0 && ip >> 28 < 14 && ip != first;
}

// Whether the answer of this host names queue pairs of its own.
bool names_itself(const coop_addr &a, std::uint32_t ip)
{
	return ip && coop_addr_valid(&a) && ipv4_of(a.gid) == ip;
}

} // namespace

// ---- what is known -----------------------------------------------------------------

void peer_rails::want(spi::peer_number n, std::uint64_t now)
{
	if (size() == 1 || !peers_.used(n) || peers_[n].self)
		return;
	if (n >= known_.size())
		known_.resize(n + 1);
	if (!known_[n])
		known_[n] = std::make_unique<known>();
	known &k = *known_[n];
	if (!k.listed) {
		if (now < k.ask_at || at_[0]->busy())
			return;
		k.ask_at = not_again;
		at_[0]->list(n, peers_[n].who, now);
		return;
	}
	for (unsigned i = 1; i < size(); i++) {
		one &r = k.rails[i];
		if (!r.ip || (r.proven && !r.fails) || now < r.ask_at || at_[i]->crowded())
			continue;
		r.ask_at = not_again;
		at_[i]->ask(n, peers_[n].who, r.ip, now);
	}
}

void peer_rails::listed(known &k, const resolver::result &r, std::uint64_t now)
{
	if (r.status) {
		k.ask_at = now + pause_after(2 + k.tries++);
		return;
	}
	k.listed = true;
	k.tries = 0;
	if (k.instance != r.instance)
		drop_rails(r.number);
	k.instance = r.instance;
	k.messages = r.rails.messages;
	const auto &ip = r.rails.ip;
	for (unsigned i = 0; i < r.rails.size; i++) {
		const auto here = ip.begin() + i;
		if (is_host(ip[i], peers_[r.number].who.ip) &&
		    std::find(ip.begin(), here, ip[i]) == here)
			k.rails[i + 1].ip = ip[i];
	}
}

void peer_rails::heard(unsigned rail, const resolver::result &r, std::uint64_t now)
{
	known *k = of(r.number);
	if (!k)
		return;
	if (rail == 0) {
		listed(*k, r, now);
		want(r.number, now);
		return;
	}
	one &o = k->rails[rail];
	if (!r.status && r.instance != k->instance) { // it has restarted
		k->listed = false;
		k->ask_at = now;
	}
	if (r.status || !k->listed || !names_itself(r.where.command, o.ip)) {
		o.ask_at = now + pause_after(o.failures++);
		return;
	}
	if (o.proven)
		leave(senders_, o.where, r.number);
	o.proven = true;
	o.fails = false;
	o.where = r.where;
	enter(senders_, o.where, r.number, rail);
}

void peer_rails::restarted(spi::peer_number n)
{
	if (known *k = of(n)) {
		k->listed = false;
		k->ask_at = 0;
	}
}

void peer_rails::forget(spi::peer_number n)
{
	if (!of(n))
		return;
	drop_rails(n);
	at_[0]->forget_list(n);
	known_[n].reset();
}

void peer_rails::drop_rails(spi::peer_number n)
{
	known &k = *of(n);
	set_path(n, 0);
	for (unsigned i = 1; i < size(); i++) {
		at_[i]->forget(n);
		if (k.rails[i].proven)
			leave(senders_, k.rails[i].where, n);
	}
	k.rails = {};
}

// ---- bulk --------------------------------------------------------------------------

bool peer_rails::works(const known &k, unsigned rail) const
{
	return !(lost_ >> rail & 1) && k.rails[rail].proven && !k.rails[rail].fails;
}

bool peer_rails::several(spi::peer_number n) const
{
	const known *k = of(n);
	for (unsigned i = 1; k && i < size(); i++)
		if (works(*k, i))
			return true;
	return false;
}

bool peer_rails::usable(spi::peer_number n, unsigned rail, std::uint64_t now) const
{
	const known *k = of(n);
	if (rail)
		return k && works(*k, rail);
	return !k || (now >= k->rails[0].ask_at && !(lost_ & 1)) || !several(n);
}

bool peer_rails::believable(spi::peer_number n, unsigned rail, const coop_addr &from) const
{
	const coop_chan_peer_addr *a = at(n, rail);
	return a && coop_addr_same_port(&a->command, &from) && a->command.lid == from.lid;
}

void peer_rails::worked(spi::peer_number n, unsigned rail)
{
	if (known *k = of(n))
		k->rails[rail].failures = 0;
}

void peer_rails::failed(spi::peer_number n, unsigned rail, std::uint64_t now)
{
	known *k = of(n);
	if (!k)
		return;
	one &r = k->rails[rail];
	if (rail ? r.fails : now < r.ask_at)
		return; // several requests fail at a time
	r.fails = true;
	r.ask_at = now + pause_after(r.failures++);
}

// ---- messages ----------------------------------------------------------------------

peer_rails::queue_pair peer_rails::pair_of(const coop_addr &a)
{
	queue_pair q{{}, a.lid, a.qpn};
	std::copy(std::begin(a.gid), std::end(a.gid), q.gid.begin());
	return q;
}

void peer_rails::enter(places &p, const coop_chan_peer_addr &a, spi::peer_number n, unsigned rail)
{
	queue_pair q = pair_of(a.command);
	p[q] = {n, rail, false};
	q.qpn = a.data_qpn;
	p[q] = {n, rail, true};
}

void peer_rails::leave(places &p, const coop_chan_peer_addr &a, spi::peer_number n)
{
	queue_pair q = pair_of(a.command);
	for (const std::uint32_t qpn : {a.command.qpn, a.data_qpn}) {
		q.qpn = qpn;
		if (const auto it = p.find(q); it != p.end() && it->second.n == n)
			p.erase(it);
	}
}

void peer_rails::set_path(spi::peer_number n, unsigned rail)
{
	known &k = *of(n);
	if (k.path == rail)
		return;
	k.path = rail;
	std::erase_if(redirected_, [n](const auto &e) { return e.second.n == n; });
	if (rail)
		enter(redirected_, peers_[n].addr, n, rail);
}

unsigned peer_rails::redirect(coop_addr &to) const
{
	const auto it = redirected_.find(pair_of(to));
	if (it == redirected_.end())
		return 0;
	const place &p = it->second;
	const coop_chan_peer_addr *there = at(p.n, p.rail);
	if (!there)
		return 0;
	to = there->command;
	if (p.data) {
		to.qpn = there->data_qpn;
		to.qkey = there->data_qkey;
	}
	return p.rail;
}

bool peer_rails::arrived(unsigned rail, coop_addr &from, std::uint64_t now)
{
	const places &all = rail ? senders_ : redirected_;
	const auto it = all.find(pair_of(from));
	if (it == all.end() || (rail && it->second.rail != rail))
		return rail == 0;
	const place p = it->second;
	if (!peers_[p.n].resolved || !of(p.n)->messages)
		return rail == 0;
	follow(p.n, rail, now);
	if (rail) {
		const coop_chan_peer_addr &first = peers_[p.n].addr;
		from = first.command;
		from.qpn = p.data ? first.data_qpn : first.command.qpn;
		from.qkey = 0;
	}
	return true;
}

// The peer has chosen this rail, unless what came over it is late.
void peer_rails::follow(spi::peer_number n, unsigned rail, std::uint64_t now)
{
	known &k = *of(n);
	k.rails[rail].heard_at = now;
	if (rail == k.path)
		return;
	const bool late = k.path && now - k.rails[k.path].heard_at < path_quiet_us;
	if (!late && !((lost_ | no_path_) >> rail & 1))
		set_path(n, rail);
}

void peer_rails::silent(spi::peer_number n, std::uint32_t timeouts)
{
	known *k = of(n);
	if (!k || !k->messages)
		return;
	if (timeouts < k->timeouts)
		k->timeouts = 0; // it has answered since
	if (timeouts < k->timeouts + timeouts_a_path)
		return;
	k->timeouts = timeouts;
	for (unsigned i = 1; i < size(); i++) {
		const unsigned rail = (k->path + i) % size();
		if ((lost_ | no_path_) >> rail & 1 || (rail && !k->rails[rail].proven))
			continue;
		set_path(n, rail);
		return;
	}
}

} // namespace coop::net::ud
