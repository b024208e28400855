// SPDX-License-Identifier: MIT
// peers.hpp - the peers of a machine: their addresses and their sessions at rpc/chan.
//
// Owns a record for each number of the core, the sessions, and the count of operations under way,
// by which peers are watched and sessions end to make room. A peer is asked for its queue pairs
// when something is first to be sent to it, and again after it was dead. The tag of its messages
// identifies a peer that speaks first. On soft RoCE its packets prove its host; on a device they
// do not, so the machine at that host is asked. A session is kept, by a hold on the peer's number,
// until the peer is dead or another session needs the room.
//
// A device assigns queue pairs as it likes, so after a restart of its host another machine may have
// those of a peer. What is to be sent to a peer waits for a new answer when another session has
// begun there, or another machine is said to be there, or speaks from there. Who answers keeps its
// place. Only one that is both said to be there and speaks from there has the better claim: one
// alone may be a lie, or out of date.
//
// Used under the lock of the machine. Knows no operation: what an event means for these the caller
// does, as the returned values say.
#pragma once

#include <unordered_map>
#include <vector>

#include "identity.hpp"
#include "message_engine.hpp"
#include "options.hpp"
#include "resolver.hpp"
#include "rpc/base/addr.h"
#include "sessions.hpp"
#include "userland/net/roster.hpp"

namespace coop::net::ud
{

/// The time, as the engines count it.
inline std::uint64_t now_us(spi::sink &s)
{
	return static_cast<std::uint64_t>(
		std::chrono::duration_cast<std::chrono::microseconds>(s.now().time_since_epoch())
			.count());
}
/// The time of that clock at which it shows these microseconds; ~0: never.
inline time_point time_of(std::uint64_t us)
{
	return us >= 1ull << 62 ? never
				: time_point(std::chrono::duration_cast<clock::duration>(
					  std::chrono::microseconds(us)));
}

constexpr std::uint64_t watch_every_us = 250000; ///< how often silent peers are looked for
constexpr std::uint64_t probe_every_us = 1000000;

/// Why a peer may not be where its last answer said.
enum class doubt : std::uint8_t {
	none,
	restarted, // another session has begun there
	claimed,   // another machine is said to be there
	spoken,    // another machine speaks from there
};

struct peer {
	address where;
	identity who;
	coop_chan_peer_addr addr{};
	std::uint32_t instance = 0;     // of the machine there; 0: unknown
	std::uint32_t chan = 0;         // its id at rpc/chan; 0: not open
	sessions::position session = 0; // of that; 0: not open
	bool used = false, self = false;
	bool held = false;          // by us, at the core
	bool resolved = false;      // addr is right as far as we know
	ud::doubt doubt{};          // of that, until the next answer
	bool claims = false;        // its answer names the place of another, which is asked
	identity speaker;           // the last other that its session named
	std::uint32_t active = 0;   // operations under way
	std::size_t watched_at = 0; // its place in watched_, while there are some
	int death = -EHOSTDOWN;     // why it was given up last
};

class peers
{
public:
	peers(const options &, identity own, const address &where, message_engine &, resolver &,
	      spi::sink &);

	const peer &operator[](spi::peer_number n) const { return all_[n]; }
	identity own() const { return own_; }
	bool used(spi::peer_number n) const { return n < all_.size() && all_[n].used; }
	/// Whether the number still means this machine.
	bool is(spi::peer_number n, identity who) const { return used(n) && all_[n].who == who; }

	// The core's numbers.
	int open(spi::peer_number, const address &);
	void close(spi::peer_number, std::uint64_t now);
	/// The number of a machine that spoke first, which is held; no_peer: none is left.
	spi::peer_number number_of(identity);

	// Addresses.
	void ask(spi::peer_number n, std::uint64_t now) { resolver_.ask(n, all_[n].who, now); }
	bool crowded() const { return resolver_.crowded(); }
	/// A machine is where its address says, and nowhere else.
	bool fixed_places() const { return options_.fixed_places(); }
	/// The effect of an answer.
	struct change {
		int lost = 0;         ///< the machine is gone: its operations end with this
		bool settled = false; ///< operations that wait for the address go on
		int status = 0;       ///< or end with this
	};
	change resolved(const resolver::result &, std::uint64_t now);
	/// Whether packets from this address may be this machine's, which has no number.
	static bool believable(identity, const coop_addr &from);
	/// The same for a machine with a number.
	bool believable(spi::peer_number, const coop_addr &from) const;

	// Sessions.
	/// Whether messages can be sent to it now.
	bool ready(spi::peer_number n) const
	{
		return all_[n].resolved && all_[n].doubt == doubt::none;
	}
	/// Whether this session is with the machine at the address of the peer.
	bool is_at(spi::peer_number, std::uint32_t chan) const;
	/// The session that the peer began replaces its own, if any.
	void adopt(spi::peer_number, std::uint32_t chan, std::uint64_t now);
	void heard(spi::peer_number n) { sessions_.used(all_[n].session); }
	/// A message in the session of this peer names another machine.
	void contradicted(spi::peer_number, identity speaker, std::uint64_t now);
	/// A stranger has begun a session.
	void appeared(const coop_chan_ev &, std::uint64_t now);
	/// rpc/chan has given it up. @return why.
	int died(spi::peer_number, const coop_chan_ev &);
	/// Another session with it has begun, or the last one is over.
	void restarted(spi::peer_number, std::uint64_t now);
	/// The own address is another: each session begins again.
	void reconnect(std::uint64_t now);

	// Operations under way.
	void began(spi::peer_number, std::uint64_t now);
	void ended(spi::peer_number);
	const roster<spi::peer_number> &watched() const { return watched_; }
	std::uint64_t deadline() const { return active_ ? watch_at_ : ~0ull; }
	/// At the deadline: asks for silent peers.
	void watch(std::uint64_t now);
	/// Asks whether it lives, or takes datagrams of full length. EV_PEER_DEAD tells if not.
	void probe(spi::peer_number, bool whole, std::uint64_t now);

private:
	static constexpr unsigned evict_looks = 16; // at sessions that turn out to be busy
	static constexpr std::uint32_t spare = 4;   // sessions kept free for strangers

	void set_up(spi::peer_number, const address &);
	int connect(spi::peer_number, const coop_chan_peer_addr &, std::uint64_t now);
	int claim(spi::peer_number, const coop_chan_peer_addr &, std::uint64_t now);
	spi::peer_number holder(const coop_addr &) const;
	void end_session(spi::peer_number, std::uint64_t now);
	bool place_of_session(spi::peer_number, coop_chan_peer_addr &) const;
	void leave(spi::peer_number, std::uint64_t now);
	void hold(spi::peer_number);
	void unhold(spi::peer_number);
	bool evict(std::uint64_t now, std::uint32_t spared);
	void unwatch(spi::peer_number n)
	{
		watched_.leave(
			n, [this](auto p) -> auto & { return all_[p].watched_at; });
	}

	struct hash {
		std::size_t operator()(const coop_addr &a) const { return coop_addr_hash(&a); }
	};
	struct same {
		bool operator()(const coop_addr &a, const coop_addr &b) const
		{
			return coop_addr_same(&a, &b);
		}
	};

	const options &options_;
	const identity own_;
	const address &own_address_;
	message_engine &chan_;
	resolver &resolver_;
	spi::sink &sink_;
	std::vector<peer> all_;
	sessions sessions_;
	// Who had a session there last; see holder().
	std::unordered_map<coop_addr, spi::peer_number, hash, same> places_;
	roster<spi::peer_number> watched_; // those with operations under way
	std::uint32_t active_ = 0;         // operations, of all
	std::uint64_t watch_at_ = 0;       // while there are some
};

} // namespace coop::net::ud
