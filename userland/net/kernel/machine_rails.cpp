// SPDX-License-Identifier: MIT
// machine_rails.cpp - what a transfer machine does with its rails but the first; see machine.hpp.
#include <algorithm>
#include <sys/epoll.h>

#include "machine.hpp"

namespace coop::net::kernel
{

// ---- peers -------------------------------------------------------------------------

bool machine::asking() const
{
	return resolver_->asking() || std::any_of(rails_.begin(), rails_.end(), [](const auto &r) {
		       return r->resolver().asking();
	       });
}

bool machine::question(std::uint64_t now)
{
	bool any = resolver_->progress(now);
	for (const auto &r : rails_)
		any |= r->resolver().progress(now);
	return any;
}

void machine::want_rails(spi::peer_number n, std::uint64_t now)
{
	if (!rails_.empty() && n != spi::no_peer)
		peer_rails_->want(n, now);
}

void machine::forget_rails(spi::peer_number n)
{
	if (rails_.empty())
		return;
	peer_rails_->forget(n);
	for (const auto &r : rails_)
		r->forget(n);
}

void machine::resolve_rails(std::uint64_t now)
{
	for (const auto &r : rails_)
		for (ud::resolver::result x; r->resolver().next(x);) {
			peer_rails_->heard(r->number(), x, now);
			if (r->knows(x.number))
				offers_->proven(r->number(), x.number);
		}
}

// ---- events ------------------------------------------------------------------------

// `now`: the time, if there was something.
unsigned machine::progress_rails(unsigned budget, std::uint64_t &now)
{
	unsigned n = 0;
	for (const auto &r : rails_) {
		device *d = r->device();
		if (!d)
			continue;
		coop_net_event ev;
		for (unsigned i = 0; i < std::max(budget, 1u) && d->next(ev); i++) {
			if (n++ == 0)
				now = this->now();
			dispatch(*r, ev, now);
		}
		if (d->failure() && d->empty()) {
			if (n++ == 0)
				now = this->now();
			lose(*r, now);
		}
	}
	return n;
}

// Messages that come by it are none: it has no receive buffers, and texts are not for it.
void machine::dispatch(rail &r, const coop_net_event &ev, std::uint64_t now)
{
	switch (ev.code) {
	case COOP_NET_READER:
	case COOP_NET_OFFER_OVER:
	case COOP_NET_FETCHED:
		dispatch_of_handle(r, ev, now);
		break;
	case COOP_NET_ADDRESS:
		if (instance_)
			answer();
		break;
	case COOP_NET_PEER_NEW:
	case COOP_NET_STRANGER:
		if (!ev.cookie)
			r.refuse(ev.peer);
		break;
	case COOP_NET_PEER_DEAD:
		if (ev.cookie) // a later request begins another session
			r.forget(static_cast<spi::peer_number>(ev.cookie - 1));
		break;
	}
}

void machine::dispatch_of_handle(rail &r, const coop_net_event &ev, std::uint64_t now)
{
	const handles::record of = r.uses()[ev.handle];
	if (ev.flags & COOP_NET_FINAL)
		r.uses().release(ev.handle);
	if (of.what == handles::use::fetch) {
		linger_.heard(now);
		reader_->finished(of.number, r.ordinals(of.number, ev.pages), ev.status,
				  ev.status == -ENOENT, now);
	} else if (of.what == handles::use::offer) {
		if (ev.code == COOP_NET_READER)
			read_by(r.number(), ev, of.number);
		if (ev.flags & COOP_NET_FINAL)
			offers_->over(r.number(), of.number, ev.status);
	}
}

void machine::read_by(unsigned rail, const coop_net_event &ev, std::uint32_t index)
{
	bool reading = ev.flags & COOP_NET_READING;
	if (offers_)
		reading = offers_->reading(rail, index, reading);
	bulk_->read_by(index, ud::identity::unpack(ev.tag), reading);
}

// Its device is gone: other rails bring what was under way on it.
void machine::lose(rail &r, std::uint64_t now)
{
	(void)::epoll_ctl(epoll_, EPOLL_CTL_DEL, r.device()->fd(), nullptr);
	peer_rails_->lost(r.number());
	r.close();
	reader_->lose(r.number(), now);
	for (const std::uint32_t index : offers_->lost(r.number()))
		bulk_->read_by(index, (*operations_)[index].reader, false);
}

// ---- statistics --------------------------------------------------------------------

std::vector<rail_stats> machine::rails() const
{
	std::vector<rail_stats> all;
	if (!device_ || over_)
		return all;
	const auto add = [&](const device &d, const std::string &name, unsigned number) {
		const coop_net_count c = d.count();
		const ud::reader::counters &reads = reader_->stats(number);
		all.push_back(
			{name, c.sent, c.received, reads.bytes, reads.requests, reads.failed});
	};
	add(*device_, options_.device.device, 0);
	for (const auto &r : rails_)
		if (r->device())
			add(*r->device(), r->name(), r->number());
	return all;
}

} // namespace coop::net::kernel
