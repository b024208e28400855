// SPDX-License-Identifier: MIT
// peers.cpp - the table of peers: chains by address, an array by number.
//
// The table doubles when there is one peer a bucket, so a search looks at one or two.
#include "peers.hpp"

namespace coop::net::core
{

peer_table::~peer_table()
{
	for_each([](peer &p) { delete &p; });
}

peer *peer_table::find(const net::address &a) const
{
	for (peer *p = buckets_[bucket(a)]; p; p = p->next)
		if (p->address() == a)
			return p;
	return nullptr;
}

peer *peer_table::insert(const net::address &a, const std::shared_ptr<machine> &m)
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
	peer *p = new peer(a, m, n);
	by_number_[n] = p;
	peer *&head = buckets_[bucket(a)];
	p->next = head;
	head = p;
	count_++;
	return p;
}

void peer_table::erase(peer &p)
{
	peer **link = &buckets_[bucket(p.address())];
	while (*link != &p)
		link = &(*link)->next;
	*link = p.next;
	by_number_[p.number] = nullptr;
	unused_.push_back(p.number);
	count_--;
}

void peer_table::rehash()
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
