// SPDX-License-Identifier: MIT
// links.cpp - see links.hpp.
#include "links.hpp"

namespace coop::net::fabric
{

int links::peer_open(spi::peer_number n, const address &a)
{
	if (a.kind == address::form::none)
		return -EINVAL;
	peers_.open(n, a);
	return 0;
}

link *links::make(const address &a)
{
	const unsigned most = env_.options.max_links;
	if (live_ >= most - most / 8)
		partings_.make_room();
	if (live_ >= most)
		return nullptr;
	const spi::peer_number peer = env_.sink.peer(a);
	if (peer == spi::no_peer)
		return nullptr;
	if (free_.empty()) {
		free_.push_back(static_cast<std::uint32_t>(all_.size()));
		all_.emplace_back();
	}
	auto l = std::make_unique<link>();
	l->number = free_.back();
	free_.pop_back();
	l->cookie = static_cast<std::uint32_t>(random_.next());
	l->address = a;
	l->peer = peer;
	live_++;
	peers_.add(*l);
	partings_.watch(*l);
	return (all_[l->number] = std::move(l)).get();
}

link *links::to(spi::peer_number n, int &status)
{
	if (!peers_.known(n)) {
		status = -EINVAL;
		return nullptr;
	}
	if (link *l = peers_.link_to(n)) {
		l->used = true;
		return l;
	}
	link *l = make(peers_.address_of(n));
	if (!l) {
		status = -ENOBUFS;
		return nullptr;
	}
	peers_.use(*l);
	env_.port.connect(*l);
	return l;
}

link *links::admit(const hello &h)
{
	if (stopping_ || env_.endings.device() || h.to != digest(own_))
		return nullptr;
	link *l = make(h.from);
	if (l && !accept(*l, h)) {
		env_.endings.violation(*l);
		return nullptr;
	}
	return l;
}

hello links::greeting(const link &l) const
{
	hello h;
	h.from = own_;
	h.to = digest(l.address);
	h.link = l.number;
	h.cookie = l.cookie;
	h.window = static_cast<std::uint16_t>(env_.options.window);
	h.eager = static_cast<std::uint32_t>(env_.options.eager);
	h.lends = env_.provider.reads();
	return h;
}

bool links::accept(link &l, const hello &h)
{
	if (!(h.from == l.address) || h.to != digest(own_))
		return false;
	l.base = word::base(h.link, env_.wide ? h.cookie : 0);
	l.credit = l.credit_most = h.window;
	l.eager = std::min<std::size_t>(h.eager, env_.options.eager);
	l.lends = h.lends;
	return true;
}

void links::linked(link &l)
{
	if (l.state != link::state::connecting)
		return;
	l.state = link::state::ready;
	l.greeted = true;
	peers_.use(l);
	messages_.send_waiting(l);
}

void links::catch_up(link &l)
{
	if (!l.ep)
		env_.port.catch_up(l);
	if (l.state == link::state::connecting && l.ep)
		linked(l);
	if (l.state == link::state::connecting)
		env_.endings.violation(l); // a message before the greeting
}

void links::stop()
{
	stopping_ = true;
	partings_.stop();
	for_each([this](link &l) {
		if (l.state == link::state::connecting)
			env_.endings.fail(l, -ECANCELED);
		else if (l.ready())
			partings_.part(l, false);
	});
}

void links::bury(link &l)
{
	sends_.detach(l);
	while (work *w = l.works)
		if (w->message && !w->writer && w->stage == work::stage::landing)
			transfers_.drop_landing(*w);
		else
			works_.finish(*w, w->cancelled            ? -ECANCELED
					  : env_.endings.device() ? env_.endings.device()
								  : l.status);
	for (posted *p : l.urgent)
		if (p->role == role::copy)
			sends_.free(static_cast<bounce &>(*p));
	messages_.drop(l);
	env_.endings.forget(l);
	partings_.unwatch(l);
	// The core's hold on the peer is for all links with it.
	if (peers_.remove(l))
		env_.sink.release(l.peer);
	live_--;
	free_.push_back(l.number);
	all_[l.number].reset();
}

} // namespace coop::net::fabric
