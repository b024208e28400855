// SPDX-License-Identifier: MIT
// departures.cpp - see departures.hpp.
#include "userland/client/departures.hpp"

#include <bit>

#include "userland/client/block_queues.hpp"

namespace coop::client
{

departures::departures(std::size_t most, std::function<void()> news) :
	most_(most),
	news_(std::move(news))
{
	order_.reserve(holders_most);
}

bool departures::leaves(block &b)
{
	if (!peers_.load(std::memory_order_relaxed))
		return false;
	const std::lock_guard lock(mutex_);
	if (const std::uint32_t holder = b.holder(); holder != COOP_NONE) {
		const std::uint64_t print = block_queues::fingerprint(b.key, b.index());
		const held_pages held = {holder, b.valid() & ~b.only_here()};
		if (holders_.insert_or_assign(print, held).second) {
			if (order_.size() < holders_most) {
				order_.push_back(print);
			} else {
				holders_.erase(std::exchange(order_[oldest_], print));
				oldest_ = (oldest_ + 1) % holders_most;
			}
		}
	}
	if (std::popcount(b.only_here()) < least_pages || b.chances() == 0 || kept() >= most_)
		return false;
	b.pin();
	kept_.fetch_add(1, std::memory_order_relaxed);
	leaving_.push_back({block_ref(&b), b.key, b.file_size()});
	news_();
	return true;
}

std::vector<departures::leaving> departures::take()
{
	const std::lock_guard lock(mutex_);
	return std::exchange(leaving_, {});
}

std::uint32_t departures::holder(const content_key &key, std::uint64_t block_index,
				 std::uint64_t pages) const
{
	const std::lock_guard lock(mutex_);
	const auto it = holders_.find(block_queues::fingerprint(key, block_index));
	return it == holders_.end() || (pages & ~it->second.pages) != 0 ? COOP_NONE
									: it->second.peer;
}

} // namespace coop::client
