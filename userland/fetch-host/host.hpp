// SPDX-License-Identifier: MIT
// host.hpp - one engine of rpc/fetch with its queue pairs on an end point.
//
// What completes goes to the engine, what the engine wants done goes to the end point. What pages
// there are and where they lie, its user knows: fetched_pages and served_pages. The user also
// polls the end point, and asks the engine for work: it has other queue pairs and other work, and
// decides what comes first.
//
//   completed()   a completion that was polled
//   perform()     what coop_engine_next_tx() gave
//   handle()      what coop_engine_next_event() gave
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "userland/fetch-host/message_qp.hpp"
#include "userland/fetch-host/requester.hpp"
#include "userland/fetch-host/responder.hpp"

namespace coop::fetch_host
{

class host
{
public:
	/// `control` carries its messages. All of them outlive it. @throw std::system_error.
	host(ud::endpoint &, const slab &, fetched_pages &, served_pages &, message_qp &control,
	     const shape &);
	/// What of an engine's configuration follows from the end point and the shape, once
	/// `control` is there.
	coop_engine_cfg config(const std::array<std::uint8_t, 16> &key) const;
	/// Creates the engine and the queue pairs. @throw std::system_error.
	void make(const coop_engine_cfg &, std::uint64_t now);

	coop_engine *engine() const { return static_cast<coop_engine *>(engine_.get()); }
	std::uint32_t max_pages() const { return requester_.max_pages(); } // of a fetch

	/// May the engine give out data of serves? A completion makes room. With shape::bounded.
	bool may_send() const { return responder_.has_room(); }
	/// Of any queue pair but `control`.
	void completed(const ud::completion &, std::uint64_t now);
	void perform(const coop_tx &, std::uint64_t now);
	void handle(const coop_ev &, std::uint64_t now);
	/// See responder.hpp.
	void looked_up(const coop_ev &ev, std::uint64_t cookie, const served_pages::found &found,
		       std::uint64_t now)
	{
		responder_.looked_up(ev, cookie, found, now);
	}

private:
	struct role {
		enum : std::uint8_t { none, fetch, serve } what = none;
		std::uint32_t index = 0;
	};
	void assign(std::uint32_t qp, role);

	ud::endpoint &endpoint_;
	fetched_pages &fetched_;
	message_qp &control_;
	const shape shape_;
	requester requester_;
	responder responder_;
	std::vector<role> roles_; // by queue pair of the end point
	std::unique_ptr<void, void (*)(void *)> engine_;
};

} // namespace coop::fetch_host
