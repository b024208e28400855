// SPDX-License-Identifier: MIT
// kept_memory.cpp - see kept_memory.hpp.
#include "userland/client/kept_memory.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include "userland/client/asker.hpp"

namespace coop::client
{

namespace
{

std::size_t chunk_size(std::size_t bytes)
{
	constexpr std::size_t largest_power = std::size_t{1} << 20;
	if (bytes <= largest_power)
		return std::bit_ceil(std::max(bytes, kept_memory::chunk_min));
	return std::max(bytes, kept_memory::chunk_max);
}

} // namespace

kept_memory::chunk kept_memory::take(std::size_t &bytes)
{
	bytes = chunk_size(bytes);
	std::unique_ptr<std::byte[]> memory;
	{
		std::lock_guard guard(mutex_);
		used_ += bytes;
		if (bytes == chunk_max && !idle_.empty()) {
			memory = std::move(idle_.back());
			idle_.pop_back();
			least_idle_ = std::min(least_idle_, idle_.size());
		}
	}
	if (!memory)
		memory.reset(new (std::nothrow) std::byte[bytes]);
	std::byte *const p = memory.release();
	if (!p) {
		give_back(nullptr, bytes);
		return {};
	}
	return {p, [self = shared_from_this(), bytes](std::byte *b) { self->give_back(b, bytes); }};
}

void kept_memory::give_back(std::byte *p, std::size_t bytes)
{
	std::unique_ptr<std::byte[]> memory(p); // freed after the lock, if at all
	std::lock_guard guard(mutex_);
	used_ -= bytes;
	if (memory && bytes == chunk_max)
		idle_.push_back(std::move(memory));
	room_.notify_all();
}

int kept_memory::wait_for_room(std::chrono::milliseconds patience)
{
	const auto begun = std::chrono::steady_clock::now();
	std::unique_lock lock(mutex_);
	while (used_ >= bound_) {
		room_.wait_for(lock, asker::look_again);
		if (used_ < bound_)
			break;
		lock.unlock();
		if (asker::has_gone())
			return -EINTR;
		if (patience.count() && std::chrono::steady_clock::now() - begun >= patience)
			return -ETIMEDOUT;
		lock.lock();
	}
	return 0;
}

bool kept_memory::trim()
{
	std::vector<std::unique_ptr<std::byte[]>> gone; // freed after the lock
	std::lock_guard guard(mutex_);
	for (; least_idle_; least_idle_--) {
		gone.push_back(std::move(idle_.back()));
		idle_.pop_back();
	}
	least_idle_ = idle_.size();
	return !idle_.empty();
}

bool kept_memory::crowded() const
{
	std::lock_guard guard(mutex_);
	return used_ > bound_ / 2;
}

std::uint64_t kept_memory::used() const
{
	std::lock_guard guard(mutex_);
	return used_;
}

} // namespace coop::client
