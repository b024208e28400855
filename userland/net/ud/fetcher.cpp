// SPDX-License-Identifier: MIT
// fetcher.cpp - see fetcher.hpp.
#include "fetcher.hpp"

#include "peer_rails.hpp"
#include "reader.hpp"

namespace coop::net::ud
{

namespace
{

// The entries of a work request for one fragment, besides GRH and spill. If a page is no whole
// number of datagrams, there may be two fragments.
std::uint32_t pieces_of_fragment(const coop::ud::endpoint_info &device)
{
	return (bulk_entries(device) - 2) / (page_bytes % device.mtu ? 2 : 1);
}

} // namespace

std::uint32_t bulk_entries(const coop::ud::endpoint_info &device)
{
	return std::min(fetch_host::most_sge, device.max_sge);
}

fetcher::fetcher(const options &o, fetch_host::slab &s, const channels &c, const peers &p,
		 const peer_rails &r, const device_memory &m, unsigned rail,
		 const coop::ud::endpoint_info &device) :
	slots_(s),
	channels_(c),
	peers_(p),
	rails_(r),
	memory_(m),
	rail_(rail),
	most_pieces_(pieces_of_fragment(device)),
	beyond_at_(s.reserve(o.fetches * page_bytes)),
	bounce_at_(s.reserve(o.fetches * COOP_MAX_PAGES * page_bytes)),
	records_(reader::requests(o) * r.size())
{
}

void fetcher::make(const fetch_host::host &host, reader &r)
{
	engine_ = host.engine();
	max_pages_ = host.max_pages();
	reader_ = &r;
}

// Peers with no request in flight give up their places. `renew`: the engine's circuit breaker is
// for nodes that can ask others, and here rpc/chan and the resolver judge whether a silent machine
// lives.
std::uint32_t fetcher::peer(spi::peer_number n, bool renew, std::uint64_t now)
{
	const coop_chan_peer_addr *there = rail_ ? rails_.at(n, rail_) : &peers_[n].addr;
	if (!there)
		return 0;
	const coop_addr &a = there->command;
	if (renew) // no effect while a request is under way
		(void)coop_engine_peer_del(engine_, &a, COOP_PEER_BY_DAEMON);
	s64 id = coop_engine_peer_add(engine_, &a, COOP_PEER_BY_DAEMON, now);
	std::uint32_t cursor = 0;
	coop_peer_info info;
	while (id == -ENOSPC && coop_engine_peer_next(engine_, &cursor, &info)) {
		if (info.in_flight)
			continue;
		(void)coop_engine_peer_del(engine_, &info.addr, COOP_PEER_BY_DAEMON);
		id = coop_engine_peer_add(engine_, &a, COOP_PEER_BY_DAEMON, now);
	}
	return id > 0 ? static_cast<std::uint32_t>(id) : 0;
}

int fetcher::submit(const reading &r, const coop_fetch_req &q, const fetch_host::page_list &pages,
		    std::uint64_t now)
{
	record &c = records_[q.cookie];
	if (const int err = coop_engine_submit(engine_, &q, now, &c.id))
		return err;
	c.memory = r.memory;
	if (rail_)
		memory_.know(c.memory);
	c.start = r.start;
	c.length = r.length;
	c.pages = pages;
	c.slot = no_slot;
	c.bounced = to_bounce(c);
	return 0;
}

void fetcher::cancel_fetch(std::uint32_t number, std::uint64_t now)
{
	(void)coop_engine_cancel(engine_, records_[number].id, now);
}

void fetcher::finished(const coop_ev &ev, std::uint64_t now)
{
	const auto number = static_cast<std::uint32_t>(ev.cookie);
	const record &c = records_[number];
	if (c.bounced)
		unbounce(c, ev.pages);
	const std::uint64_t pages = ev.pages;
	coop_engine_fetch_release(engine_, ev.id, now);
	reader_->finished(number, pages, ev.err, c.slot != no_slot, now);
}

// ---- memory --------------------------------------------------------------------

std::uint32_t fetcher::pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			      std::uint32_t length, std::span<coop::ud::sge> out)
{
	const record &c = records_[cookie];
	if (c.bounced >> page & 1) {
		out[0] = {bounce(c, page) + offset, length};
		return 1;
	}
	std::uint32_t n = 0;
	(void)page_pieces(c.memory, c.start, c.length, beyond(c),
			  c.pages.page[page] * page_bytes + offset, length, out.data(),
			  static_cast<std::uint32_t>(out.size()), n);
	return n;
}

// The pages without keys, or in too many pieces. All datagrams of a page are received in the same
// way, whichever attempt brings them.
std::uint64_t fetcher::to_bounce(const record &c) const
{
	const keyed_memory &m = c.memory;
	if (!channels_.direct(m))
		return ~0ull;
	std::uint64_t pages = 0;
	for (std::uint32_t i = 0; m.segments.size() >= most_pieces_ && i < c.pages.size; i++) {
		coop::ud::sge list[fetch_host::most_sge];
		std::uint32_t n = 0;
		if (!page_pieces(m, c.start, c.length, slots_.zeros(), c.pages.page[i] * page_bytes,
				 page_bytes, list, most_pieces_, n))
			pages |= 1ull << i;
	}
	return pages;
}

void fetcher::unbounce(const record &c, std::uint64_t good)
{
	for (std::uint64_t left = c.bounced & good; left; left &= left - 1) {
		const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
		const std::size_t at = c.pages.page[i] * page_bytes;
		if (i < c.pages.size && at < c.length)
			spi::scatter(c.memory, c.start + at, bounce(c, i),
				     std::min(page_bytes, c.length - at));
	}
}

} // namespace coop::net::ud
