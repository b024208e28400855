// SPDX-License-Identifier: MIT
// peers.hpp - the end points of a transfer machine, while they are in use.
//
// Owns the peers and their numbers, under the lock of the machine. A peer is an end point with a
// number. Three things keep it: references of the program (atomic, in endpoint), uses by operations
// and events under way, and the transport's hold, the latter two under the machine's lock. An
// unused peer is put on a list, checked again when the hold ends, and closed then: so a peer that
// is needed again at once stays, and a transport is never told of a closed peer in the middle of a
// call. A peer is looked up by address for a new end point and by number for everything else. When
// its machine is finished, a peer to which the program still has references is an orphan, which the
// last reference deletes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "coop/net/endpoint.hpp"
#include "station.hpp"

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
	bool wanted = false;  // used by the program, or by events and operations
};

class peers
{
public:
	static constexpr std::uint32_t most = 1u << 20;

	/// `home` becomes peer::home.
	peers(station &, std::enable_shared_from_this<machine> &home);
	~peers();

	/// The peer of this number, which must be in use.
	peer &operator[](spi::peer_number n) const { return *by_number_[n]; }
	/// Finds the peer of this address, or opens one. @return 0 or -errno.
	int open(const address &, peer *&out);
	/// As spi::sink::peer() and release().
	spi::peer_number hold(const address &);
	void release(spi::peer_number);

	/// An operation or event begins to use it.
	void use(peer &p)
	{
		p.uses++;
		want(p);
	}
	void unuse(peer &);
	/// The program gets a reference.
	void want(peer &p)
	{
		if (!std::exchange(p.wanted, true))
			wanted_++;
	}
	/// The program drops a reference, perhaps its last. @return whether to delete the peer.
	[[nodiscard]] bool drop_reference(peer &);
	/// Peers used by the program, or by events and operations.
	std::size_t wanted() const { return wanted_; }

	bool unused() const { return !reaping_.empty(); }
	/// Closes the unused peers.
	void reap();
	/// Ends all: those with references become orphans. The others are returned, for deletion
	/// without the lock.
	std::vector<std::unique_ptr<peer>> finish();

private:
	peer *find(const address &) const;
	peer *insert(const address &);
	void erase(peer &);
	void reap_later(peer &);
	void unwant(peer &p)
	{
		if (std::exchange(p.wanted, false))
			wanted_--;
	}
	bool valid(spi::peer_number n) const { return n < by_number_.size() && by_number_[n]; }
	std::size_t bucket(const address &a) const { return hash(a) & (buckets_.size() - 1); }
	void rehash();

	station &station_;
	std::enable_shared_from_this<machine> &home_;
	std::vector<peer *> buckets_ = std::vector<peer *>(16);
	std::vector<peer *> by_number_;
	std::vector<spi::peer_number> unused_;
	std::size_t count_ = 0, wanted_ = 0;
	std::vector<peer *> reaping_;
};

} // namespace coop::net::core
