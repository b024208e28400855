// SPDX-License-Identifier: MIT
// source.hpp - the sending side of bulk: requests for our buffers, answered in place.
//
// rpc/fetch does it, as it serves pages of a file. bulk decides whether the asker may read the
// buffer; if not, the request is told that there is nothing. Owns a record for each request. The
// memory of a buffer is read until end() of every request for it; its operation does not end
// before. Used under the lock of the machine.
#pragma once

#include <vector>

#include "bulk.hpp"
#include "device_memory.hpp"
#include "userland/fetch-host/page_list.hpp"
#include "userland/fetch-host/responder.hpp"

namespace coop::net::ud
{

class source final : public fetch_host::served_pages
{
public:
	source(fetch_host::slab &, const channels &, std::uint32_t slots, bulk &,
	       const device_memory &, unsigned rail);

	std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<coop::ud::sge> out) override;
	bool lookup(std::uint64_t cookie, const coop_ev &, found &) override;
	/// Its end point is gone, and nothing reads the memory of any request.
	void lose();
	std::uint64_t unchanged(std::uint64_t cookie) override;
	void end(std::uint64_t cookie, std::uint64_t /*sent*/) override { close(records_[cookie]); }

private:
	struct record {
		std::uint32_t op = 0;
		bool open = false;
		keyed_memory memory;
		std::size_t length = 0;
		std::size_t shift = 0; // pages.hpp
		std::uint64_t have = 0;
		fetch_host::page_list pages;
	};

	void close(record &r)
	{
		r.open = false;
		bulk_.close(r.op);
	}

	const fetch_host::slab &slots_;
	const channels &channels_;
	bulk &bulk_;
	const device_memory &memory_;
	const unsigned rail_; // by which requests come
	std::size_t bounce_at_;
	std::vector<record> records_; // by cookie
};

} // namespace coop::net::ud
