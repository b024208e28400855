// SPDX-License-Identifier: MIT
// fetcher.hpp - the requests of `reader` at the rpc/fetch engine of a rail.
//
// Receive work requests of a queue pair that belongs to the request point at the buffer itself;
// pages that cannot be received there are bounced: received in the slab, then copied.
//
// A request that found nothing has two meanings: the other side has no such operation, or the
// engine had given the peer up before it asked. Only in the first case were work requests posted.
//
// Owns what there is to know about each request. Used under the lock of the machine.
#pragma once

#include <vector>

#include "device_memory.hpp"
#include "fetch_engine.hpp"
#include "options.hpp"
#include "pages.hpp"
#include "userland/fetch-host/host.hpp"

namespace coop::net::ud
{

class peer_rails;
class peers;
class reader;

/// Of a work request for bulk data.
std::uint32_t bulk_entries(const coop::ud::endpoint_info &device);

class fetcher final : public fetch_host::fetched_pages, public fetch_engine
{
public:
	fetcher(const options &, fetch_host::slab &, const channels &, const peers &,
		const peer_rails &, const device_memory &, unsigned rail,
		const coop::ud::endpoint_info &device);
	/// `r` learns of the ends.
	void make(const fetch_host::host &, reader &r);

	std::uint32_t max_pages() const override { return max_pages_; }
	std::uint32_t run() const override { return 0; }
	std::uint32_t peer(spi::peer_number, bool renew, std::uint64_t now) override;
	int submit(const reading &, const coop_fetch_req &, const fetch_host::page_list &,
		   std::uint64_t now) override;
	void cancel_fetch(std::uint32_t number, std::uint64_t now) override;

	std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<coop::ud::sge> out) override;
	void posting(std::uint64_t cookie, std::uint32_t slot) override
	{
		records_[cookie].slot = slot;
	}
	void finished(const coop_ev &, std::uint64_t now) override;

private:
	static constexpr std::uint32_t no_slot = 0xffffffff;

	struct record {
		std::uint32_t id = 0;
		std::uint32_t slot = no_slot; // that receives were posted on; no_slot: none yet
		keyed_memory memory;
		std::size_t start = 0, length = 0; // in it
		fetch_host::page_list pages;
		std::uint64_t bounced = 0; // ordinals that are received elsewhere, then copied
	};

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
	const peer_rails &rails_;
	const device_memory &memory_;
	const unsigned rail_; // whose engine this is
	reader *reader_ = nullptr;
	coop_engine *engine_ = nullptr;
	const std::uint32_t most_pieces_; // of a page that is received where it belongs
	std::uint32_t max_pages_ = 0;     // of a request
	std::size_t beyond_at_, bounce_at_;
	std::vector<record> records_;
};

} // namespace coop::net::ud
