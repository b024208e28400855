// SPDX-License-Identifier: MIT
// node.hpp - the engine's host in user space: one engine, one UD endpoint, one
// page store.
//
// Whoever waits, drives: a thread that needs pages takes the engine's mutex and
// polls the endpoint itself until its own fetch is finished, then hands the
// engine on; a background thread drives when nobody waits (to serve peers and
// to finish readahead). So a lone 4 KiB fetch costs no thread switch on the
// requester, and with nothing to do the node sleeps in epoll.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/fetch/engine.h"
#include "userland/client/page_store.hpp"
#include "userland/ud/endpoint.hpp"

namespace coop::client
{

struct node_options {
	std::uint32_t num_rrpc = 64; // requests from peers served at once
	std::uint32_t num_srpc = 64; // fetches in flight
	std::uint32_t peer_timeout_ms = 200;
	std::uint32_t qkey = 0x1c00b;
	std::uint32_t serve_bytes_s = 0; // 0: no limit
	bool page_crc = false, page_mac = false;
	std::array<std::uint8_t, 16> fabric_key{};
	std::uint32_t poll_us = 100; // most time spent polling before sleeping
	// The own address has changed, as it does with the port's GID or LID: whoever was told the
	// old one wants to know. On the thread that drives; must not call the node.
	std::function<void(const coop_addr &)> on_self;
};

struct fetch_outcome {
	std::uint64_t good; // pages of the block that a peer delivered (already published)
	std::uint32_t peer; // engine id, COOP_NONE if none
	int err;            // 0, or why not all: see COOP_EV_FETCH_DONE
};

class node
{
public:
	virtual ~node() = default;
	// Registers the store's memory with the endpoint. Throws std::system_error with a text
	// that a person can act on. The store must outlive the node.
	// The destructor ends all fetches (their done runs, with -ECANCELED) and leaves the fabric.
	static std::unique_ptr<node> create(const node_options &, std::unique_ptr<ud::endpoint>,
					    page_store &);

	virtual coop_addr self() const = 0; // control QP
	// Fetches 'pages' of the block, which the caller has claimed; delivered ones are published,
	// the rest stay claimed by the caller. done runs on whatever thread drives; it must not
	// block. 0, or -EAGAIN, -ENOENT (go to storage; done does not run).
	virtual int fetch(const content_key &, std::uint64_t file_size, block_ref,
			  std::uint64_t pages, const std::vector<std::uint32_t> &openers,
			  std::function<void(const fetch_outcome &)> done) = 0;
	// Fetches in flight: while there are any, waiting is best done in drive_until().
	virtual std::uint32_t in_flight() const = 0;
	// Returns when ready() says so or at the deadline (CLOCK_MONOTONIC, us), driving the engine
	// meanwhile if no other thread does. ready is also called from the thread that drives: it
	// must be safe there, short, and not call the node.
	virtual void drive_until(const std::function<bool()> &ready, std::uint64_t deadline_us) = 0;
	// After a fetch() that this thread will not wait for: sees to it that somebody drives.
	virtual void tend() = 0;
	// Something outside the node (storage) may have made a ready() true. Cheap; any thread.
	virtual void wake() = 0;

	// Peers that the daemon names are known by its node id too.
	virtual void daemon_join(std::uint32_t node_id, const coop_addr &) = 0;
	virtual void daemon_leave(std::uint32_t node_id) = 0;
	virtual void daemon_forget_all() = 0;
	virtual int add_by_hand(const coop_addr &) = 0;
	virtual std::vector<coop_peer_info> peers() const = 0;
	virtual std::vector<coop_request_info> requests() const = 0;
	virtual struct coop_engine_stats stats() const = 0;
	virtual ud::endpoint_stats endpoint_stats() const = 0;
	virtual ud::endpoint_state endpoint_state() const { return {}; }
	virtual void reset_stats() = 0;
};

} // namespace coop::client
