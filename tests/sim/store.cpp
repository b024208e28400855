// SPDX-License-Identifier: MIT
// store.cpp - finding, evicting and judging blocks.
#include "tests/sim/store.hpp"

#include <cstring>

namespace coop::sim
{

namespace
{

constexpr u64 guard = 0x6775617264677264u;

} // namespace

u8 *arena::take()
{
	if (free_.empty()) {
		all_.emplace_back(new u64[bytes_ / 8 + 1]());
		u8 *mem = reinterpret_cast<u8 *>(all_.back().get());
		std::memcpy(mem + bytes_, &guard, 8);
		return mem;
	}
	u8 *mem = free_.back();
	free_.pop_back();
	return mem;
}

store::store(arena &a, const oracle &o, u32 block_pages, u32 capacity) :
	arena_(a),
	oracle_(o),
	block_pages_(block_pages),
	capacity_(capacity)
{
}

store::~store()
{
	for (auto &b : blocks_)
		arena_.give(b->mem);
}

block *store::find(content c, u64 index)
{
	for (auto &b : blocks_) {
		if (b->of == c && b->index == index)
			return b.get();
	}
	return nullptr;
}

block *store::get(content c, u64 index, dice &rng, std::vector<std::string> &wrong)
{
	if (block *b = find(c, index))
		return b;
	std::unique_ptr<block> made;
	if (blocks_.size() >= capacity_) {
		const u32 n = static_cast<u32>(blocks_.size()), start = rng.below(n);
		for (u32 i = 0; i < n && !made; ++i) {
			auto &b = blocks_[(start + i) % n];
			if (b->pins || b->users)
				continue;
			let_go(*b, wrong);
			made = std::move(b);
			b = std::move(blocks_.back());
			blocks_.pop_back();
		}
		if (!made)
			return nullptr;
	} else {
		made = std::make_unique<block>();
	}
	*made = block{};
	made->of = c;
	made->index = index;
	made->mem = arena_.take();
	blocks_.push_back(std::move(made));
	return blocks_.back().get();
}

std::vector<std::string> store::evict(block &victim)
{
	std::vector<std::string> wrong;
	for (auto &b : blocks_) {
		if (b.get() != &victim || b->pins || b->users)
			continue;
		let_go(*b, wrong);
		b = std::move(blocks_.back());
		blocks_.pop_back();
		break;
	}
	return wrong;
}

u64 store::judge(const block &b, u64 mask, std::vector<std::string> &wrong) const
{
	u64 good = 0;
	for (u32 i = 0; i < block_pages_; ++i) {
		if (!(mask >> i & 1))
			continue;
		if (oracle_.right(page(b, i), b.of, first_page(b) + i))
			good |= u64{1} << i;
		else
			wrong.push_back(oracle_.blame(page(b, i), b.of, first_page(b) + i));
	}
	return good;
}

void store::overwrite(block &b, u32 i, content by)
{
	++b.seq[i];
	b.valid &= ~(u64{1} << i);
	oracle_.fill(page(b, i), by, first_page(b) + i);
}

void store::let_go(block &b, std::vector<std::string> &wrong)
{
	judge(b, b.valid, wrong);
	u64 word;
	std::memcpy(&word, b.mem + arena_.block_bytes(), 8);
	if (word != guard) {
		wrong.push_back("a write past the block destroyed its guard");
		std::memcpy(b.mem + arena_.block_bytes(), &guard, 8);
	}
	arena_.give(b.mem);
	b.mem = nullptr;
}

void store::clear(std::vector<std::string> &wrong)
{
	for (auto &b : blocks_)
		let_go(*b, wrong);
	blocks_.clear();
}

} // namespace coop::sim
