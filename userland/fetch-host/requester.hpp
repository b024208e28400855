// SPDX-License-Identifier: MIT
// requester.hpp - the queue pairs that fetches receive by, and the work on memory that the
// engine asks for.
//
// From submit to EV_FETCH_DONE the pages of a fetch belong to the network, whatever becomes of
// the request.
#pragma once

#include <vector>

#include "userland/fetch-host/page_memory.hpp"
#include "userland/fetch-host/shape.hpp"
#include "userland/fetch-host/slab.hpp"

namespace coop::fetch_host
{

/// The pages that fetches fill, by the cookie of the fetch: shape's fetches + queued of them.
class fetched_pages : public page_memory
{
public:
	/// Receives for the fetch are about to be posted on the queue pair of this slot.
	virtual void posting(std::uint64_t cookie, std::uint32_t slot) {}
	/// EV_FETCH_DONE; calls coop_engine_fetch_release().
	virtual void finished(const coop_ev &, std::uint64_t now) = 0;

protected:
	~fetched_pages() = default;
};

class requester
{
public:
	/// @throw std::system_error: not even one page fits a receive queue.
	requester(ud::endpoint &, const slab &, fetched_pages &, const shape &);
	/// Creates the queue pairs and tells the engine. @throw std::system_error.
	void make(coop_engine *);
	std::uint32_t qp(std::uint32_t slot) const { return qps_[slot]; }
	std::uint32_t max_pages() const { return max_pages_; } // of a fetch
	/// Receives that a queue pair has room for: the engine's fetch_depth.
	std::uint32_t depth() const { return depth_; }

	void post(const coop_tx &, std::uint64_t now);
	void stop(std::uint32_t slot);
	void reset(std::uint32_t slot);
	void completed(std::uint32_t slot, const ud::completion &, std::uint64_t now);
	void verify(const coop_ev &, std::uint64_t now);

private:
	void put_right(const coop_ev &);

	ud::endpoint &endpoint_;
	const slab &slab_;
	fetched_pages &pages_;
	const shape shape_;
	coop_engine *engine_ = nullptr;
	const std::uint32_t per_page_; // datagrams
	std::uint32_t max_pages_;      // make() may lower it: messages may name fewer pages
	const std::uint32_t depth_; // of a peer with smaller datagrams a page takes more receives
	std::vector<std::uint32_t> qps_; // by slot
	std::vector<std::byte> hold_;
	std::vector<ud::sge> sges_;
	std::vector<ud::recv_wr> wrs_;
};

} // namespace coop::fetch_host
