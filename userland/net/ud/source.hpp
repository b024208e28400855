// SPDX-License-Identifier: MIT
// source.hpp - the sending side of bulk: requests for our buffers, answered from where they
// lie.
//
// rpc/fetch does it, as it serves pages of a file. Whose buffer a request means, and whether
// the asker may have it, is found out here: token, key, direction and identity must all
// be right, or the request is told that there is nothing. The memory of a buffer is read
// until end() of every request for it; its operation does not end before.
#pragma once

#include <vector>

#include "channels.hpp"
#include "identity.hpp"
#include "pages.hpp"
#include "userland/fetch-host/page_list.hpp"
#include "userland/fetch-host/responder.hpp"

namespace coop::net::ud
{

class source final : public fetch_host::served_pages
{
public:
	/// What may be read by this asker, or null memory; `op` is given back in close().
	struct offer {
		keyed_memory memory;
		std::size_t length = 0;
		std::uint32_t op = 0;
	};
	struct owner {
		/// The operation is read from now on.
		virtual bool open(spi::token, std::uint64_t key, identity asker,
				  const coop_addr &from, offer &out) = 0;
		/// Whether it is still what it was.
		virtual bool holds(const offer &) = 0;
		virtual void close(const offer &) = 0;

	protected:
		~owner() = default;
	};

	source(fetch_host::slab &, const channels &, std::uint32_t slots, owner &);

	std::uint32_t pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<coop::ud::sge> out) override;
	bool lookup(std::uint64_t cookie, const coop_ev &, found &) override;
	std::uint64_t unchanged(std::uint64_t cookie) override;
	void end(std::uint64_t cookie) override { owner_.close(records_[cookie].what); }

private:
	struct record {
		offer what;
		std::uint64_t have = 0;
		fetch_host::page_list pages;
	};

	const fetch_host::slab &slots_;
	const channels &channels_;
	owner &owner_;
	std::size_t bounce_at_;
	std::vector<record> records_; // by cookie
};

} // namespace coop::net::ud
