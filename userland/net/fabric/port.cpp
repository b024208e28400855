// SPDX-License-Identifier: MIT
// port.cpp - which port of a peer to try next, and for how long.
#include "port.hpp"

namespace coop::net::fabric
{

namespace
{

bool is_unreachable(int error)
{
	return error == EHOSTUNREACH || error == ENETUNREACH;
}

} // namespace

void port::connect(link &l)
{
	auto s = make_search();
	s->ports = ports_of(l.address);
	s->left = (1u << s->ports.count) - 1;
	s->give_up = events_->now() + give_up_after;
	l.side = std::move(s);
	try_next(l);
}

// Tries the ports from `at` on, cyclically.
void port::try_next(link &l)
{
	search &s = static_cast<search &>(*l.side);
	for (; s.left; s.at = (s.at + 1) % s.ports.count) {
		const unsigned bit = 1u << s.at;
		if (!(s.left & bit))
			continue;
		const int r = attempt(l);
		if (r == -FI_ENODEV && device_gone()) {
			events_->broken(r);
			break;
		}
		if (r == 0)
			return try_until(l, s.left == bit ? never
							  : events_->now() + give_up_after / 4);
		s.unreachable |= is_unreachable(-r);
		s.left &= ~bit;
	}
	give_up(l);
}

// The attempt ends at `when`, or when the peer has to be given up.
void port::try_until(link &l, time_point when)
{
	end_attempt(l);
	l.side->turn = std::min(l.side->give_up, when);
	connecting_.emplace(l.side->turn, &l);
}

void port::refused(link &l, int error)
{
	search &s = static_cast<search &>(*l.side);
	s.unreachable |= is_unreachable(error);
	s.left &= ~(1u << s.at);
	try_next(l);
}

void port::give_up(link &l)
{
	const int status =
		static_cast<search &>(*l.side).unreachable ? -EHOSTUNREACH : -ECONNREFUSED;
	abandon(l);
	end_attempt(l);
	events_->unlinked(l, status);
}

void port::repeat_attempts()
{
	for (const auto &[turn, l] : std::set(connecting_))
		try_next(*l);
}

void port::expire_attempts(time_point now)
{
	while (attempts_deadline() <= now) {
		link &l = *connecting_.begin()->second;
		end_attempt(l);
		if (now >= l.side->give_up) {
			give_up(l);
			continue;
		}
		search &s = static_cast<search &>(*l.side);
		s.at = (s.at + 1) % s.ports.count;
		try_next(l);
	}
}

} // namespace coop::net::fabric
