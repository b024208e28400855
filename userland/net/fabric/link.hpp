// SPDX-License-Identifier: MIT
// link.hpp - a connection to a peer, and the work under way on it.
//
// A link sends and receives. Each machine makes a link when it first has to send; if the peer has
// made one earlier, that link serves both. If both make one at the same time there are two, and
// each side sends on its own: no agreement is needed.
//
// libfabric's completions point to a work, so its memory does not move during the life of the
// machine. Its id, which peers know, contains a generation: a peer's message about a work that has
// ended finds nothing, until the id comes back (works.hpp).
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "../lanes.hpp"
#include "../transport.hpp"
#include "local_keys.hpp"
#include "provider.hpp"
#include "wire.hpp"

namespace coop::net::fabric
{

/// The kind of object that a completion refers to.
enum class role : std::uint8_t { receive, copy, work };

struct link;

/// The target of a completion's op_context.
struct posted {
	fi_context2 context{}; ///< for providers that use it; must be first
	const fabric::role role;
	/// Sends and writes: the link with the completions to come, and its other ones.
	fabric::link *on = nullptr;
	posted *on_before = nullptr, *on_after = nullptr;

	explicit posted(fabric::role r) : role(r) {}
};

/// A receive buffer, or a copy of sent data.
struct bounce : posted {
	explicit bounce(fabric::role r) : posted(r) {}

	std::byte *data = nullptr;
	std::size_t length = 0;
	void *desc = nullptr;
	bool in_use = false;                       ///< copies: a completion is to come
	fabric::kind what = fabric::kind::control; ///< copies: the kind in the word
	bool small = false;                        ///< copies: of a short text
	std::uint64_t answer = 0;                  ///< copies: ordinal of an answer; 0: none
	std::unique_ptr<std::byte[]> own;
	handle<fid_mr> region;
};

struct work : posted {
	enum class stage : std::uint8_t {
		free,
		queued,  ///< nothing has been sent
		sending, ///< a small message has been posted
		offered, ///< W: offer, put or lend sent, no answer yet; lent: the peer reads
		starved, ///< L: a message was offered, and there is no receive buffer
		landing, ///< L: the peer may write, or lend
		reading, ///< L: reads posted
		writing, ///< W: writes posted
		written, ///< W: all written, waiting for the peer's done
		zombie,  ///< ended, but completions may still refer to it
	};

	work() : posted(fabric::role::work) {}

	work::stage stage = stage::free;
	bool writer = false;      ///< this side sends the data
	bool message = false;     ///< a message, not bulk data
	bool active = false;      ///< an operation of this side started it
	bool cancelled = false;   ///< the operation is to end
	bool late = false;        ///< landing, and already found so by an earlier look
	bool reads = false;       ///< L: this side reads what the peer will lend
	bool lent = false;        ///< W: the peer may read until it has reported done
	bool done = false;        ///< the peer has reported done; writes are still to complete
	std::uint64_t parked = 0; ///< starved: number of its entry among the parked messages
	unsigned out = 0;         ///< completions to come
	std::uint32_t id = 0, peer_id = 0;
	fabric::link *link = nullptr;
	work *before = nullptr, *after = nullptr; ///< list of the link
	spi::token token = 0; ///< of the local operation; 0: an incoming message
	spi::memory memory;
	std::size_t offset = 0, length = 0;
	spi::landing land;
	std::uint64_t remote = 0, remote_key = 0; ///< token and key of the passive operation
	bool ranged = false;                      ///< that is a reusable one,
	std::size_t remote_offset = 0;            ///< and its range begins here
	std::vector<handle<fid_mr>> keys;         ///< with these the peer may write, or (lent) read
	std::vector<region> regions;              ///< the peer's: where to write, or to read
	local_keys::descriptors local; ///< of the memory that is posted, if the provider needs them
	std::size_t moved = 0, region_at = 0, region_into = 0; ///< posted so far
	std::size_t landing_at = 0;                            ///< index among the landing messages
	static std::size_t &landing_place(work *w) { return w->landing_at; }
};

/// A message, or the offer of one, that waits for a receive buffer.
struct parked {
	fabric::link *link = nullptr;
	std::uint32_t work = 0;   ///< an offer; 0: the bytes are here
	std::uint64_t number = 0; ///< unique, unlike ids of works
	std::size_t length = 0;
	std::unique_ptr<std::byte[]> data;
	time_point until; ///< end of its wait
};

struct link {
	enum class state : std::uint8_t {
		connecting, ///< nothing can be sent yet
		ready,
		closing, ///< nothing new is sent; bye has been sent
		dying,   ///< to be closed at the next opportunity
	};
	/// The port's part of the link.
	struct side {
		virtual ~side() = default;

		time_point give_up = never; ///< end of the peer's time to answer
		time_point turn = never;    ///< end of an attempt; never: it does not connect
	};

	link::state state = state::connecting;
	bool used = false;    ///< since the last look
	bool leaving = false; ///< the peer has closed it for being idle
	bool left = false;    ///< the peer has sent farewell; its messages wait here
	bool late = false;    ///< closing, and already found so by an earlier look
	bool greeted = false; ///< has been ready once
	bool bade = false;    ///< the peer has sent bye
	bool lends = false;   ///< the peer lends what this side can read
	std::uint32_t number = 0, cookie = 0; ///< the peer puts these into its words
	std::uint64_t base = 0;               ///< the constant part of our words
	fid_ep *ep = nullptr;                 ///< to send on
	fi_addr_t dest = FI_ADDR_UNSPEC;
	unsigned credit = 0, credit_most = 0; ///< messages that we may still send
	unsigned taken = 0;                   ///< messages of the peer that are not consumed
	unsigned owed = 0;                    ///< messages consumed, not yet credited to the peer
	std::size_t parked_bytes = 0;         ///< memory of messages waiting for a buffer
	/// Those messages, and offers, in order.
	std::list<std::list<fabric::parked>::iterator> parkings;
	std::size_t eager = 0; ///< largest message without an offer
	spi::peer_number peer = spi::no_peer;
	net::address address;
	int status = 0; ///< dying: the reason
	std::uint64_t answers = 0,
		      answers_gone = 0; ///< caused by the peer; of these, sent to the network
	work *works = nullptr;
	fabric::posted *under_way = nullptr; ///< posted, with completions to come
	std::size_t posting_at = 0;          ///< index among the links with such
	static std::size_t &posting_place(link *l) { return l->posting_at; }
	std::size_t backlog_at = 0; ///< index among those to try again
	static std::size_t &backlog_place(link *l) { return l->backlog_at; }
	std::size_t leaving_at = 0; ///< index among those to say farewell to
	static std::size_t &leaving_place(link *l) { return l->leaving_at; }
	time_point look_at = never;                        ///< time of the next look
	fabric::link *earlier = nullptr, *later = nullptr; ///< neighbours in order of that time
	std::deque<posted *> urgent;    ///< control and writes for which the provider had no room
	std::deque<std::uint32_t> bulk; ///< ids of works to start
	lanes<std::deque<std::uint32_t>> messages; ///< the same
	std::unique_ptr<side> side;

	bool ready() const { return state == state::ready; }
	bool idle() const { return urgent.empty() && messages.empty() && bulk.empty(); }
	/// As far as this side knows, nothing is under way on it.
	bool quiet() const { return !works && !taken && idle(); }
	/// The provider, or the peer by RMA, may still access memory of an operation on it.
	bool uses_memory() const
	{
		for (const work *w = works; w; w = w->after)
			if (w->out || !w->keys.empty())
				return true;
		return false;
	}
	std::uint64_t stamp(fabric::kind k)
	{
		const unsigned n = std::min(owed, word::credits_most);
		return word::with(base, k, n);
	}
	/// The word that stamp() returned has been sent.
	void stamped(std::uint64_t w) { owed -= word::credits(w); }
};

} // namespace coop::net::fabric
