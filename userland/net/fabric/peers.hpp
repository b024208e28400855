// SPDX-License-Identifier: MIT
// peers.hpp - the peers of a machine, by number, and the link to send on to each.
#pragma once

#include <vector>

#include "link.hpp"

namespace coop::net::fabric
{

/// Owns the table; the links belong to `links`. Under the machine's lock.
class peers
{
public:
	bool known(spi::peer_number n) const { return n < all_.size(); }
	const address &address_of(spi::peer_number n) const { return all_[n].address; }
	void open(spi::peer_number n, const address &a) { at(n) = {a, nullptr, 0}; }
	void close(spi::peer_number n)
	{
		if (known(n))
			all_[n] = {};
	}

	/// One more link with its peer.
	void add(link &l)
	{
		peer &p = at(l.peer);
		p.address = l.address;
		p.links++;
	}
	/// @return whether that was the peer's last link.
	bool remove(link &l)
	{
		forget(l);
		return --all_[l.peer].links == 0;
	}
	/// The link to send on to this peer; null: none.
	link *link_to(spi::peer_number n) const { return all_[n].link; }
	/// Sends on this link from now on, unless there is one already.
	void use(link &l)
	{
		if (!all_[l.peer].link)
			all_[l.peer].link = &l;
	}
	/// Begins nothing on this link any more.
	void forget(link &l)
	{
		if (all_[l.peer].link == &l)
			all_[l.peer].link = nullptr;
	}

private:
	struct peer {
		net::address address;
		fabric::link *link = nullptr;
		unsigned links = 0; ///< number of all links
	};
	peer &at(spi::peer_number n)
	{
		if (!known(n))
			all_.resize(n + 1);
		return all_[n];
	}

	std::vector<peer> all_;
};

} // namespace coop::net::fabric
