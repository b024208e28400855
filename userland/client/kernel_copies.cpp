// SPDX-License-Identifier: MIT
// kernel_copies.cpp - see kernel_copies.hpp.
#include "userland/client/kernel_copies.hpp"

#include <bit>
#include <cstring>
#include <random>

namespace coop::client
{

namespace
{

std::uint64_t count(std::uint64_t pages)
{
	return static_cast<std::uint64_t>(std::popcount(pages));
}

std::uint64_t load(const std::byte *at)
{
	std::uint64_t v;
	std::memcpy(&v, at, sizeof(v));
	return v;
}

// Both halves of the product: every bit of it depends on all bits of a and b.
std::uint64_t mix(std::uint64_t a, std::uint64_t b)
{
	__extension__ const auto product = static_cast<unsigned __int128>(a) * b;
	return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

} // namespace

kernel_copies::kernel_copies(std::size_t most) : most_(most)
{
	std::random_device device;
	for (std::uint64_t &k : key_)
		k = (std::uint64_t{device()} << 32 | device()) | 1;
}

// Four lanes, so that the multiplications overlap. A lane begins with a key of its own: with that
// of its factor, two words could change places.
std::uint64_t kernel_copies::sum(const std::byte *page, std::size_t bytes) const
{
	std::uint64_t lane[4] = {key_[4], key_[5], key_[6], key_[7]};
	for (std::size_t at = 0; at < bytes; at += 64)
		for (std::size_t i = 0; i < 4; i++)
			lane[i] = mix(load(page + at + 16 * i) ^ key_[i],
				      load(page + at + 16 * i + 8) ^ lane[i]);
	return mix(mix(lane[0], lane[1] ^ key_[2]) ^ key_[3], mix(lane[2], lane[3] ^ key_[1]));
}

kernel_copies::entry *kernel_copies::find(const content_key &key, std::uint64_t block_index) const
{
	const auto c = notes_.find(key);
	if (c == notes_.end())
		return nullptr;
	const auto e = c->second->blocks.find(block_index);
	return e == c->second->blocks.end() ? nullptr : &e->second;
}

void kernel_copies::erase(content &c, std::uint64_t block_index)
{
	const auto e = c.blocks.find(block_index);
	stats_.noted -= count(e->second.pages);
	entries_--;
	c.blocks.erase(e);
	if (c.blocks.empty())
		notes_.erase(content_key(c.key));
}

void kernel_copies::remove(const content_key &key, std::uint64_t block_index, std::uint64_t pages)
{
	entry *const e = find(key, block_index);
	if (e == nullptr)
		return;
	stats_.noted -= count(e->pages & pages);
	e->pages &= ~pages;
	if (e->pages == 0)
		erase(*notes_.at(key), block_index);
}

void kernel_copies::note(const content_key &key, std::uint64_t block_index, std::uint64_t file_size,
			 std::uint64_t pages, const sums *s)
{
	const std::lock_guard lock(mutex_);
	if (const entry *old = find(key, block_index); old != nullptr && !old->proof != !s)
		erase(*notes_.at(key), block_index);
	std::shared_ptr<content> &c = notes_[key];
	if (!c)
		c = std::make_shared<content>(content{key, {}});
	entry &e = c->blocks[block_index];
	if (e.serial == 0) {
		e.serial = ++serial_;
		e.proof = s != nullptr ? std::make_unique<sums>() : nullptr;
		entries_++;
		order_.push_back({c, block_index, e.serial});
	}
	e.file_size = file_size;
	for (std::uint64_t left = s != nullptr ? pages : 0; left != 0; left &= left - 1) {
		const auto i = static_cast<std::size_t>(std::countr_zero(left));
		e.proof->of[i] = s->of[i];
	}
	stats_.noted += count(pages & ~e.pages);
	stats_.left += count(pages);
	e.pages |= pages;
	while (entries_ > most_ || order_.size() > 2 * most_)
		forget_oldest();
}

void kernel_copies::forget_oldest()
{
	const place oldest = std::move(order_.front());
	order_.pop_front();
	const auto e = oldest.of->blocks.find(oldest.block);
	if (e != oldest.of->blocks.end() && e->second.serial == oldest.serial)
		erase(*oldest.of, oldest.block);
}

std::uint64_t kernel_copies::take_back(const content_key &key, std::uint64_t block_index,
				       std::uint64_t pages)
{
	const std::lock_guard lock(mutex_);
	const entry *const e = find(key, block_index);
	const std::uint64_t back = e != nullptr ? e->pages & pages : 0;
	stats_.came_back += count(back);
	remove(key, block_index, back);
	return back;
}

std::uint64_t kernel_copies::noted(const content_key &key, std::uint64_t block_index) const
{
	const std::lock_guard lock(mutex_);
	const entry *const e = find(key, block_index);
	return e != nullptr ? e->pages : 0;
}

std::uint64_t kernel_copies::provable(const content_key &key, std::uint64_t block_index,
				      std::uint64_t pages, sums *out, std::uint64_t *size) const
{
	const std::lock_guard lock(mutex_);
	const entry *const e = find(key, block_index);
	if (e == nullptr || !e->proof)
		return 0;
	if (out != nullptr)
		*out = *e->proof;
	if (size != nullptr)
		*size = e->file_size;
	return e->pages & pages;
}

void kernel_copies::drop(const content_key &key)
{
	const std::lock_guard lock(mutex_);
	const auto it = notes_.find(key);
	if (it == notes_.end())
		return;
	for (const auto &[index, e] : it->second->blocks)
		stats_.noted -= count(e.pages);
	entries_ -= it->second->blocks.size();
	it->second->blocks.clear(); // the order refers to it
	notes_.erase(it);
}

void kernel_copies::advance(const content_key &from, std::uint64_t to_version,
			    std::uint64_t new_size,
			    const std::function<bool(std::uint64_t)> &touched)
{
	const std::lock_guard lock(mutex_);
	const auto it = notes_.find(from);
	if (it == notes_.end())
		return;
	const std::shared_ptr<content> c = it->second;
	notes_.erase(it);
	const content_key to{from.fid, to_version};
	const bool known = notes_.contains(to);
	for (auto e = c->blocks.begin(); e != c->blocks.end();) {
		e->second.file_size = new_size;
		if (!known && !touched(e->first)) {
			++e;
			continue;
		}
		stats_.noted -= count(e->second.pages);
		entries_--;
		e = c->blocks.erase(e);
	}
	c->key = to;
	if (!c->blocks.empty())
		notes_.emplace(to, c);
}

void kernel_copies::begin(const content_key &key, std::uint64_t block_index)
{
	const std::lock_guard lock(mutex_);
	under_way_[fingerprint(key, block_index)]++;
}

void kernel_copies::end(const content_key &key, std::uint64_t block_index)
{
	const std::lock_guard lock(mutex_);
	const auto it = under_way_.find(fingerprint(key, block_index));
	if (--it->second == 0)
		under_way_.erase(it);
}

bool kernel_copies::under_way(const content_key &key, std::uint64_t block_index) const
{
	const std::lock_guard lock(mutex_);
	return under_way_.contains(fingerprint(key, block_index));
}

void kernel_copies::answered(const content_key &key, std::uint64_t block_index, std::uint64_t all,
			     std::uint64_t good, std::uint64_t refuted)
{
	const std::lock_guard lock(mutex_);
	stats_.retrieved += count(good);
	stats_.refuted += count(refuted);
	stats_.lost += count(all & ~(good | refuted));
	remove(key, block_index, all & ~good);
}

kernel_copies_stats kernel_copies::stats() const
{
	const std::lock_guard lock(mutex_);
	return stats_;
}

} // namespace coop::client
