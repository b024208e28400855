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
#include "channels.hpp"
#include "userland/fetch-host/page_list.hpp"
#include "userland/fetch-host/responder.hpp"

namespace coop::net::ud
{

class source final : public fetch_host::served_pages
{
public:
	source(fetch_host::slab &, const channels &, std::uint32_t slots, bulk &);

	std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<coop::ud::sge> out) override;
	bool lookup(std::uint64_t cookie, const coop_ev &, found &) override;
	std::uint64_t unchanged(std::uint64_t cookie) override;
	void end(std::uint64_t cookie, std::uint64_t /*sent*/) override
	{
		bulk_.close(records_[cookie].op);
	}

private:
	struct record {
		std::uint32_t op = 0;
		keyed_memory memory;
		std::size_t length = 0;
		std::size_t shift = 0; // pages.hpp
		std::uint64_t have = 0;
		fetch_host::page_list pages;
	};

	const fetch_host::slab &slots_;
	const channels &channels_;
	bulk &bulk_;
	std::size_t bounce_at_;
	std::vector<record> records_; // by cookie
};

} // namespace coop::net::ud
