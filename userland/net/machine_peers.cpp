// SPDX-License-Identifier: MIT
// machine_peers.cpp - the end points of a transfer machine, while they are in use.
//
// An unused peer is put on a list, checked again when the hold ends, and closed then. So a peer
// that is needed again at once stays, and a transport is never told of a closed peer in the middle
// of a call.
#include <cerrno>

#include "machine.hpp"

namespace coop::net
{

void endpoint::put_last() noexcept
{
	auto &p = static_cast<core::peer &>(*this);
	const std::shared_ptr<core::machine> m = p.home; // the call may delete p
	m->put_last(p);
}

namespace core
{

int machine::make_endpoint(const net::address &a, endpoint_ptr &out)
{
	endpoint_ptr found; // the previous referent of `out` is released outside of the hold
	{
		hold h(*this);
		if (!operable())
			return -EBADFD;
		if (!is_valid(a) || a.wildcard())
			return -EINVAL;
		core::peer *p = nullptr;
		if (int r = open_peer(a, p))
			return r;
		found = endpoint_ptr(p);
		want(*p);
	}
	out = std::move(found);
	return 0;
}

std::size_t machine::endpoints()
{
	hold h(*this);
	return wanted_peers_;
}

int machine::open_peer(const net::address &a, core::peer *&out)
{
	out = peers_.find(a);
	if (out)
		return 0;
	core::peer *p = peers_.insert(a, shared_from_this());
	if (!p)
		return -ENOBUFS;
	if (int r = transport_->peer_open(p->number, a)) {
		peers_.erase(*p);
		delete p;
		return r;
	}
	out = p;
	return 0;
}

spi::peer_number machine::peer(const net::address &a)
{
	core::peer *p = peers_.find(a);
	if (!p)
		p = peers_.insert(a, shared_from_this());
	if (!p)
		return spi::no_peer;
	p->held = true;
	return p->number;
}

void machine::release(spi::peer_number n)
{
	if (!peers_.valid(n))
		return;
	peers_[n].held = false;
	reap_later(peers_[n]);
}

void machine::unuse(core::peer &p)
{
	// Reap when the last of uses, hold and references is dropped. The last reference is dropped
	// under the lock, and new ones can appear only while there are uses.
	if (--p.uses || p.references_.load(std::memory_order_acquire))
		return;
	unwant(p);
	if (!p.held)
		reap_later(p);
}

void machine::reap_later(core::peer &p)
{
	if (!p.reaping) {
		p.reaping = true;
		reaping_.push_back(&p);
	}
}

void machine::reap()
{
	// Closing a peer may make the transport release another one.
	for (std::size_t i = 0; i < reaping_.size(); i++) {
		core::peer &p = *reaping_[i];
		p.reaping = false;
		if (p.uses || p.held || p.references_.load(std::memory_order_acquire))
			continue;
		if (transport_ && !transport_over_)
			transport_->peer_close(p.number);
		peers_.erase(p);
		delete &p;
	}
	reaping_.clear();
}

void machine::put_last(core::peer &p)
{
	bool last = false;
	{
		hold h(*this);
		if (p.references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
			last = p.orphan;
			if (!last && !p.uses)
				unwant(p);
			if (!last)
				reap_later(p);
		}
	}
	if (last)
		delete &p;
}

} // namespace core

} // namespace coop::net
