// SPDX-License-Identifier: MIT
// node_responder.hpp - serving peers from the page store.
//
// A page that is valid never changes while it is pinned, so what was found at the
// start of a serve is what was sent: the re-check after sending has nothing to
// take away. The pins are held until the engine says that the serve has ended,
// which is after the last send has completed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "userland/client/page_store.hpp"
#include "userland/fetch-host/slab.hpp"
#include "userland/ud/endpoint.hpp"

namespace coop::client
{

class node_responder
{
public:
	node_responder(ud::endpoint &, const fetch_host::slab &, page_store &, std::uint32_t slots,
		       std::uint32_t qkey);
	void create_qps(coop_engine *);
	// Sends that a queue pair has room for.
	[[nodiscard]] static std::uint32_t depth(unsigned page_shift, std::uint32_t mtu);
	std::uint32_t qp(std::uint32_t slot) const { return qps_[slot].qp; }
	std::uint32_t in_progress() const { return in_progress_; }
	// Pages looked up so far: the driver judges by it whether requests are small.
	std::uint64_t lookups() const { return lookups_; }
	std::uint64_t pages_looked_up() const { return pages_looked_up_; }

	void lookup(const coop_ev &, std::uint64_t now);
	void recheck(const coop_ev &, std::uint64_t now);
	void end(const coop_ev &);
	void send(const coop_tx &, std::uint64_t now);
	void completed(std::uint32_t slot, const ud::completion &, std::uint64_t now);

private:
	using page_sums = std::array<std::uint64_t, COOP_MAX_PAGES>;

	// An extent lies in at most two blocks, since it has at most 64 pages.
	static constexpr std::uint32_t max_blocks = 2 * COOP_MAX_EXTENTS;

	struct record {
		bool used = false;
		block_ref pins[max_blocks];
		std::uint32_t n_pins = 0;
		std::uint64_t have = 0;
		const std::byte *page[COOP_MAX_PAGES]; // by ordinal, null: absent
	};
	// Of the pages that are here, as the event asks for; null if it asks for none.
	const std::uint64_t *sums_of(const coop_ev &, const record &, page_sums &) const;

	// A batch posted: its last send is signalled and completes in order.
	struct queue_pair {
		std::uint32_t qp = 0;
		std::uint32_t unfinished = 0; // batches
		bool dead = false;
	};

	ud::endpoint &endpoint_;
	const fetch_host::slab &memory_;
	page_store &store_;
	coop_engine *engine_ = nullptr;
	const std::uint32_t qkey_;
	std::vector<queue_pair> qps_; // by serve slot
	std::vector<record> records_; // by cookie
	std::vector<std::uint32_t> free_;
	std::uint32_t in_progress_ = 0;
	std::uint64_t lookups_ = 0, pages_looked_up_ = 0;
	std::vector<ud::sge> sges_;
	std::vector<ud::send_wr> wrs_;
};

} // namespace coop::client
