// SPDX-License-Identifier: MIT
// peer_rails.hpp - the rails of peers: where they are, and which of them are in use now.
//
// The first rail of a machine speaks with the first of its peer, the second with the second, and so
// on; what one side has more is not used between the two. A machine with rails asks its peers for
// theirs (resolver::list()), and then, from each rail, the peer's rail itself for its queue pairs.
// So a rail counts only after an exchange over it: what a peer says of others' addresses costs
// those a few questions and no data. A peer that does not answer has one rail.
//
// Requests for bulk data go over all rails. One over which a request brought nothing gets no more
// until that exchange has succeeded again, after a pause that doubles. The first rail pauses as
// well, but only while there is another.
//
// Messages to a peer go over its path, one rail: the first as long as the peer answers. rpc/chan
// knows the addresses of the first rail alone. What it sends is redirected to the path, and what
// comes over another rail gets the address on the first. A silent peer gets the next rail as its
// path, and the peer follows, so that its acknowledgements take the rail that works.
//
// Owns a record for each peer that was asked. Used under the lock of the machine.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "peers.hpp"

namespace coop::net::ud
{

class peer_rails
{
public:
	/// `at`: the resolvers of the own rails.
	peer_rails(const peers &p, std::vector<resolver *> at) : peers_(p), at_(std::move(at)) {}

	/// Of this machine.
	unsigned size() const { return static_cast<unsigned>(at_.size()); }
	/// Learns what is not known of this peer's rails; call it while there is something to send.
	void want(spi::peer_number, std::uint64_t now);
	/// An answer of the resolver of this rail; of the first one, to list().
	void heard(unsigned rail, const resolver::result &, std::uint64_t now);
	/// Another session with it has begun: the machine may be another one.
	void restarted(spi::peer_number);
	/// The machine is gone, or the number is about to be reused.
	void forget(spi::peer_number);
	/// This own rail does not work any more.
	void lost(unsigned rail) { lost_ |= 1u << rail; }
	/// This own rail takes datagrams that are shorter than the first's, so no messages.
	void no_path(unsigned rail) { no_path_ |= 1u << rail; }

	// Bulk.
	/// Where this rail of the peer is; null: it has none. Not of the first.
	const coop_chan_peer_addr *at(spi::peer_number n, unsigned rail) const
	{
		const known *k = of(n);
		return k && k->rails[rail].proven ? &k->rails[rail].where : nullptr;
	}
	/// May requests go over it now?
	bool usable(spi::peer_number, unsigned rail, std::uint64_t now) const;
	/// Is one of them not the first?
	bool several(spi::peer_number) const;
	/// Whether packets from this address that arrived on this rail may be the peer's. Not of
	/// the first.
	bool believable(spi::peer_number, unsigned rail, const coop_addr &from) const;
	/// Data has come over it.
	void worked(spi::peer_number, unsigned rail);
	/// A request over it has brought nothing.
	void failed(spi::peer_number, unsigned rail, std::uint64_t now);

	// Messages.
	/// Some peer's path is not its first rail.
	bool redirects() const { return !redirected_.empty(); }
	/// For a datagram to a queue pair on a peer's first rail: changes `to` if the peer's path
	/// is another rail. @return that rail, or 0.
	unsigned redirect(coop_addr &to) const;
	/// A datagram has come from this queue pair, to this rail. If it is a peer's, changes
	/// `from` to that of the first rail. @return whether it is; always, on the first.
	bool arrived(unsigned rail, coop_addr &from, std::uint64_t now);
	/// It has missed so many timeouts in a row: from time to time it gets the next rail as its
	/// path.
	void silent(spi::peer_number, std::uint32_t timeouts);

private:
	struct one {
		std::uint32_t ip = 0; // 0: the peer has no such rail
		bool proven = false;
		bool fails = false;         // no request goes over it until it has answered again
		std::uint32_t failures = 0; // in a row
		std::uint64_t ask_at = 0;   // again, or when the first rail's pause ends
		std::uint64_t heard_at = 0; // when a message came over it
		coop_chan_peer_addr where{};
	};
	struct known {
		bool listed = false;
		bool messages = false;      // go over all of them
		std::uint32_t instance = 0; // of the machine that listed them
		std::uint32_t tries = 0;    // to have them listed
		std::uint64_t ask_at = 0;
		unsigned path = 0;
		std::uint32_t timeouts = 0; // when the path changed last
		std::array<one, most_rails> rails;
	};

	/// A queue pair, by all that a completion tells of a sender.
	struct queue_pair {
		std::array<std::uint8_t, 16> gid;
		std::uint16_t lid;
		std::uint32_t qpn;

		auto operator<=>(const queue_pair &) const = default;
	};
	/// Whose it is.
	struct place {
		spi::peer_number n;
		unsigned rail;
		bool data; // else the command queue pair
	};
	using places = std::map<queue_pair, place>;

	const known *of(spi::peer_number n) const
	{
		return n < known_.size() ? known_[n].get() : nullptr;
	}
	known *of(spi::peer_number n) { return n < known_.size() ? known_[n].get() : nullptr; }
	bool works(const known &, unsigned rail) const;
	void drop_rails(spi::peer_number);
	void listed(known &, const resolver::result &, std::uint64_t now);
	void enter(places &, const coop_chan_peer_addr &, spi::peer_number, unsigned rail);
	static void leave(places &, const coop_chan_peer_addr &, spi::peer_number);
	static queue_pair pair_of(const coop_addr &);
	void set_path(spi::peer_number, unsigned rail);
	void follow(spi::peer_number, unsigned rail, std::uint64_t now);

	const peers &peers_;
	const std::vector<resolver *> at_; // by rail
	unsigned lost_ = 0, no_path_ = 0;  // bit for each
	std::vector<std::unique_ptr<known>> known_;
	places senders_;    // on rails that are proven
	places redirected_; // on the first rail, of peers with another path
};

} // namespace coop::net::ud
