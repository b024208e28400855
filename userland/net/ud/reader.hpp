// SPDX-License-Identifier: MIT
// reader.hpp - the receiving side of bulk: another machine's buffer, read into ours.
//
// rpc/fetch does it, as it fetches pages of a file: the "file" is the operation of the other side
// (its token, and the asker), the "version" is the key of that operation. Receive work requests of
// a queue pair that belongs to the request point at the buffer itself; generation, COMMIT, stop and
// drain are those of page fetches. This file cuts a buffer into requests, a few of which are under
// way at a time (the engine's window bounds the bytes over all buffers), and asks again for pages
// that a request did not bring, until nothing has come for a while. The pages asked of a peer at a
// time, and the time they may take, follow what came: the path to one peer, or its processor, may
// be a thousand times slower than another's, and data for a request that is over is sent in vain.
//
// A request that found nothing has two meanings: the other side has no such operation, or the
// engine had given the peer up before it asked. Only in the first case were work requests posted.
//
// Owns the requests, and the pace of each peer. Used under the lock of the machine.
#pragma once

#include <deque>
#include <vector>

#include "channels.hpp"
#include "options.hpp"
#include "pages.hpp"
#include "peers.hpp"
#include "rpc/fetch/window.h"
#include "userland/fetch-host/host.hpp"
#include "userland/fetch-host/page_list.hpp"

namespace coop::net::ud
{

/// A buffer being read. Its owner keeps it until next_over() has returned it.
struct reading {
	keyed_memory memory;
	std::size_t start = 0, length = 0; // in the memory
	std::size_t offset = 0, size = 0;  // in the other side's memory, and all of that
	spi::token from = 0;               // the other side's operation
	std::uint64_t key = 0;             // to use it
	spi::peer_number peer = spi::no_peer;
	std::uint32_t op = 0; // of the machine

	// The reader's.
	std::uint32_t engine_peer = 0;
	std::uint32_t pages = 0, good = 0, next = 0; // next: first page never asked for
	std::vector<std::pair<std::uint32_t, std::uint32_t>> again; // runs of pages
	std::uint32_t in_flight = 0;
	std::uint64_t moved_at = 0;    // when data last came; waiting for its turn does not count
	std::uint64_t waits_since = 0; // for its turn, behind other buffers; 0: it does not
	std::uint64_t pause_until = 0;
	int status = 0;
	bool ending = false; // over, with `status`, once nothing is in flight
	bool queued = false, told = false;
};

class reader final : public fetch_host::fetched_pages
{
public:
	reader(const options &, fetch_host::slab &, const channels &, const peers &,
	       std::uint32_t mtu);
	void make(const fetch_host::host &);
	static std::uint32_t queued(std::uint32_t slots) { return 3 * slots; }
	/// next_over() returns it later.
	void begin(reading &, std::uint64_t now);
	/// It ends soon, with this status unless it ends otherwise first.
	void cancel(reading &, int status, std::uint64_t now);
	/// After the engine had input: readings that wait may go on.
	/// @return whether there may be more to do.
	bool advance(std::uint64_t now);
	/// One that is over, once each; null: none.
	reading *next_over()
	{
		if (over_.empty())
			return nullptr;
		reading *r = over_.back();
		over_.pop_back();
		return r;
	}
	std::uint64_t deadline() const { return wake_; }
	void forget(spi::peer_number);
	/// When a page last came from this peer; 0: never.
	std::uint64_t came_at(spi::peer_number n) const
	{
		return n < paces_.size() ? paces_[n].came_at : 0;
	}

	std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<coop::ud::sge> out) override;
	void posting(std::uint64_t cookie, std::uint32_t slot) override
	{
		records_[cookie].slot = slot;
	}
	void finished(const coop_ev &, std::uint64_t now) override;

private:
	static constexpr std::uint32_t no_slot = 0xffffffff;
	static constexpr std::uint32_t per_reading = 4; // requests of one buffer under way

	struct record {
		reading *of = nullptr;
		std::uint32_t id = 0;
		std::uint32_t slot = no_slot; // that receives were posted on; no_slot: none yet
		std::uint64_t since = 0;      // when it was asked
		fetch_host::page_list pages;
		std::uint64_t bounced = 0; // ordinals that are received elsewhere, then copied
	};

	/// The pages under way from one peer, over all its buffers. `budget` is what a request
	/// gets (us): longer each time nothing came.
	struct pace {
		coop_window window{}; // of size 0 until pace_of()
		std::uint32_t budget = 0;
		std::uint64_t came_at = 0;
	};

	pace &pace_of(const reading &);
	/// A request of n pages is over, and has brought `good` of them.
	void adapt(pace &, std::uint32_t n, std::uint32_t good, int err, std::uint64_t since,
		   std::uint64_t now) const;
	std::uint32_t budget_of(std::uint64_t us) const;
	std::uint32_t engine_peer(spi::peer_number, bool renew, std::uint64_t now);
	int ask(reading &, std::uint64_t now);
	void want(reading &, std::uint64_t now);
	void conclude(reading &, int status, std::uint64_t now);
	void queue(reading &);
	void queue_behind(reading &);
	std::byte *bounce(const record &r, std::uint32_t ordinal) const
	{
		return slots_.at(bounce_at_ + (r.slot * COOP_MAX_PAGES + ordinal) * page_bytes);
	}
	std::byte *beyond(const record &r) const
	{
		return slots_.at(beyond_at_ + r.slot * page_bytes);
	}
	std::uint64_t to_bounce(const record &) const;
	void unbounce(const record &, std::uint64_t good);

	const fetch_host::slab &slots_;
	const channels &channels_;
	const peers &peers_;
	coop_engine *engine_ = nullptr;
	const std::uint32_t budget_; // us of one request, unless it takes longer
	const std::uint64_t patience_;
	const std::uint32_t n_slots_, most_pieces_; // of a page that is received where it belongs
	std::uint32_t max_pages_ = 0;               // of a request
	std::size_t beyond_at_, bounce_at_;
	std::vector<record> records_;
	std::vector<pace> paces_; // by peer number
	std::vector<std::uint32_t> free_;
	std::deque<reading *> waiting_; // have something to ask for
	std::vector<reading *> behind_; // asked just now, so they wait behind the others
	std::vector<reading *> over_;
	std::uint64_t wake_ = ~0ull;
	bool asked_ = false; // since advance() was called
};

} // namespace coop::net::ud
