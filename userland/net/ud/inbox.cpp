// SPDX-License-Identifier: MIT
// inbox.cpp - see inbox.hpp.
#include "inbox.hpp"

#include <cerrno>

namespace coop::net::ud
{

inbox::inbox(const options &o, operations &ops, peers &p, outbox &out, chan_engine &c,
	     spi::sink &s) :
	options_(o),
	operations_(ops),
	peers_(p),
	outbox_(out),
	chan_(c),
	sink_(s),
	of_buffer_(chan_engine::receives)
{
}

// The number of a peer whose session has none yet; no_peer: it shall try again.
spi::peer_number inbox::sender(const coop_chan_in &in, identity who, std::uint64_t now)
{
	if (options_.verbs && peers_.crowded())
		return spi::no_peer;
	const spi::peer_number n = peers_.number_of(who);
	if (n == spi::no_peer || !options_.verbs || peers_.is_at(n, in.peer))
		return n;
	peers_.ask(n, now);
	return spi::no_peer;
}

// Whether records are too few for this bulk message. What answers us frees some, and two peers that
// refused each other's answers would wait for each other.
bool inbox::crowded(const coop_chan_in &in, const std::byte *datagram, identity who) const
{
	if (in.len == bulk_message::bytes &&
	    bulk_message::kind_of(datagram + in.from) == bulk_kind::done)
		return operations_.crowded();
	return operations_.crowded(who);
}

bool inbox::accept(coop_chan_in &in, const std::byte *datagram, const coop_addr &from,
		   std::uint64_t now)
{
	const identity who = identity::unpack(in.tag & ((1ull << 50) - 1));
	const std::uint32_t chan = in.peer;
	bool known = in.peer_cookie != 0;
	const bool bulk = in.tag >> 56 == std::uint64_t(tag_kind::bulk);
	auto n = static_cast<spi::peer_number>(in.peer_cookie - 1);
	const bool forged = !options_.verbs && !peers::believable(who, from);
	if (forged || who == peers_.own() || (in.tag >> 50 & 63) != 0 ||
	    (!bulk && in.tag >> 56 != std::uint64_t(tag_kind::message)) ||
	    (bulk && in.length != bulk_message::bytes) ||
	    (known && options_.fixed_places() && !(peers_[n].who == who))) {
		coop_chan_refuse(chan_, COOP_CHAN_NO_LISTENER, now);
		return false;
	}
	if (known && !(peers_[n].who == who)) {
		peers_.contradicted(n, who, now);
		known = false;
	}
	if (known)
		peers_.heard(n);
	else if ((n = sender(in, who, now)) == spi::no_peer) {
		coop_chan_refuse(chan_, COOP_CHAN_NO_BUFFER, now);
		return false;
	}
	int err = 0;
	spi::landing l;
	if (!bulk)
		err = sink_.place(in.length, l);
	else if (crowded(in, datagram, who))
		err = -ENOBUFS;
	if (err) {
		coop_chan_refuse(chan_, err == -EMSGSIZE ? COOP_CHAN_TOO_LONG : COOP_CHAN_NO_BUFFER,
				 now);
		if (!bulk && err == -ENOBUFS)
			give_up_halfway(now); // it is asked for again
	} else {
		if (free_.empty()) {
			free_.push_back(static_cast<std::uint32_t>(arrivals_.size()));
			arrivals_.emplace_back();
		}
		const std::uint32_t index = free_.back();
		free_.pop_back();
		arrival &a = arrivals_[index];
		a.landing = l;
		a.from = n;
		a.bulk = bulk;
		a.told = false;
		coop_chan_place(chan_, index, now, &in);
		a.receive = in.receive;
	}
	if (!known) {
		peers_.adopt(n, chan, now);
		outbox_.wake(n, 0, now);
	}
	return !err;
}

bool inbox::copy(const coop_chan_in &in, const std::byte *datagram, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(in.cookie);
	arrival &a = arrivals_[index];
	if (a.bulk) {
		if (in.offset + in.len <= a.text.size())
			std::memcpy(a.text.data() + in.offset, datagram + in.from, in.len);
		return false;
	}
	if (a.told)
		return false;
	if (in.len)
		spi::scatter(a.landing.memory, a.landing.offset + in.offset, datagram + in.from,
			     in.len);
	if (!in.last) {
		peers_.heard(a.from); // a long message keeps its session
		if (a.listed)
			leave_age(index);
		else
			list(index);
		join_newest(index, now);
		return false;
	}
	// The program gets it before anything else is done about it.
	unlist(index);
	a.told = true;
	sink_.received(a.landing, a.from);
	return true;
}

const std::uint8_t *inbox::over(std::uint32_t index, bool whole, spi::peer_number &from)
{
	arrival &a = arrivals_[index];
	unlist(index);
	free_.push_back(index);
	from = a.from;
	if (a.bulk)
		return whole ? a.text.data() : nullptr;
	if (a.told)
		return nullptr;
	if (whole)
		sink_.received(a.landing, a.from);
	else
		sink_.abandon(a.landing);
	return nullptr;
}

void inbox::give_back(spi::token t, std::uint64_t now)
{
	for (std::uint32_t index; (index = of_buffer_.find(t)) != none;)
		give_up(index, now);
}

void inbox::give_up(std::uint32_t index, std::uint64_t now)
{
	arrival &a = arrivals_[index];
	unlist(index);
	a.told = true;
	(void)coop_chan_give_up(chan_, a.receive, now);
	sink_.abandon(a.landing);
}

// All that have stopped: a buffer of several is back only when none of them is in it.
void inbox::give_up_halfway(std::uint64_t now)
{
	while (oldest_ != none && now - arrivals_[oldest_].came_at > halfway_us)
		give_up(oldest_, now);
}

void inbox::list(std::uint32_t index)
{
	arrival &a = arrivals_[index];
	a.listed = true;
	a.before = none;
	a.after = of_buffer_.find(a.landing.token);
	if (a.after != none) {
		arrivals_[a.after].before = index;
		of_buffer_.erase(a.landing.token);
	}
	of_buffer_.insert(a.landing.token, index);
}

void inbox::unlist(std::uint32_t index)
{
	arrival &a = arrivals_[index];
	if (!std::exchange(a.listed, false))
		return;
	leave_age(index);
	if (a.after != none)
		arrivals_[a.after].before = a.before;
	if (a.before != none) {
		arrivals_[a.before].after = a.after;
		return;
	}
	of_buffer_.erase(a.landing.token);
	if (a.after != none)
		of_buffer_.insert(a.landing.token, a.after);
}

void inbox::join_newest(std::uint32_t index, std::uint64_t now)
{
	arrival &a = arrivals_[index];
	a.came_at = now;
	a.older = newest_;
	a.newer = none;
	(newest_ != none ? arrivals_[newest_].newer : oldest_) = index;
	newest_ = index;
}

void inbox::leave_age(std::uint32_t index)
{
	const arrival &a = arrivals_[index];
	(a.older != none ? arrivals_[a.older].newer : oldest_) = a.newer;
	(a.newer != none ? arrivals_[a.newer].older : newest_) = a.older;
}

} // namespace coop::net::ud
