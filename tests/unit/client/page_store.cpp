// SPDX-License-Identifier: MIT
// The page store: against a naive model, under threads, and its choice of evictions.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "userland/client/buddy.hpp"
#include "userland/client/page_store.hpp"

namespace
{

using namespace coop::client;
using namespace std::chrono_literals;

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t all = ~std::uint64_t{0};

content_key key(std::uint64_t file, std::uint64_t version = 1)
{
	return {{file * 0x9e3779b97f4a7c15u, file}, version};
}

void fill(block &b, std::uint64_t pages, std::uint64_t tag)
{
	for (; pages != 0; pages &= pages - 1) {
		const auto p = static_cast<std::uint32_t>(std::countr_zero(pages));
		const std::uint64_t value = tag ^ (b.index() * 64 + p) << 32;
		for (std::uint64_t i = 0; i < page; i += 512)
			std::memcpy(b.data(p) + i, &value, sizeof(value));
	}
}

bool holds(const block &b, std::uint64_t pages, std::uint64_t tag)
{
	for (; pages != 0; pages &= pages - 1) {
		const auto p = static_cast<std::uint32_t>(std::countr_zero(pages));
		const std::uint64_t value = tag ^ (b.index() * 64 + p) << 32;
		for (std::uint64_t i = 0; i < page; i += 512)
			if (std::memcmp(b.data(p) + i, &value, sizeof(value)) != 0)
				return false;
	}
	return true;
}

// Reads a block as a reader does: fills it if absent, uses it if present.
void use(page_store &s, std::uint64_t file, std::uint64_t index, std::uint64_t size)
{
	block_ref b = s.get(key(file), index, size);
	ASSERT_TRUE(b);
	const std::uint64_t mine = b->claim(all);
	fill(*b, mine, file);
	b->publish(mine, origin::storage);
	std::uint64_t peer, storage;
	b->take_fresh(b->valid(), peer, storage);
}

TEST(Buddy, RunsAreAlignedDisjointAndJoinAgain)
{
	std::mt19937_64 rng(7);
	buddy runs(128, 8);
	std::map<std::uint32_t, unsigned> taken;
	std::vector<int> owner(128 + 8 * 64, 0);
	for (int step = 0; step < 20000; step++) {
		if (rng() % 2 != 0) {
			const unsigned order = rng() % (buddy::max_order + 1);
			const std::uint32_t at = runs.alloc(order);
			if (at == buddy::none)
				continue;
			ASSERT_EQ(at % (1u << order), 0u);
			for (std::uint32_t p = at; p < at + (1u << order); p++)
				ASSERT_EQ(owner.at(p)++, 0) << "page allocated twice";
			taken[at] = order;
		} else if (!taken.empty()) {
			auto it =
				taken.lower_bound(static_cast<std::uint32_t>(rng() % owner.size()));
			if (it == taken.end())
				it = taken.begin();
			for (std::uint32_t p = it->first; p < it->first + (1u << it->second); p++)
				owner.at(p)--;
			runs.free(it->first, it->second);
			taken.erase(it);
		}
		std::uint32_t used = 0;
		for (const auto &[at, order] : taken)
			used += 1u << order;
		ASSERT_EQ(runs.free_pages(), 8 * 64 - used);
	}
	for (const auto &[at, order] : taken)
		runs.free(at, order);
	for (int i = 0; i < 8; i++)
		EXPECT_NE(runs.alloc(buddy::max_order), buddy::none) << "halves did not join";
	EXPECT_EQ(runs.alloc(0), buddy::none);
}

TEST(PageStore, BlockIsAsLargeAsTheFileNeeds)
{
	auto s = page_store::create(4 << 20, 12);
	EXPECT_EQ(s->get(key(1), 0, 1)->pages(), 1u);
	EXPECT_EQ(s->get(key(2), 0, 3 * page)->pages(), 3u);
	EXPECT_EQ(s->get(key(3), 0, 65 * page)->pages(), 64u);
	EXPECT_EQ(s->get(key(3), 1, 65 * page)->pages(), 1u);
	EXPECT_FALSE(s->get(key(3), 2, 65 * page)) << "past the end of the file";
	EXPECT_FALSE(s->get(key(4), 0, 0));
	EXPECT_FALSE(s->get(key(5), UINT64_MAX, UINT64_MAX));
	EXPECT_EQ(s->stats().used, (1 + 4 + 64 + 1) * page);
	EXPECT_EQ(s->stats().blocks, 4u);
}

TEST(PageStore, PagesLieInTheMemfdWhereTheBlockSays)
{
	auto s = page_store::create(4 << 20, 12);
	const block_ref b = s->get(key(1), 0, 10 * page);
	fill(*b, b->claim(all), 42);
	std::uint64_t value = 0;
	ASSERT_EQ(
		::pread(s->memfd(), &value, sizeof(value), static_cast<off_t>(b->arena_offset(9))),
		static_cast<ssize_t>(sizeof(value)));
	EXPECT_EQ(value, 42 ^ std::uint64_t{9} << 32);
	EXPECT_EQ(s->base() + b->arena_offset(9), b->data(9));
}

TEST(PageStore, ClaimGivesEachPageToOneOwner)
{
	auto s = page_store::create(4 << 20, 12);
	const block_ref b = s->get(key(1), 0, 64 * page);
	EXPECT_EQ(b->claim(0xff), 0xffu);
	EXPECT_EQ(b->claim(0xfff), 0xf00u);
	b->publish(0x0f, origin::peer);
	b->abandon(0xf0);
	EXPECT_EQ(b->valid(), 0x0fu);
	EXPECT_EQ(b->loading(), 0xf00u);
	EXPECT_EQ(b->claim(all), ~std::uint64_t{0xf0f});
	const block_ref small = s->get(key(2), 0, 3 * page);
	EXPECT_EQ(small->claim(all), 7u) << "no page past the end";
}

TEST(PageStore, FirstUseIsReportedOnceByOrigin)
{
	auto s = page_store::create(4 << 20, 12);
	const block_ref b = s->get(key(1), 0, 64 * page);
	b->claim(0xff);
	b->publish(0x0f, origin::peer);
	b->publish(0xf0, origin::storage);
	std::uint64_t peer, storage;
	b->take_fresh(0x3c, peer, storage);
	EXPECT_EQ(peer, 0x0cu);
	EXPECT_EQ(storage, 0x30u);
	b->take_fresh(0xff, peer, storage);
	EXPECT_EQ(peer, 0x03u);
	EXPECT_EQ(storage, 0xc0u);
	b->take_fresh(0xff, peer, storage);
	EXPECT_EQ(peer | storage, 0u);
}

TEST(PageStore, WaitEndsAtPublishAtAbandonAndAtTheDeadline)
{
	auto s = page_store::create(4 << 20, 12);
	const block_ref b = s->get(key(1), 0, 64 * page);
	b->claim(7);
	EXPECT_EQ(b->wait(1, std::chrono::steady_clock::now() + 1ms), 0u);
	std::thread publisher([&b] {
		b->publish(1, origin::storage);
		b->abandon(2);
	});
	const auto far = std::chrono::steady_clock::now() + 60s;
	EXPECT_EQ(b->wait(3, far), 1u);
	EXPECT_LT(std::chrono::steady_clock::now(), far);
	publisher.join();
}

TEST(PageStore, NeverKeepsMoreThanItsCapacity)
{
	auto s = page_store::create(2 << 20, 12); // eight frames
	for (std::uint64_t f = 0; f < 5000; f++) {
		use(*s, f, 0, (f % 70 + 1) * page);
		const store_stats st = s->stats();
		ASSERT_LE(st.used, st.capacity);
		ASSERT_EQ(st.capacity, 2u << 20);
	}
	const store_stats st = s->stats();
	EXPECT_EQ(st.no_room, 0u);
	EXPECT_GT(st.used, st.capacity / 2) << "evicts more than necessary";
	struct stat memory;
	ASSERT_EQ(::fstat(s->memfd(), &memory), 0);
	EXPECT_LE(static_cast<std::uint64_t>(memory.st_blocks) * 512, st.capacity);
}

TEST(PageStore, TellsHowMuchMemoryIsPresent)
{
	auto s = page_store::create(1 << 20, 12); // four frames
	EXPECT_EQ(s->stats().present, 0u);
	use(*s, 1, 0, 64 * page);
	EXPECT_EQ(s->stats().present, 64 * page);
	for (std::uint64_t i = 0; i < 100; i++)
		use(*s, 2, i, 100 * 64 * page);
	EXPECT_EQ(s->stats().present, 1u << 20) << "a reused frame counts once";

	auto idle = page_store::create(1 << 20, 12, 1 << 20);
	const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
	while (idle->stats().present < 1u << 20 && std::chrono::steady_clock::now() < deadline)
		std::this_thread::yield();
	EXPECT_EQ(idle->stats().present, 1u << 20);
}

TEST(PageStore, LargeRunsAreFoundAmongManySmallFiles)
{
	auto s = page_store::create(4 << 20, 12);
	for (std::uint64_t f = 0; f < 1024; f++) // takes all pages, one by one
		use(*s, f, 0, page);
	for (std::uint64_t i = 0; i < 8; i++)
		use(*s, 9999, i, 512 * page);
	EXPECT_EQ(s->stats().no_room, 0u);
	EXPECT_EQ(s->stats().blocks - 8, (1024u - 512u)) << "swept more than was needed";
}

TEST(PageStore, PinnedAndLoadingBlocksStay)
{
	auto s = page_store::create(1 << 20, 12); // four frames
	block_ref pinned = s->get(key(1), 0, 64 * page);
	fill(*pinned, pinned->claim(all), 1);
	pinned->publish(all, origin::storage);
	for (std::uint64_t i = 0; i < 100; i++)
		use(*s, 2, i, 100 * 64 * page);
	EXPECT_TRUE(holds(*pinned, all, 1));
	EXPECT_TRUE(s->find(key(1), 0));
	EXPECT_EQ(s->find(key(1), 0)->data(0), pinned->data(0));
}

TEST(PageStore, WhenAllIsPinnedTheReserveServesAndIsGivenBack)
{
	auto s = page_store::create(1 << 20, 12);
	std::vector<block_ref> pins;
	for (std::uint64_t i = 0; i < 4; i++)
		pins.push_back(s->get(key(1), i, 256 * page));
	struct stat before, after;
	block_ref extra = s->get(key(2), 0, 64 * page);
	ASSERT_TRUE(extra);
	EXPECT_EQ(s->stats().no_room, 1u);
	fill(*extra, extra->claim(all), 2);
	extra->publish(all, origin::storage);
	EXPECT_FALSE(s->find(key(2), 0)) << "private";
	ASSERT_EQ(::fstat(s->memfd(), &before), 0);
	extra = block_ref();
	ASSERT_EQ(::fstat(s->memfd(), &after), 0);
	EXPECT_EQ(before.st_blocks - after.st_blocks, 64 * 8);
	for (int i = 0; i < 64; i++)
		pins.push_back(s->get(key(3), static_cast<std::uint64_t>(i), 64 * 64 * page));
	EXPECT_FALSE(s->get(key(4), 0, page)) << "bounded";
	pins.clear();
	EXPECT_TRUE(s->get(key(4), 0, page));
}

// Bytes of system memory that the store holds.
std::uint64_t memory_of(const page_store &s)
{
	struct stat st;
	return ::fstat(s.memfd(), &st) == 0 ? static_cast<std::uint64_t>(st.st_blocks) * 512 : 0;
}

constexpr std::uint64_t frame = 64 * page;

TEST(PageStore, MemoryRunsAheadOfUseByNoMoreThanItWasTold)
{
	auto s = page_store::create(64 * frame, 12, 4 * frame);
	for (std::uint64_t i = 0; i < 10; i++)
		use(*s, 1, i, 100 * frame);
	s->follow({}); // frames came into use: readers are busy
	std::this_thread::sleep_for(50ms);
	EXPECT_EQ(memory_of(*s), 10 * frame);
	s->follow({});
	const auto deadline = std::chrono::steady_clock::now() + 30s;
	while (s->stats().present < 14 * frame && std::chrono::steady_clock::now() < deadline)
		std::this_thread::yield();
	EXPECT_EQ(s->stats().present, 14 * frame);
	// Any further growth would start as soon as the processor is idle.
	std::this_thread::sleep_for(50ms);
	EXPECT_EQ(memory_of(*s), 14 * frame);
}

TEST(PageStore, GivesMemoryBackWhereTheMachineLacksIt)
{
	auto s = page_store::create(256 * frame, 12);
	block_ref pinned = s->get(key(7), 0, 64 * page);
	fill(*pinned, pinned->claim(all), 7);
	pinned->publish(all, origin::storage);
	for (std::uint64_t i = 0; i < 199; i++)
		use(*s, 1, i, 300 * frame);
	ASSERT_EQ(memory_of(*s), 200 * frame);
	s->follow({0, 100 * frame});
	EXPECT_EQ(s->stats().used, 100 * frame);
	EXPECT_EQ(memory_of(*s), 100 * frame);
	EXPECT_EQ(s->stats().present, 100 * frame);
	EXPECT_TRUE(holds(*pinned, all, 7));
	EXPECT_EQ(s->find(key(7), 0)->data(0), pinned->data(0));

	for (std::uint64_t i = 0; i < 300; i++)
		use(*s, 2, i, 300 * frame);
	EXPECT_EQ(memory_of(*s), 100 * frame) << "grew while memory was short";
	s->follow({150 * frame, 100 * frame});
	for (std::uint64_t i = 0; i < 300; i++)
		use(*s, 3, i, 300 * frame);
	EXPECT_EQ(memory_of(*s), 100 * frame) << "enough is not plenty";
	for (int step = 0; step < 16; step++)
		s->follow({200 * frame, 100 * frame});
	for (std::uint64_t i = 0; i < 300; i++)
		use(*s, 4, i, 300 * frame);
	EXPECT_EQ(memory_of(*s), 256 * frame);
	s->follow({0, 1000 * frame});
	EXPECT_EQ(s->stats().used, 64 * frame) << "the store keeps a minimum";
	EXPECT_TRUE(holds(*pinned, all, 7));
}

TEST(PageStore, WhatFilesHaveLeftGoesBackBitByBit)
{
	auto s = page_store::create(64 * frame, 12);
	for (std::uint64_t i = 0; i < 40; i++)
		use(*s, 1, i, 100 * frame);
	use(*s, 2, 0, page);
	s->drop(key(1));
	s->follow({});
	EXPECT_EQ(memory_of(*s), 31 * frame);
	for (int step = 0; step < 30; step++)
		s->follow({});
	EXPECT_EQ(memory_of(*s), frame) << "only the remaining file's frame";
	EXPECT_TRUE(holds(*s->find(key(2), 0), 1, 2));
	use(*s, 1, 0, 100 * frame);
	EXPECT_TRUE(holds(*s->find(key(1), 0), all, 1));
}

// A device would continue to use the pages it registered.
TEST(PageStore, MemoryOfADeviceIsNeverGivenBack)
{
	auto s = page_store::create(4 * frame, 12, 4 * frame);
	s->keep_memory();
	std::vector<block_ref> pins;
	for (std::uint64_t i = 0; i < 4; i++)
		pins.push_back(s->get(key(1), i, 256 * page));
	block_ref extra = s->get(key(2), 0, 64 * page);
	fill(*extra, extra->claim(all), 2);
	extra->publish(all, origin::storage);
	const std::byte *const where = extra->data(0);
	const std::uint64_t before = memory_of(*s);
	extra = block_ref();
	EXPECT_GE(memory_of(*s), before) << "the reserve gave memory back";
	std::uint64_t value;
	std::memcpy(&value, where, sizeof(value));
	EXPECT_EQ(value, 2u) << "the frame has other memory now";
	pins.clear();
	s->follow({0, 1000 * frame});
	s->drop_all();
	s->follow({});
	EXPECT_GE(memory_of(*s), before);
}

TEST(PageStore, ForgottenBlocksLastUntilTheirLastPin)
{
	auto s = page_store::create(1 << 20, 12);
	use(*s, 1, 0, 64 * page);
	block_ref a = s->find(key(1), 0);
	block_ref b = a.clone();
	s->drop(key(1));
	EXPECT_FALSE(s->find(key(1), 0));
	EXPECT_EQ(s->stats().used, 64 * page);
	a = block_ref();
	EXPECT_TRUE(holds(*b, all, 1));
	b = block_ref();
	EXPECT_EQ(s->stats().used, 0u);
}

// The test reads a hot set several times, then scans a file ten times the store.
TEST(PageStore, HotSetSurvivesAScan)
{
	auto s = page_store::create(16 << 20, 12); // 64 blocks
	constexpr std::uint64_t hot = 32;
	for (int pass = 0; pass < 4; pass++)
		for (std::uint64_t i = 0; i < hot; i++)
			use(*s, 1, i, hot * 64 * page);
	for (std::uint64_t i = 0; i < 640; i++)
		use(*s, 2, i, 640 * 64 * page);
	std::uint64_t left = 0;
	for (std::uint64_t i = 0; i < hot; i++)
		left += s->find(key(1), i, false) ? 1 : 0;
	EXPECT_EQ(left, hot);
}

// The store does not evict an evicted block a second time if it comes back soon.
TEST(PageStore, GhostsBringBackIntoTheMainQueue)
{
	auto s = page_store::create(16 << 20, 12);
	for (std::uint64_t i = 0; i < 64 + 8; i++)
		use(*s, 1, i, 640 * 64 * page);
	ASSERT_FALSE(s->find(key(1), 0, false));
	use(*s, 1, 0, 640 * 64 * page);
	for (std::uint64_t i = 100; i < 100 + 50; i++)
		use(*s, 1, i, 640 * 64 * page);
	EXPECT_TRUE(s->find(key(1), 0, false));
}

// After every write the store must keep exactly the blocks that a model keeps.
TEST(PageStore, ALeavingBlockStaysUntilItIsLetGo)
{
	const auto s = page_store::create(16 * 64 * page, 12);
	std::vector<block_ref> leaving;
	s->set_leaver([&](block &b) {
		if (b.chances() == 0 || leaving.size() == 2)
			return false;
		b.pin();
		leaving.emplace_back(&b);
		return true;
	});
	for (std::uint64_t i = 0; i < 20; i++)
		use(*s, 1, i, 64 * 64 * page);
	ASSERT_EQ(leaving.size(), 2u) << "one each time that room is made";
	const std::uint64_t first = leaving[0]->index();
	EXPECT_TRUE(s->find(key(1), first, false)) << "peers still find it";
	EXPECT_TRUE(holds(*leaving[0], all, 1));
	for (block_ref &b : leaving)
		b->set_chances(0);
	s->let_go(std::move(leaving[0]), false);
	use(*s, 1, 20, 64 * 64 * page);
	EXPECT_FALSE(s->find(key(1), first, false)) << "it is the next to go";
	// One that is forgotten meanwhile goes with its pin.
	s->drop(key(1));
	s->let_go(std::move(leaving[1]), true);
	leaving.clear();
	EXPECT_EQ(s->stats().used, 0u);
}

TEST(PageStore, AnOfferIsTakenIfThereIsRoomOrACopyToDrop)
{
	const auto s = page_store::create(16 * 64 * page, 12);
	EXPECT_TRUE(s->takes_offer(key(9), 0, 64 * page));
	for (std::uint64_t i = 0; i < 16; i++)
		use(*s, 1, i, 64 * 64 * page);
	EXPECT_FALSE(s->takes_offer(key(9), 0, 64 * page))
		<< "the next to go is held by this node alone";
	for (std::uint64_t i = 0; i < 16; i++)
		s->find(key(1), i, false)->held_by(3, all);
	EXPECT_TRUE(s->takes_offer(key(9), 0, 64 * page));
	s->advance(key(1), 2, 0, 0, 64 * 64 * page, 64 * 64 * page);
	EXPECT_FALSE(s->takes_offer(key(9), 0, 64 * page)) << "the others hold another version";
}

TEST(PageStore, AdvanceAgainstAModel)
{
	std::mt19937_64 rng(11);
	for (int round = 0; round < 300; round++) {
		auto s = page_store::create(8 << 20, 12);
		const std::uint64_t old_size = rng() % (600 * page) + 1;
		const std::uint64_t blocks = (old_size + 64 * page - 1) / (64 * page);
		for (std::uint64_t i = 0; i < blocks; i++)
			use(*s, 1, i, old_size);
		std::uint64_t offset = rng() % (old_size + 100 * page);
		std::uint64_t length = rng() % (80 * page) + 1, new_size = old_size;
		if (rng() % 3 == 0) { // truncate
			length = 0;
			new_size = rng() % (2 * old_size);
		} else {
			new_size = std::max(old_size, offset + length);
		}
		s->advance(key(1), 2, offset, length, old_size, new_size);
		for (std::uint64_t i = 0; i < blocks; i++) {
			const std::uint64_t first = i * 64 * page, last = first + 64 * page;
			// Naive: does any byte of the block's span differ between the versions?
			bool differs = length != 0 && offset < last && offset + length > first;
			const std::uint64_t low = std::min(old_size, new_size);
			const std::uint64_t high = std::max(old_size, new_size);
			differs |= low < last && high > first && low != high;
			EXPECT_FALSE(s->find(key(1, 1), i)) << "old version kept";
			const block_ref b = s->find(key(1, 2), i);
			EXPECT_EQ(static_cast<bool>(b), !differs)
				<< "block " << i << " offset " << offset << " length " << length
				<< " sizes " << old_size << " " << new_size;
			if (b) {
				EXPECT_EQ(b->file_size(), new_size);
				EXPECT_TRUE(holds(*b, b->valid(), 1));
				EXPECT_EQ(s->get(key(1, 2), i, new_size)->data(0), b->data(0));
			}
		}
	}
}

TEST(PageStore, DropAllLeavesPinnedOnes)
{
	auto s = page_store::create(4 << 20, 12);
	for (std::uint64_t f = 0; f < 10; f++)
		use(*s, f, 0, 3 * page);
	const block_ref kept = s->find(key(4), 0);
	s->drop_all();
	EXPECT_EQ(s->stats().blocks, 1u);
	EXPECT_TRUE(s->find(key(4), 0));
}

// Random operations in one thread: the store must return the bytes it got.
TEST(PageStore, AgainstAModel)
{
	std::mt19937_64 rng(3);
	auto s = page_store::create(4 << 20, 12);
	struct pinned {
		block_ref b;
		std::uint64_t tag;
		std::uint64_t loading;
	};
	std::vector<pinned> pins;
	std::map<std::uint64_t, std::uint64_t> version; // by file
	for (int step = 0; step < 30000; step++) {
		const std::uint64_t file = rng() % 40;
		const std::uint64_t size = (file * 7 % 200 + 1) * page;
		const std::uint64_t v = version.try_emplace(file, 1).first->second;
		const std::uint64_t index = rng() % ((size + 64 * page - 1) / (64 * page));
		const std::uint64_t tag = file << 8;
		switch (rng() % 8) {
		case 0:
		case 1:
		case 2: {
			block_ref b = s->get(key(file, v), index, size);
			if (!b)
				break;
			ASSERT_TRUE(holds(*b, b->valid(), tag));
			const std::uint64_t mine = b->claim(rng());
			fill(*b, mine, tag);
			if (pins.size() < 20)
				pins.push_back({std::move(b), tag, mine});
			else
				b->publish(mine, origin::peer);
			break;
		}
		case 3:
			if (block_ref b = s->find(key(file, v), index)) {
				ASSERT_TRUE(holds(*b, b->valid(), tag));
			}
			break;
		case 4:
			s->drop(key(file, v));
			version[file]++;
			break;
		case 5: // a write of no byte: all blocks move to the new version
			s->advance(key(file, v), v + 1, 0, 0, size, size);
			version[file]++;
			break;
		default:
			if (pins.empty())
				break;
			std::swap(pins[rng() % pins.size()], pins.back());
			ASSERT_EQ(pins.back().b->loading() & pins.back().loading,
				  pins.back().loading);
			if (rng() % 2 != 0)
				pins.back().b->publish(pins.back().loading, origin::peer);
			else
				pins.back().b->abandon(pins.back().loading);
			ASSERT_TRUE(holds(*pins.back().b, pins.back().b->valid(), pins.back().tag));
			pins.pop_back();
		}
		ASSERT_LE(s->stats().used, s->stats().capacity);
	}
	for (pinned &p : pins)
		p.b->abandon(p.loading);
	pins.clear();
	s->drop_all();
	EXPECT_EQ(s->stats().used, 0u);
	EXPECT_EQ(s->stats().blocks, 0u);
}

// Threads claim, fill, publish, wait, check and drop. Every valid page must match its key, and
// no two threads may claim one page.
TEST(PageStore, ManyThreads)
{
	auto s = page_store::create(2 << 20, 12);
	std::atomic<std::uint64_t> wrong{0}, valid_seen{0};
	auto work = [&](unsigned seed) {
		std::mt19937_64 rng(seed);
		for (int i = 0; i < 4000; i++) {
			const std::uint64_t file = rng() % 24, size = 100 * page;
			block_ref b = s->get(key(file), rng() % 2, size);
			if (!b)
				continue;
			const std::uint64_t want = std::uint64_t{0xff} << rng() % 57;
			const std::uint64_t mine = b->claim(want);
			fill(*b, mine, file);
			if (rng() % 8 != 0)
				b->publish(mine, origin::storage);
			else
				b->abandon(mine);
			const std::uint64_t valid =
				b->wait(want, std::chrono::steady_clock::now() + 10s) & want;
			valid_seen += static_cast<std::uint64_t>(std::popcount(valid));
			if ((b->loading() & mine & ~want) != 0 || !holds(*b, valid, file))
				wrong++;
			if (rng() % 64 == 0)
				s->drop(key(file));
		}
	};
	std::vector<std::thread> threads;
	for (unsigned t = 0; t < 4; t++)
		threads.emplace_back(work, t + 1);
	for (std::thread &t : threads)
		t.join();
	EXPECT_EQ(wrong, 0u);
	EXPECT_GT(valid_seen, 1000u);
	s->drop_all();
	EXPECT_EQ(s->stats().used, 0u) << "a pin leaked";
}

} // namespace
