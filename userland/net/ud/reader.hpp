// SPDX-License-Identifier: MIT
// reader.hpp - the receiving side of bulk: another machine's buffer, read into ours.
//
// rpc/fetch does it, as it fetches pages of a file: the "file" is the operation of the other side
// (its token, and the asker), the "version" is the key of that operation; generation, COMMIT, stop
// and drain are those of page fetches. This file cuts a buffer into requests, a few of which are
// under way at a time (the engine's window bounds the bytes over all buffers), and asks again for
// pages that a request did not bring, until nothing has come for a while. The pages asked of a peer
// at a time, and the time they may take, follow what came: the path to one peer, or its processor,
// may be a thousand times slower than another's, and data for a request that is over is sent in
// vain.
//
// A machine with several rails (rail.hpp) has an engine on each. The requests of a buffer take
// turns between those that have room, each at its own pace; what a request did not bring, any rail
// may bring.
//
// Owns the requests, and the pace of each peer. Used under the lock of the machine.
#pragma once

#include <deque>
#include <vector>

#include "fetch_engine.hpp"
#include "options.hpp"
#include "pages.hpp"
#include "peer_rails.hpp"
#include "rpc/fetch/window.h"

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
	std::uint32_t engine_peer = 0;               // of the first rail
	unsigned rail = 0;                           // whose turn it is
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

class reader
{
public:
	/// `first`: of the first rail.
	reader(const options &, fetch_engine &first, const peers &);
	/// Of the next rail; all of them share what is known of the peers'.
	void add_rail(fetch_engine &, peer_rails &);
	static std::uint32_t queued(std::uint32_t slots) { return 3 * slots; }
	/// The most requests that are under way on a rail.
	static std::uint32_t requests(const options &o) { return o.fetches + queued(o.fetches); }
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
		std::uint64_t at = 0;
		for (const rail_of_reader &r : rails_)
			if (n < r.paces.size())
				at = std::max(at, r.paces[n].came_at);
		return at;
	}
	/// What went over a rail.
	struct counters {
		std::uint64_t requests = 0, failed = 0; ///< failed: it brought nothing
		std::uint64_t bytes = 0;                ///< that came, in whole pages
	};
	const counters &stats(unsigned rail) const { return rails_[rail].count; }

	/// This rail is lost, with the requests that are under way on it; others bring their pages.
	void lose(unsigned rail, std::uint64_t now);
	/// A request is over: bit i for the i-th of its pages that has come. `asked`: the peer was.
	void finished(std::uint32_t number, std::uint64_t pages, int err, bool asked,
		      std::uint64_t now);

private:
	static constexpr std::uint32_t per_reading = 4; // requests of one buffer under way

	struct record {
		reading *of = nullptr;
		std::uint64_t since = 0; // when it was asked
		fetch_host::page_list pages;
	};

	/// The pages under way from one peer on a rail, over all its buffers. `budget` is what a
	/// request gets (us): longer each time nothing came.
	struct pace {
		coop_window window{}; // of size 0 until pace_of()
		std::uint32_t budget = 0;
		std::uint64_t came_at = 0;
	};

	struct rail_of_reader {
		fetch_engine *engine;
		std::vector<pace> paces; // by peer number
		std::vector<std::uint32_t> free;
		counters count;
		bool lost = false;
	};

	void add_engine(fetch_engine &);
	unsigned rail_of(std::uint32_t number) const { return number / per_rail_; }
	bool usable(const reading &r, unsigned rail, std::uint64_t now) const
	{
		return !known_ || (!rails_[rail].lost && known_->usable(r.peer, rail, now));
	}
	pace &pace_of(const reading &, unsigned rail);
	/// A request of n pages is over, and has brought `good` of them. `patient`: if nothing
	/// came, the next ones get more time.
	void adapt(pace &, bool patient, std::uint32_t n, std::uint32_t good, int err,
		   std::uint64_t since, std::uint64_t now) const;
	std::uint32_t budget_of(std::uint64_t us) const;
	int ask(reading &, std::uint64_t now);
	int ask(reading &, unsigned rail, std::uint64_t now);
	void renew(reading &, unsigned rail, std::uint64_t now);
	void judge(const reading &, unsigned rail, std::uint64_t pages, int err, std::uint64_t now);
	void want(reading &, std::uint64_t now);
	void conclude(reading &, int status, std::uint64_t now);
	void queue(reading &);
	void queue_behind(reading &);
	/// The first page that cannot be in a request that begins with this one.
	static std::uint64_t end_of_run(const fetch_engine &e, std::uint64_t page)
	{
		const std::uint32_t run = e.run();
		return run ? (page / run + 1) * run : ~0ull;
	}

	const peers &peers_;
	peer_rails *known_ = nullptr; // null: there is one rail
	const std::uint32_t budget_;  // us of one request, unless it takes longer
	const std::uint64_t patience_;
	const std::uint32_t n_slots_, per_rail_;
	std::vector<record> records_; // per_rail_ for each rail
	std::vector<rail_of_reader> rails_;
	std::deque<reading *> waiting_; // have something to ask for
	std::vector<reading *> behind_; // asked just now, so they wait behind the others
	std::vector<reading *> over_;
	std::uint64_t wake_ = ~0ull;
	bool asked_ = false; // since advance() was called
};

} // namespace coop::net::ud
