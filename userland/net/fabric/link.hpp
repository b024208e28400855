// SPDX-License-Identifier: MIT
// link.hpp - a connection to a peer, and the work under way on it.
//
// A link sends and receives. Each machine makes the one it sends on when it first has to;
// if the peer has been quicker, its link serves both. When two make one at the same time
// there are two, and each sends on its own: nothing has to be agreed on.
//
// A work is what a completion of libfabric names, so its memory stays where it is for the life
// of the machine. Its id, which peers are told, has a generation of 13 bits in it: what they say
// about a work that has ended finds nothing until 8192 others have been in its place.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "../transport.hpp"
#include "local_keys.hpp"
#include "provider.hpp"
#include "shared_line.hpp"
#include "wire.hpp"

namespace coop::net::fabric
{

/// What a completion is of.
enum class role : std::uint8_t { receive, copy, work };

struct link;

/// What op_context of a completion points to.
struct posted {
	fi_context2 context{}; ///< for providers that want it; comes first
	const fabric::role role;
	/// Sends and writes: where completions are to come from, and the others there.
	fabric::link *on = nullptr;
	posted *on_before = nullptr, *on_after = nullptr;

	explicit posted(fabric::role r) : role(r) {}
};

/// A receive buffer, or a copy of what is sent.
struct bounce : posted {
	explicit bounce(fabric::role r) : posted(r) {}

	std::byte *data = nullptr;
	std::size_t length = 0;
	void *desc = nullptr;
	fabric::kind what = fabric::kind::control; ///< copies: how the word calls it
	bool small = false;                        ///< copies: of a short text
	std::uint32_t number = 0, cookie = 0;      ///< copies of answers: of the link,
	std::uint64_t answer = 0;                  ///< and how many there were; 0: of none
	std::unique_ptr<std::byte[]> own;
	handle<fid_mr> region;
};

struct work : posted {
	enum class stage : std::uint8_t {
		free,
		queued,  ///< nothing has been sent
		sending, ///< a small message is with the provider
		offered, ///< W: offer, put or lend is out, and no answer yet
		starved, ///< L: offered a message, and there is no receive buffer
		landing, ///< L: the peer may write, or lend
		writing, ///< W: with the provider
		written, ///< W: all written, the peer has to say done
		zombie,  ///< ended, but libfabric may still name it
	};

	work() : posted(fabric::role::work) {}

	work::stage stage = stage::free;
	bool writer = false;      ///< this side sends the data
	bool message = false;     ///< and not bulk
	bool active = false;      ///< an operation here has begun it
	bool cancelled = false;   ///< the operation is to end
	bool late = false;        ///< landing, and looked at before
	bool reads = false;       ///< L: this side reads what is lent
	bool done = false;        ///< the peer has said so; writes are still to complete
	std::uint64_t parked = 0; ///< starved: which of those that wait is its
	line_part unnamed;        ///< writes whose failure would not name it
	unsigned out = 0;         ///< completions to come
	std::uint32_t id = 0, peer_id = 0;
	fabric::link *link = nullptr;
	work *before = nullptr, *after = nullptr; ///< among the link's
	queue_type queue = queue_type::msg_send;
	spi::token token = 0; ///< of the operation here; 0: a message that comes
	spi::memory memory;
	std::size_t offset = 0, length = 0;
	spi::landing land;
	std::uint64_t remote = 0, remote_key = 0; ///< token and key of the passive operation
	std::vector<handle<fid_mr>> keys;         ///< L: what the peer may write by
	std::vector<region> regions; ///< W: where to write; L: where to read, the pledge first
	/// W: what the peer reads after the data, to know that it was still there. 0: it is not.
	std::atomic<std::uint64_t> pledge{0};
	local_keys::descriptors local; ///< W: of the memory, where the provider wants them
	std::size_t written = 0, region_at = 0, region_into = 0;
	std::size_t landing_at = 0; ///< among the messages that land
	static std::size_t &landing_place(work *w) { return w->landing_at; }
};

struct link {
	enum class state : std::uint8_t {
		connecting, ///< nothing can be sent yet
		ready,
		closing, ///< nothing new is sent; bye has been said
		dying,   ///< to be closed at the next opportunity
	};
	/// What the port keeps with it.
	struct side {
		virtual ~side() = default;
	};

	link::state state = state::connecting;
	bool used = false;                    ///< since it was last looked at
	bool leaving = false;                 ///< the peer has closed it for being idle
	bool left = false;                    ///< it has said farewell; messages of it wait here
	bool late = false;                    ///< closing, and looked at before
	bool greeted = false;                 ///< has been ready once
	bool bade = false;                    ///< the peer has said bye
	std::uint32_t number = 0, cookie = 0; ///< what the peer puts into its words
	std::uint64_t base = 0;               ///< what we put into ours
	fid_ep *ep = nullptr;                 ///< where to send
	fi_addr_t dest = FI_ADDR_UNSPEC;
	unsigned credit = 0, credit_most = 0; ///< messages we may send
	unsigned taken = 0;                   ///< messages of the peer that are not consumed
	unsigned owed = 0;                    ///< consumed, and the peer does not know
	std::size_t parked = 0;               ///< bytes of messages that wait for a buffer
	line_part parkings;                   ///< those, and offers
	std::size_t eager = 0;                ///< largest message without an offer
	spi::peer_number peer = spi::no_peer;
	net::address address;
	int status = 0;                              ///< dying: why
	std::uint64_t answers = 0, answers_gone = 0; ///< made by the peer; with the network
	work *works = nullptr;
	fabric::posted *under_way = nullptr; ///< with the provider: their completions are to come
	std::size_t posting_at = 0;          ///< among the links that have such
	static std::size_t &posting_place(link *l) { return l->posting_at; }
	std::size_t backlog_at = 0; ///< among those to try again
	static std::size_t &backlog_place(link *l) { return l->backlog_at; }
	std::size_t leaving_at = 0; ///< among those to take leave of
	static std::size_t &leaving_place(link *l) { return l->leaving_at; }
	time_point look_at = never;                        ///< then it is looked at
	fabric::link *earlier = nullptr, *later = nullptr; ///< in that order
	std::deque<posted *> urgent; ///< control and writes the provider had no room for
	std::deque<std::uint32_t> bulk, messages; ///< ids of works to start
	std::unique_ptr<side> side;

	bool ready() const { return state == state::ready; }
	bool idle() const { return urgent.empty() && messages.empty() && bulk.empty(); }
	/// Nothing is under way on it, as far as this side knows.
	bool quiet() const { return !works && !taken && idle(); }
	std::uint64_t stamp(fabric::kind k)
	{
		const unsigned n = std::min(owed, word::credits_most);
		return word::with(base, k, n);
	}
	/// What stamp() gave back has gone.
	void stamped(std::uint64_t w) { owed -= word::credits(w); }
};

} // namespace coop::net::fabric
