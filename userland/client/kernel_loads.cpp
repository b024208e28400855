// SPDX-License-Identifier: MIT
// kernel_loads.cpp - see kernel_loads.hpp.
#include "userland/client/kernel_loads.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "rpc/base/bits.h"

namespace coop::client
{

kernel_loads::kernel_loads(page_store &store, asker a) : store_(store), asker_(std::move(a)) {}

void kernel_loads::begin(const wanted_pages &w)
{
	load l{w.key, w.block};
	std::uint64_t left =
		store_.in_kernel().provable(w.key, w.block, w.pages, nullptr, &l.file_size);
	while (left != 0) {
		l.first = static_cast<std::uint32_t>(std::countr_zero(left));
		l.count = static_cast<std::uint32_t>(std::countr_one(left >> l.first));
		left &= ~(coop_mask(l.count) << l.first);
		ask(l);
	}
}

void kernel_loads::ask(const load &l)
{
	const unsigned shift = store_.page_shift();
	const std::uint64_t offset = (l.block * 64 + l.first) << shift;
	const auto length = static_cast<std::uint32_t>(
		std::min<std::uint64_t>(std::uint64_t{l.count} << shift, l.file_size - offset));
	std::uint64_t cookie = 0;
	{
		const std::lock_guard lock(mutex_);
		if (loads_.size() >= loads_most)
			return;
		cookie = next_++;
		loads_[cookie] = l;
	}
	store_.in_kernel().begin(l.key, l.block);
	if (asker_(l.key.fid, offset, length, cookie) != 0)
		arrived(cookie, {});
}

void kernel_loads::arrived(std::uint64_t cookie, std::span<const std::byte> bytes)
{
	load l;
	{
		const std::lock_guard lock(mutex_);
		const auto it = loads_.find(cookie);
		if (it == loads_.end())
			return;
		l = it->second;
		loads_.erase(it);
	}
	std::uint64_t refuted = 0;
	std::uint32_t came = 0;
	const std::uint64_t good = publish(l, bytes, refuted, came);
	// The kernel stops at the first page that it lacks. Where it had some, it may have more.
	const std::uint32_t told = came != 0 ? std::min(came + 1, l.count) : l.count;
	store_.in_kernel().answered(l.key, l.block, coop_mask(told) << l.first, good, refuted);
	if (told < l.count) {
		load rest = l;
		rest.first += told;
		rest.count -= told;
		ask(rest);
	}
	store_.in_kernel().end(l.key, l.block);
	store_.settled();
}

// Returns the pages that came as they had left.
std::uint64_t kernel_loads::publish(const load &l, std::span<const std::byte> bytes,
				    std::uint64_t &refuted, std::uint32_t &came)
{
	const std::size_t page_bytes = std::size_t{1} << store_.page_shift();
	const std::uint64_t start = (l.block * 64 + l.first) * page_bytes;
	const std::uint64_t wanted =
		std::min<std::uint64_t>(l.count * page_bytes, l.file_size - start);
	const auto length = [&](std::uint32_t i) {
		return std::min<std::uint64_t>(page_bytes, wanted - i * page_bytes);
	};
	while (came < l.count && bytes.size() >= came * page_bytes + length(came))
		came++;
	if (came == 0)
		return 0;
	block_ref pin = store_.get(l.key, l.block, l.file_size);
	if (!pin)
		return 0;
	kernel_copies::sums sums;
	const std::uint64_t all = coop_mask(came) << l.first;
	const std::uint64_t noted = store_.in_kernel().provable(l.key, l.block, all, &sums);
	// What is here already came from elsewhere meanwhile.
	const std::uint64_t mine = pin->claim(noted, COOP_LEVEL_SENDING);
	std::uint64_t good = noted & ~mine;
	for (std::uint32_t i = 0; i < came; i++) {
		const std::uint32_t page = l.first + i;
		if ((mine >> page & 1) == 0)
			continue;
		std::byte *const at = pin->data(page);
		std::memcpy(at, bytes.data() + i * page_bytes, length(i));
		std::memset(at + length(i), 0, page_bytes - length(i));
		const bool same = store_.in_kernel().sum(at, page_bytes) == sums.of[page];
		(same ? good : refuted) |= std::uint64_t{1} << page;
	}
	pin->given(good);
	pin->publish(mine & good, origin::counted);
	pin->abandon(mine & ~good);
	store_.retrieved(std::move(pin));
	return good;
}

} // namespace coop::client
