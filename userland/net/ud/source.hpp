// SPDX-License-Identifier: MIT
// source.hpp - the sending side of bulk: requests for our buffers, answered from where they
// lie.
//
// rpc/serve does it, as it serves pages of a file. Whose buffer a request means, and whether
// the asker may have it, is found out here: token, key, direction and identity must all
// be right, or the request is told that there is nothing. The memory of a buffer is read
// until end() of every request for it; its operation does not end before.
#pragma once

#include <functional>
#include <vector>

#include "channels.hpp"
#include "identity.hpp"
#include "pages.hpp"
#include "rpc/fetch/engine.h"

namespace coop::net::ud
{

class source
{
public:
	/// What may be read by this asker, or null memory; `op` is given back in end().
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

	source(coop::ud::endpoint &, fetch_host::slab &, const channels &, std::uint32_t slots,
	       owner &);
	/// @throw std::system_error.
	void make(coop_engine *);
	std::uint32_t qp() const { return qp_; }
	static std::uint32_t depth(std::uint32_t mtu)
	{
		return COOP_MAX_PAGES * ((page_bytes + mtu - 1) / mtu);
	}

	void lookup(const coop_ev &, std::uint64_t now);
	void recheck(const coop_ev &, std::uint64_t now);
	void end(const coop_ev &);
	void send(const coop_tx &, std::uint64_t now);
	void completed(const coop::ud::completion &, std::uint64_t now);

private:
	static constexpr std::uint32_t most_sge = 16;
	static constexpr std::uint64_t no_record = ~0ull;

	struct record {
		offer what;
		std::uint64_t have = 0;
		std::uint32_t n_pages = 0;
		std::uint32_t page[COOP_MAX_PAGES];
	};

	std::uint32_t fill(const record *, const coop_tx &, const coop_seg &, coop::ud::sge *);

	coop::ud::endpoint &endpoint_;
	fetch_host::slab &slots_;
	owner &owner_;
	const channels &channels_;
	coop_engine *engine_ = nullptr;
	std::uint32_t qp_ = 0, slots_n_;
	std::size_t bounce_at_;
	std::vector<record> records_;
	std::vector<std::uint32_t> free_;
	std::uint32_t unfinished_ = 0; // signalled sends
	bool dead_ = false;
	std::vector<coop::ud::sge> sges_;
	std::vector<coop::ud::send_wr> wrs_;
};

} // namespace coop::net::ud
