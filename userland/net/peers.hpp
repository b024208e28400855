// SPDX-License-Identifier: MIT
// peers.hpp - the end points of a transfer machine.
//
// A peer is an end point with a number. Three things keep it: references of the program (atomic, in
// endpoint), uses by operations and events under way, and the transport's hold, the latter two
// under the machine's lock. It is looked up by address for a new end point and by number for
// everything else. When its machine is finished, a peer to which the program still has references
// is an orphan, which the last reference deletes.
#pragma once

#include <memory>
#include <vector>

#include "coop/net/endpoint.hpp"
#include "transport.hpp"

namespace coop::net::core
{

class peer final : public endpoint
{
public:
	peer(const net::address &a, std::shared_ptr<machine> m, spi::peer_number n) :
		endpoint(a),
		home(std::move(m)),
		number(n)
	{
	}

	const std::shared_ptr<machine> home; // alive while there is a peer to lock it
	peer *next = nullptr;                // in its hash chain
	std::uint32_t uses = 0;
	const spi::peer_number number;
	bool held = false;    // by the transport
	bool orphan = false;  // the machine no longer knows it
	bool reaping = false; // on the list of peers that may be unused
	bool wanted = false; // used by the program, or by events and operations; the machine counts
			     // these peers
};

class peer_table
{
public:
	static constexpr std::uint32_t most = 1u << 20;

	~peer_table();
	peer *find(const address &) const;
	/// The peer of this number, which must be in use.
	peer &operator[](spi::peer_number n) const { return *by_number_[n]; }
	bool valid(spi::peer_number n) const { return n < by_number_.size() && by_number_[n]; }
	/// Inserts a new peer; the address must not be in the table. Null if there are too many.
	peer *insert(const address &, const std::shared_ptr<machine> &);
	/// Removes the peer from the table; the caller deletes it.
	void erase(peer &);
	std::size_t size() const { return count_; }
	template <class function> void for_each(function f) const
	{
		for (peer *p : by_number_)
			if (p)
				f(*p);
	}

private:
	std::size_t bucket(const address &a) const { return hash(a) & (buckets_.size() - 1); }
	void rehash();

	std::vector<peer *> buckets_ = std::vector<peer *>(16);
	std::vector<peer *> by_number_;
	std::vector<spi::peer_number> unused_;
	std::size_t count_ = 0;
};

} // namespace coop::net::core
