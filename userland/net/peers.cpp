// SPDX-License-Identifier: MIT
// peers.cpp - see peers.hpp. The table has chains by address and an array by number.
//
// The table doubles when there is one peer a bucket, so a search looks at one or two.
#include "peers.hpp"

#include <cerrno>

namespace coop::net::core
{

peers::peers(station &s, std::enable_shared_from_this<machine> &home) : station_(s), home_(home) {}

peers::~peers()
{
	for (peer *p : by_number_)
		delete p;
}

int peers::open(const net::address &a, peer *&out)
{
	out = find(a);
	if (out)
		return 0;
	peer *p = insert(a);
	if (!p)
		return -ENOBUFS;
	if (int r = station_.transport->peer_open(p->number, a)) {
		erase(*p);
		delete p;
		return r;
	}
	out = p;
	return 0;
}

spi::peer_number peers::hold(const net::address &a)
{
	peer *p = find(a);
	if (!p)
		p = insert(a);
	if (!p)
		return spi::no_peer;
	p->held = true;
	return p->number;
}

void peers::release(spi::peer_number n)
{
	if (!valid(n))
		return;
	by_number_[n]->held = false;
	reap_later(*by_number_[n]);
}

void peers::unuse(peer &p)
{
	// Reap when the last of uses, hold and references is dropped. The last reference is dropped
	// under the lock, and new ones can appear only while there are uses.
	if (--p.uses || p.references_.load(std::memory_order_acquire))
		return;
	unwant(p);
	if (!p.held)
		reap_later(p);
}

bool peers::drop_reference(peer &p)
{
	if (p.references_.fetch_sub(1, std::memory_order_acq_rel) != 1)
		return false;
	if (p.orphan)
		return true;
	if (!p.uses)
		unwant(p);
	reap_later(p);
	return false;
}

void peers::reap_later(peer &p)
{
	if (!std::exchange(p.reaping, true))
		reaping_.push_back(&p);
}

void peers::reap()
{
	// Closing a peer may make the transport release another one.
	for (std::size_t i = 0; i < reaping_.size(); i++) {
		peer &p = *reaping_[i];
		p.reaping = false;
		if (p.uses || p.held || p.references_.load(std::memory_order_acquire))
			continue;
		if (station_.live())
			station_.transport->peer_close(p.number);
		erase(p);
		delete &p;
	}
	reaping_.clear();
}

std::vector<std::unique_ptr<peer>> peers::finish()
{
	std::vector<std::unique_ptr<peer>> unused;
	for (peer *p : std::vector(by_number_)) {
		if (!p)
			continue;
		erase(*p);
		if (p->references_.load(std::memory_order_acquire))
			p->orphan = true;
		else
			unused.emplace_back(p);
	}
	reaping_.clear();
	wanted_ = 0;
	return unused;
}

peer *peers::find(const net::address &a) const
{
	for (peer *p = buckets_[bucket(a)]; p; p = p->next)
		if (p->address() == a)
			return p;
	return nullptr;
}

peer *peers::insert(const net::address &a)
{
	if (count_ >= most)
		return nullptr;
	if (count_ >= buckets_.size())
		rehash();
	spi::peer_number n;
	if (unused_.empty()) {
		n = static_cast<spi::peer_number>(by_number_.size());
		by_number_.push_back(nullptr);
	} else {
		n = unused_.back();
		unused_.pop_back();
	}
	peer *p = new peer(a, home_.shared_from_this(), n);
	by_number_[n] = p;
	peer *&head = buckets_[bucket(a)];
	p->next = head;
	head = p;
	count_++;
	return p;
}

void peers::erase(peer &p)
{
	peer **link = &buckets_[bucket(p.address())];
	while (*link != &p)
		link = &(*link)->next;
	*link = p.next;
	by_number_[p.number] = nullptr;
	unused_.push_back(p.number);
	count_--;
}

void peers::rehash()
{
	std::vector<peer *> old = std::move(buckets_);
	buckets_.assign(old.size() * 2, nullptr);
	for (peer *p : old)
		while (p) {
			peer *next = p->next;
			peer *&head = buckets_[bucket(p->address())];
			p->next = head;
			head = p;
			p = next;
		}
}

} // namespace coop::net::core
