// SPDX-License-Identifier: MIT
// fetch_engine.hpp - requests for another machine's pages, as `reader` makes them.
//
// Behind it is the engine of rpc/fetch: in this process (fetcher.hpp), or in the kernel, where the
// transport `kernel` reaches it. reader::finished() tells the end of each request. Used under the
// lock of the machine.
#pragma once

#include "userland/fetch-host/page_list.hpp"
#include "userland/net/transport.hpp"

namespace coop::net::ud
{

struct reading;

class fetch_engine
{
public:
	/// Pages of a request, at most.
	virtual std::uint32_t max_pages() const = 0;
	/// All pages of a request are in one aligned run of so many; 0: anywhere.
	virtual std::uint32_t run() const = 0;
	/// The engine's name of a peer, for coop_fetch_req::hints; 0: it has none. `renew`: forget
	/// what it has learned of it.
	virtual std::uint32_t peer(spi::peer_number, bool renew, std::uint64_t now) = 0;
	/// Starts a request, of number q.cookie, for pages of this reading. @return as
	/// coop_engine_submit().
	virtual int submit(const reading &, const coop_fetch_req &q, const fetch_host::page_list &,
			   std::uint64_t now) = 0;
	virtual void cancel_fetch(std::uint32_t number, std::uint64_t now) = 0;

protected:
	~fetch_engine() = default;
};

} // namespace coop::net::ud
