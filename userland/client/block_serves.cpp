// SPDX-License-Identifier: MIT
// block_serves.cpp - see block_serves.hpp.
#include "userland/client/block_serves.hpp"

#include <algorithm>

namespace coop::client
{

bool block_serves::lookup(std::uint64_t cookie, const coop_ev &ev, found &out)
{
	record &r = records_[cookie];
	r.n_pins = r.n_pages = 0;
	r.have = 0;
	const content_key key{ev.fid, ev.version};
	for (std::uint32_t e = 0; e < ev.n_ext && e < COOP_MAX_EXTENTS; e++) {
		std::uint64_t page = ev.ext[e].index;
		std::uint32_t left = ev.ext[e].count;
		while (left != 0 && r.n_pages < COOP_MAX_PAGES) {
			const auto in_block = static_cast<std::uint32_t>(page % 64);
			const std::uint32_t n =
				std::min({left, 64 - in_block, COOP_MAX_PAGES - r.n_pages});
			add(r, key, page, n, out.size);
			page += n;
			left -= n;
		}
	}
	lookups_++;
	pages_looked_up_ += r.n_pages;
	in_progress_++;
	out.have = r.have;
	out.kept = true;
	return true;
}

// Pages of one block.
void block_serves::add(record &r, const content_key &key, std::uint64_t first, std::uint32_t count,
		       std::uint64_t &file_size)
{
	const auto in_block = static_cast<std::uint32_t>(first % 64);
	block_ref b = r.n_pins < max_blocks ? store_.find(key, first / 64) : block_ref();
	std::uint64_t valid = b ? b->valid() : 0;
	if (b) {
		file_size = b->file_size();
		// A local write may have carried the block on to its next version since find(), and
		// the size with it.
		if (store_.find(key, first / 64, false).get() != b.get())
			valid = 0;
	}
	for (std::uint32_t i = in_block; i < in_block + count; i++, r.n_pages++) {
		if ((valid >> i & 1) == 0)
			continue;
		r.page[r.n_pages] = b->data(i);
		r.have |= std::uint64_t{1} << r.n_pages;
	}
	if (b)
		r.pins[r.n_pins++] = std::move(b);
}

void block_serves::end(std::uint64_t cookie)
{
	record &r = records_[cookie];
	for (std::uint32_t i = 0; i < r.n_pins; i++)
		r.pins[i] = block_ref();
	in_progress_--;
}

std::uint32_t block_serves::pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
				   std::uint32_t length, std::span<ud::sge> out)
{
	out[0] = {records_[cookie].page[page] + offset, length};
	return 1;
}

} // namespace coop::client
