// SPDX-License-Identifier: MIT
// source.cpp - see source.hpp.
#include "source.hpp"

#include <algorithm>
#include <bit>

namespace coop::net::ud
{

source::source(fetch_host::slab &s, const channels &c, std::uint32_t slots, bulk &b,
	       const device_memory &m, unsigned rail) :
	slots_(s),
	channels_(c),
	bulk_(b),
	memory_(m),
	rail_(rail),
	bounce_at_(s.reserve(slots * COOP_MAX_PAGES * page_bytes)),
	records_(slots)
{
}

bool source::lookup(std::uint64_t cookie, const coop_ev &ev, found &out)
{
	record &r = records_[cookie];
	const asker by = asker::unpack(ev.fid.lo);
	r.op = bulk_.open(ev.fid.hi, ev.version, by, ev.from, rail_, out.busy);
	if (r.op == operations::none)
		return false;
	r.memory = bulk_.operation(r.op).memory;
	if (rail_)
		memory_.know(r.memory);
	r.length = bulk_.operation(r.op).length;
	r.shift = by.shift;
	r.pages.assign(ev);
	r.have = 0;
	const std::uint64_t pages = (r.length - r.shift + page_bytes - 1) / page_bytes;
	for (std::uint32_t i = 0; i < r.pages.size; i++)
		r.have |= std::uint64_t{r.pages.page[i] < pages} << i;
	out.have = r.have;
	out.size = r.length;
	r.open = true;
	if (static_cast<std::uint32_t>(std::popcount(r.have)) == r.pages.size)
		return true;
	close(r); // it asks for what is past the end
	return false;
}

void source::lose()
{
	for (record &r : records_)
		if (r.open)
			close(r);
}

std::uint64_t source::unchanged(std::uint64_t cookie)
{
	const record &r = records_[cookie];
	return bulk_.operation(r.op).ending ? 0 : r.have;
}

std::uint32_t source::pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<coop::ud::sge> out)
{
	const record &r = records_[cookie];
	const std::size_t at = r.pages.page[page] * page_bytes + offset;
	std::uint32_t n = 0;
	if (channels_.direct(r.memory) &&
	    page_pieces(r.memory, r.shift, r.length - r.shift, slots_.zeros(), at, length,
			out.data(), static_cast<std::uint32_t>(out.size()), n))
		return n;
	// In too many pieces, or without keys: a copy.
	std::byte *hold =
		slots_.at(bounce_at_ + (cookie * COOP_MAX_PAGES + page) * page_bytes + offset);
	const std::size_t end = r.length - r.shift;
	const std::size_t inside = at < end ? std::min<std::size_t>(length, end - at) : 0;
	spi::gather(r.memory, r.shift + at, hold, inside);
	std::memset(hold + inside, 0, length - inside);
	out[0] = {hold, length};
	return 1;
}

} // namespace coop::net::ud
