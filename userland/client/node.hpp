// SPDX-License-Identifier: MIT
// node.hpp - a node on the fabric: fetches pages from peers into the page store, and serves
// peers from it.
//
// It is the user of one fetch_host::host on an end point of its own. It decides what comes
// first when the engine has work (pump()), knows peers by the numbers that the daemon gives them,
// and follows what happens to the end point. The pages are in block_fetches and block_serves.
//
// A thread that waits for pages takes the engine's mutex and polls the end point itself until
// its own fetch has ended, then hands the engine on; a background thread does it when no other
// thread waits, to serve peers and to finish readahead. node_driver decides which. So a single
// fetch of 4 KiB costs the requester no thread switch, and an idle node sleeps in epoll.
//
// Any thread may call what is public.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>

#include "userland/client/block_fetches.hpp"
#include "userland/client/block_serves.hpp"
#include "userland/client/node_driver.hpp"
#include "userland/fetch-host/host.hpp"

namespace coop::client
{

struct offer_stats {
	std::uint64_t made, taken; // blocks offered to a peer; of them, those that it took
	std::uint64_t waiting;     // blocks kept for a peer to take
};

struct node_options {
	std::uint32_t num_rrpc = 64; // queue pairs to serve peers from, four requests each
	std::uint32_t num_srpc = 64; // fetches in flight
	std::uint32_t peer_timeout_ms = 200;
	std::uint32_t qkey = 0x1c00b;
	std::uint32_t serve_bytes_s = 0; // 0: no limit
	bool page_crc = false, page_mac = false;
	std::array<std::uint8_t, 16> fabric_key{};
	std::uint32_t poll_us = 100; // most time spent polling before sleeping
	// The own address has changed, with the port's GID or LID, or the port is up again. Null:
	// the port or the device is gone. Runs on the thread that drives; must not call the node.
	std::function<void(const coop_addr *)> on_self;
	// A peer asks for pages that are absent here, and wants them loaded: claims them and starts
	// to load them, if it can. Runs on the thread that drives; must not block.
	std::function<void(const wanted_pages &)> on_wanted;
	// A peer asks for pages that the kernel may have: claims them and takes them from there.
	// As on_wanted.
	std::function<void(const wanted_pages &)> on_retrieve;
	// Some of the other nodes (daemon's ids) that have this version open, the best to keep
	// this block first. Null: blocks leave without being offered to them.
	std::function<std::vector<std::uint32_t>(const content_key &, std::uint64_t block)> others;
	// A peer offers pages that it is about to drop. As on_wanted.
	std::function<void(const offered_pages &)> on_offered;
};

class node final : public fetcher
{
public:
	// Registers the store's memory with the end point. Throws std::system_error with a text
	// that a person can act on. The store must outlive the node.
	node(const node_options &, std::unique_ptr<ud::endpoint>, page_store &);
	// Ends all fetches (their done runs, with -ECANCELED) and leaves the fabric.
	~node() override;

	int fetch(const content_key &, std::uint64_t file_size, block_ref, std::uint64_t pages,
		  const fetch_sources &, fetch_done) override;
	void flush() override;
	std::uint32_t background_most() const override { return background_most_; }
	std::uint32_t in_flight() const override { return driver_->in_flight(); }
	void drive_until(const std::function<bool()> &ready, std::uint64_t deadline_us) override
	{
		driver_->drive_until(ready, deadline_us);
	}
	void tend() override { driver_->tend(); }
	void wake() override { driver_->wake(); }

	coop_addr self() const; // control queue pair
	// Storage's new run has another fabric key: what is under way with the old one ends, and is
	// reported as usual. The same key: no effect.
	void rekey(const std::array<std::uint8_t, 16> &fabric_key);
	// Peers that the daemon names are known by its node id too.
	void daemon_join(std::uint32_t node_id, const coop_addr &);
	void daemon_leave(std::uint32_t node_id);
	void daemon_forget_all();
	// The address of a node that the daemon named; false: unknown.
	bool find(std::uint32_t node_id, coop_addr &out) const;
	int add_by_hand(const coop_addr &);
	std::vector<coop_peer_info> peers() const;
	std::vector<coop_request_info> requests() const;

	struct coop_engine_stats stats() const;
	offer_stats offers() const;
	ud::endpoint_stats endpoint_stats() const;
	ud::endpoint_state endpoint_state() const;
	void reset_stats();

private:
	friend class node_driver; // pumps, under the mutex

	struct daemon_peer {
		coop_addr addr;
		std::uint32_t engine_id;
	};

	// Moves everything that can be moved. True if there was anything.
	bool pump(std::uint64_t now);
	void dispatch(const ud::completion &, std::uint64_t now);
	bool drain(bool data, std::uint64_t now);
	void follow(const ud::endpoint_state &, std::uint64_t now);
	int submit(const content_key &, std::uint64_t file_size, block_ref &&, std::uint64_t pages,
		   const fetch_sources &, fetch_done &&);
	void name_sources(const fetch_sources &, coop_fetch_req &) const;
	void relay(std::vector<wanted_pages>);
	void forget(std::uint32_t node_id);
	// Blocks that are kept until a peer has taken them, or has had time to.
	struct offered {
		block_ref pin;
		std::uint64_t until;
	};
	void offer_leaving(std::uint64_t now);
	bool offer(const departures::leaving &);
	std::uint32_t node_id_of(std::uint32_t peer) const;
	void note_offered(const coop_ev &);

	const std::uint64_t timeout_us_;
	const std::uint32_t background_most_;
	const std::function<void(const coop_addr *)> on_self_;
	const std::function<void(const wanted_pages &)> on_wanted_, on_retrieve_;
	const std::function<std::vector<std::uint32_t>(const content_key &, std::uint64_t)> others_;
	const std::function<void(const offered_pages &)> on_offered_;
	page_store &store_;
	std::atomic<bool> pages_settled_{false}; // some that serves wait for have stopped loading
	std::atomic<bool> ending_{false};        // callbacks of what ends now may ask for more
	// All of the following but driver_ under its engine mutex.
	fetch_host::slab slab_;
	std::unique_ptr<ud::endpoint> endpoint_;
	fetch_host::message_qp control_;
	block_fetches fetches_;
	departures departures_;
	std::vector<offered> offered_;              // by us
	std::vector<offered_pages> offers_to_take_; // by peers; the driver takes them to on_offered
	offer_stats offer_stats_{};
	block_serves serves_;
	fetch_host::host host_;
	coop_addr self_{};
	ud::endpoint_state network_;                               // as pump() last saw it
	std::function<void()> news_;                               // to be told without the mutex
	std::unordered_map<std::uint32_t, daemon_peer> by_daemon_; // by node id
	bool table_was_full_ = false;                              // said once
	std::vector<ud::completion> completions_;
	std::unique_ptr<node_driver> driver_;
};

} // namespace coop::client
