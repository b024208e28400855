// SPDX-License-Identifier: MIT
// node_core.hpp - one engine and one endpoint, put together: what completes goes
// to the engine, what the engine wants done goes to the endpoint and the store.
//
// One owner at a time: everything here is called under the node's engine mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "userland/client/node.hpp"
#include "userland/client/node_requester.hpp"
#include "userland/client/node_responder.hpp"
#include "userland/fetch-host/message_qp.hpp"

namespace coop::client
{

std::uint64_t clock_us(); // CLOCK_MONOTONIC: the engine's time

class node_core
{
public:
	node_core(const node_options &, std::unique_ptr<ud::endpoint>, page_store &);

	// Moves everything that can be moved. True if there was anything.
	bool pump(std::uint64_t now);
	// Asks for a wake-up through the endpoint's descriptor; false: pump again.
	bool arm() { return endpoint_->arm(); }
	int fd() const { return endpoint_->fd(); }
	std::uint64_t deadline() const { return coop_engine_deadline(engine_); }

	int fetch(const content_key &, std::uint64_t file_size, block_ref &&, std::uint64_t pages,
		  const std::vector<std::uint32_t> &openers,
		  std::function<void(const fetch_outcome &)> &&done, std::uint64_t now);
	std::vector<node_requester::ended> take_ended() { return requester_.take_ended(); }
	bool has_ended() const { return requester_.has_ended(); }
	// Something to be said outside of the engine mutex, or nothing.
	std::function<void()> take_news() { return std::exchange(news_, nullptr); }
	std::uint32_t fetches() const { return requester_.in_flight(); }
	std::uint32_t pages_in_flight() const { return requester_.pages_in_flight(); }
	const node_responder &responder() const { return responder_; }
	void cancel_all(std::uint64_t now);
	// Leaves the fabric; fetches that have not ended do so now.
	void close();

	void join(std::uint32_t node_id, const coop_addr &, std::uint64_t now);
	void leave(std::uint32_t node_id);
	void forget_all();
	int add_by_hand(const coop_addr &, std::uint64_t now);

	const coop_addr &self() const { return self_; }
	const coop_engine *engine() const { return engine_; }
	coop_engine *engine() { return engine_; }
	const ud::endpoint &endpoint() const { return *endpoint_; }

private:
	struct daemon_peer {
		coop_addr addr;
		std::uint32_t engine_id;
	};
	enum class role : std::uint8_t { none, control, fetch, serve };
	struct assignment {
		role what = role::none;
		std::uint32_t slot = 0;
	};

	void assign(std::uint32_t qp, role what, std::uint32_t slot);
	void dispatch(const ud::completion &, std::uint64_t now);
	bool drain(bool data, std::uint64_t now);
	void perform(const coop_tx &, std::uint64_t now);
	void handle(const coop_ev &, std::uint64_t now);
	void follow(const ud::endpoint_state &, std::uint64_t now);

	std::unique_ptr<ud::endpoint> endpoint_;
	fetch_host::slab memory_;
	fetch_host::message_qp control_;
	node_requester requester_;
	node_responder responder_;
	coop_addr self_;
	const std::function<void(const coop_addr &)> on_self_;
	ud::endpoint_state network_; // as it was when last looked at
	std::function<void()> news_;
	std::vector<std::uint64_t> engine_memory_;
	coop_engine *engine_;
	std::vector<assignment> roles_;                            // by queue pair index
	std::unordered_map<std::uint32_t, daemon_peer> by_daemon_; // by node id
	bool table_was_full_ = false;                              // said once
	std::vector<ud::completion> completions_;
};

} // namespace coop::client
