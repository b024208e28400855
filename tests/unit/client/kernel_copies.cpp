// SPDX-License-Identifier: MIT
// kernel_copies.cpp - which pages the store leaves to the kernel, and that only these come back.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include "userland/client/kernel_loads.hpp"

namespace
{

using namespace coop::client;

constexpr std::uint64_t page = 4096, block_bytes = 64 * page;
constexpr std::uint64_t all = ~std::uint64_t{0};
constexpr std::uint64_t file = 4096 * block_bytes;
const content_key key = {{1, 2}, 3};

struct rig {
	std::unique_ptr<page_store> store = page_store::create(64 * block_bytes, 12);
	explicit rig(page_store::copies what = page_store::copies::prove)
	{
		store->set_copies(what);
	}
	// Byte i of page p of the file.
	static std::byte at(std::uint64_t p, std::uint64_t i)
	{
		return static_cast<std::byte>(p * 31 + i * 7 + (i >> 8));
	}
	block_ref filled(std::uint64_t index, std::uint64_t pages = all, std::uint64_t size = file)
	{
		block_ref b = store->get(key, index, size);
		const std::uint64_t mine = b->claim(pages);
		for (std::uint32_t p = 0; p < 64; p++)
			for (std::uint64_t i = 0; (mine >> p & 1) != 0 && i < page; i++)
				b->data(p)[i] = (index * 64 + p) * page + i < size
							? at(index * 64 + p, i)
							: std::byte{0};
		b->publish(mine, origin::storage);
		return b;
	}
	void left(std::uint64_t index, std::uint64_t pages = all)
	{
		store->given(filled(index, pages), pages, false);
	}
	bool has(std::uint64_t index) { return static_cast<bool>(store->find(key, index, false)); }
	kernel_copies_stats stats() const { return store->in_kernel().stats(); }
};

// A kernel that answers when it is told to.
struct kernel {
	struct request {
		std::uint64_t offset;
		std::uint32_t length;
		std::uint64_t cookie;
	};
	rig &r;
	std::vector<request> asked;
	int err = 0;
	kernel_loads loads{*r.store, [this](const coop_fid &, std::uint64_t offset,
					    std::uint32_t length, std::uint64_t cookie) {
				   if (err == 0)
					   asked.push_back({offset, length, cookie});
				   return err;
			   }};
	explicit kernel(rig &of) : r(of) {}
	static std::vector<std::byte> cached(const request &q)
	{
		std::vector<std::byte> out(q.length);
		for (std::uint64_t i = 0; i < q.length; i++)
			out[i] = rig::at((q.offset + i) / page, (q.offset + i) % page);
		return out;
	}
	void wants(std::uint64_t index, std::uint64_t pages = all)
	{
		loads.begin({.key = key, .block = index, .pages = pages, .kernel = true});
	}
};

TEST(KernelCopies, ASumDependsOnEachByteAndOnTheMount)
{
	const kernel_copies one(4), other(4);
	std::vector<std::byte> bytes(page);
	const std::uint64_t zeros = one.sum(bytes.data(), page);
	EXPECT_EQ(zeros, one.sum(bytes.data(), page));
	EXPECT_NE(zeros, other.sum(bytes.data(), page));
	std::map<std::uint64_t, std::size_t> seen{{zeros, page}};
	for (std::size_t i = 0; i < page; i++) {
		bytes[i] = std::byte{1};
		EXPECT_TRUE(seen.emplace(one.sum(bytes.data(), page), i).second) << i;
		bytes[i] = std::byte{0};
	}
	// What moves within a page is another page.
	for (std::size_t i = 0; i < page; i++)
		bytes[i] = static_cast<std::byte>(i / 64);
	const std::uint64_t before = one.sum(bytes.data(), page);
	std::swap_ranges(bytes.begin(), bytes.begin() + 64, bytes.begin() + 128);
	EXPECT_NE(before, one.sum(bytes.data(), page));
}

TEST(KernelCopies, NotesAreOfOneVersionAndBounded)
{
	kernel_copies c(4);
	const kernel_copies::sums sums{};
	c.note(key, 0, file, 0xf0, &sums);
	EXPECT_EQ(c.noted(key, 0), 0xf0u);
	EXPECT_EQ(c.noted(key, 1), 0u);
	EXPECT_EQ(c.noted({key.fid, 4}, 0), 0u);
	EXPECT_EQ(c.provable(key, 0, 0x3f), 0x30u);
	c.note(key, 0, file, 0xf, &sums);
	EXPECT_EQ(c.noted(key, 0), 0xffu);
	EXPECT_EQ(c.stats().noted, 8u);
	for (std::uint64_t b = 1; b < 5; b++)
		c.note(key, b, file, 1, &sums);
	EXPECT_EQ(c.noted(key, 0), 0u) << "the oldest";
	EXPECT_EQ(c.noted(key, 1), 1u);
	EXPECT_EQ(c.stats().noted, 4u);
	// Blocks that come and go must not let the list of ages grow.
	for (std::uint64_t n = 0; n < 1000; n++) {
		c.note(key, 9, file, 1, &sums);
		EXPECT_EQ(c.take_back(key, 9, all), 1u);
	}
	EXPECT_LE(c.stats().noted, 4u);
	EXPECT_EQ(c.stats().came_back, 1000u);
}

TEST(KernelCopies, NotesFollowALocalWriteThatDoesNotTouchThem)
{
	rig r;
	for (std::uint64_t b = 0; b < 3; b++)
		r.left(b, 1);
	r.store->advance(key, 4, block_bytes + 5, 10, file, file);
	const content_key next{key.fid, 4};
	EXPECT_EQ(r.store->in_kernel().noted(key, 0), 0u);
	EXPECT_EQ(r.store->in_kernel().provable(next, 0, all), 1u);
	EXPECT_EQ(r.store->in_kernel().noted(next, 1), 0u) << "written";
	EXPECT_EQ(r.store->in_kernel().noted(next, 2), 1u);
	EXPECT_EQ(r.stats().noted, 2u);
	r.store->advance(next, 5, 0, 0, file, 2 * block_bytes);
	std::uint64_t size = 0;
	EXPECT_EQ(r.store->in_kernel().provable({key.fid, 5}, 0, all, nullptr, &size), 1u);
	EXPECT_EQ(size, 2 * block_bytes);
	EXPECT_EQ(r.store->in_kernel().noted({key.fid, 5}, 2), 0u) << "cut off";
	r.store->drop({key.fid, 5});
	EXPECT_EQ(r.stats().noted, 0u) << "another node has written";
	kernel_copies few(2); // the bound holds over versions
	const kernel_copies::sums sums{};
	for (std::uint64_t v = 1; v < 9; v++) {
		few.note({key.fid, v}, v, file, 1, &sums);
		few.advance({key.fid, v}, v + 1, file, [](std::uint64_t) { return false; });
	}
	EXPECT_EQ(few.stats().noted, 2u);
	EXPECT_EQ(few.noted({key.fid, 9}, 8), 1u);
}

TEST(KernelCopies, WithoutASumNothingCanComeBack)
{
	kernel_copies c(4);
	const kernel_copies::sums sums{};
	c.note(key, 0, file, 3, nullptr);
	EXPECT_EQ(c.provable(key, 0, all), 0u);
	c.note(key, 0, file, 4, &sums);
	EXPECT_EQ(c.provable(key, 0, all), 4u) << "not those without";
	c.note(key, 0, file, 8, nullptr);
	EXPECT_EQ(c.provable(key, 0, all), 0u);
	EXPECT_EQ(c.stats().noted, 1u);
}

TEST(KernelCopies, ABlockLeavesWhenTheKernelHasAllOfIt)
{
	rig r;
	block_ref b = r.filled(0, 0xff);
	r.store->given(b.clone(), 0xf, false);
	EXPECT_TRUE(r.has(0));
	r.store->given(b.clone(), 0xf0, false);
	EXPECT_FALSE(r.has(0));
	EXPECT_EQ(r.store->in_kernel().provable(key, 0, all), 0xffu);
	EXPECT_EQ(r.stats().left, 8u);
	EXPECT_NE(r.store->stats().used, 0u) << "the pin keeps it";
	EXPECT_TRUE(r.store->is_of(*b, key)) << "a serve may go on with it";
	r.store->advance(key, 4, 0, 0, file, file);
	EXPECT_TRUE(r.store->is_of(*b, key));
	b = block_ref();
	EXPECT_EQ(r.store->stats().used, 0u);
}

TEST(KernelCopies, ABlockStaysWhileItLoadsInCompanyOrIfTheKernelDropsIt)
{
	rig r;
	block_ref b = r.filled(0, 1);
	ASSERT_EQ(b->claim(2), 2u);
	r.store->given(b.clone(), 1, false);
	EXPECT_TRUE(r.has(0)) << "while it loads";
	b->abandon(2);
	r.store->given(b.clone(), 1, true);
	EXPECT_TRUE(r.has(0)) << "in company";
	b->stay();
	r.store->given(b.clone(), 1, false);
	EXPECT_TRUE(r.has(0)) << "the kernel has dropped it before";
	b = block_ref();
	r.store->closed(key);
	EXPECT_TRUE(r.has(0));
	rig keeps(page_store::copies::keep);
	keeps.left(0);
	EXPECT_TRUE(keeps.has(0));
}

TEST(KernelCopies, WithoutPeersNothingIsProved)
{
	rig r(page_store::copies::drop);
	r.left(0);
	EXPECT_FALSE(r.has(0));
	EXPECT_EQ(r.store->in_kernel().noted(key, 0), all);
	EXPECT_EQ(r.store->in_kernel().provable(key, 0, all), 0u);
}

TEST(KernelCopies, WhatCompanyNeededLeavesWhenTheFileIsClosed)
{
	rig r;
	r.store->given(r.filled(0), all, true);
	(void)r.filled(1); // the kernel has not asked for it
	r.store->closed(key);
	EXPECT_FALSE(r.has(0));
	EXPECT_TRUE(r.has(1));
}

TEST(KernelCopies, WhereMemoryLacksTheKernelsLeaveFirst)
{
	rig r;
	r.store = page_store::create(128 * block_bytes, 12);
	r.store->set_copies(page_store::copies::prove);
	for (std::uint64_t i = 0; i < 64; i++)
		(void)r.filled(i, 1);
	for (std::uint64_t i = 64; i < 128; i++)
		r.store->given(r.filled(i, 1), 1, true);
	r.store->follow({.available = 0, .reserve = 64 * block_bytes});
	for (std::uint64_t i = 0; i < 128; i++)
		EXPECT_EQ(r.has(i), i < 64) << i;
	EXPECT_EQ(r.stats().noted, 64u);
	EXPECT_EQ(r.store->stats().evicted_blocks, 0u);
}

TEST(KernelCopies, WithMemoryToSpareOnlyWhatPeersHoldLeaves)
{
	rig r(page_store::copies::spare);
	r.left(0);
	EXPECT_TRUE(r.has(0)) << "the kernel may drop the only copy";
	block_ref b = r.filled(1);
	b->held_by(7, all >> 1);
	r.store->given(b.clone(), all, false);
	EXPECT_TRUE(r.has(1)) << "a page of it is only here";
	b->held_by(7, all);
	r.store->given(b.clone(), all, true);
	EXPECT_TRUE(r.has(1)) << "in company";
	r.store->given(std::move(b), all, false);
	EXPECT_FALSE(r.has(1));
	EXPECT_EQ(r.store->in_kernel().provable(key, 1, all), all);
	r.store->closed(key);
	EXPECT_TRUE(r.has(0));
}

TEST(KernelCopies, WhenMemoryGetsShortAllThatTheKernelHasLeaves)
{
	rig r(page_store::copies::spare);
	const memory_state lacks = {.available = 0, .reserve = 64 * block_bytes};
	r.left(0, 1);
	r.store->follow(lacks);
	EXPECT_TRUE(r.has(0)) << "so few blocks stay";
	(void)r.filled(1, 1);
	r.left(2, 1);
	EXPECT_FALSE(r.has(2));
	r.store->closed(key);
	EXPECT_FALSE(r.has(0));
	EXPECT_TRUE(r.has(1)) << "the kernel does not have it";
	const memory_state enough = {.available = 64 * block_bytes, .reserve = 64 * block_bytes};
	r.store->follow(enough);
	r.left(3, 1);
	EXPECT_FALSE(r.has(3)) << "it is not ample yet";
	r.store->follow({.available = 128 * block_bytes, .reserve = 64 * block_bytes});
	r.left(4, 1);
	EXPECT_TRUE(r.has(4));
}

TEST(KernelCopies, AFullStoreNotesWhatItEvicts)
{
	rig r(page_store::copies::spare);
	for (std::uint64_t i = 0; i < 256; i++)
		r.left(i, 1);
	EXPECT_EQ(r.store->stats().evicted_blocks, 0u);
	for (std::uint64_t i = 0; i < 256; i++)
		EXPECT_NE(r.has(i), r.store->in_kernel().provable(key, i, all) == 1) << i;
	EXPECT_TRUE(r.has(255));
	EXPECT_FALSE(r.has(0));
}

TEST(KernelLoads, WhatPeersAskForStaysWhileMemoryIsToSpare)
{
	rig r(page_store::copies::spare);
	kernel k(r);
	for (std::uint64_t i = 0; i < 32; i++) {
		block_ref b = r.filled(i);
		b->held_by(7, all);
		r.store->given(std::move(b), all, false);
		k.wants(i);
		k.loads.arrived(k.asked.back().cookie, kernel::cached(k.asked.back()));
	}
	for (std::uint64_t i = 0; i < 32; i++)
		EXPECT_TRUE(r.has(i)) << i;
	r.store->closed(key);
	EXPECT_TRUE(r.has(0));
}

TEST(KernelLoads, PagesComeBackAsTheyLeft)
{
	rig r;
	kernel k(r);
	constexpr std::uint64_t size = 5 * page + 100;
	r.store->given(r.filled(0, 0x3f, size), 0x3f, false);
	k.wants(0);
	ASSERT_EQ(k.asked.size(), 1u);
	EXPECT_EQ(k.asked[0].offset, 0u);
	EXPECT_EQ(k.asked[0].length, size) << "to the end of the file";
	EXPECT_TRUE(r.store->in_kernel().under_way(key, 0));
	EXPECT_FALSE(r.has(0)) << "no reader must wait for the kernel";
	k.loads.arrived(k.asked[0].cookie, kernel::cached(k.asked[0]));
	EXPECT_FALSE(r.store->in_kernel().under_way(key, 0));
	const block_ref b = r.store->find(key, 0);
	ASSERT_TRUE(b);
	EXPECT_EQ(b->valid(), 0x3fu);
	EXPECT_EQ(b->data(3)[17], rig::at(3, 17));
	EXPECT_EQ(b->data(5)[99], rig::at(5, 99));
	EXPECT_EQ(b->data(5)[100], std::byte{0});
	EXPECT_EQ(r.stats().retrieved, 6u);
	k.loads.arrived(k.asked[0].cookie, {}); // twice: no effect
	EXPECT_EQ(r.stats().lost, 0u);
}

TEST(KernelLoads, AnyOtherBytesAreRefused)
{
	rig r;
	kernel k(r);
	r.left(0, 0xff);
	k.wants(0, 0xfe);
	ASSERT_EQ(k.asked.size(), 1u);
	auto bytes = kernel::cached(k.asked[0]);
	bytes[2 * page + 4095] ^= std::byte{1};                    // a mapping has changed it
	std::fill_n(bytes.begin() + 4 * page, page, std::byte{0}); // it is not filled yet
	k.loads.arrived(k.asked[0].cookie, bytes);
	EXPECT_EQ(r.store->find(key, 0)->valid(), 0xd6u);
	EXPECT_EQ(r.stats().refuted, 2u);
	EXPECT_EQ(r.store->in_kernel().noted(key, 0), 0xd7u) << "they are noted no more";
}

TEST(KernelLoads, WhatTheKernelLacksIsLost)
{
	rig r;
	kernel k(r);
	r.left(0);
	r.left(1, 0x0f0f);
	k.wants(0);
	k.wants(1);
	ASSERT_EQ(k.asked.size(), 3u) << "one a run of pages";
	EXPECT_EQ(k.asked[2].offset, (64 + 8) * page);
	auto bytes = kernel::cached(k.asked[0]);
	bytes.resize(10 * page + 1);
	k.loads.arrived(k.asked[0].cookie, bytes);
	EXPECT_EQ(r.store->find(key, 0)->valid(), 0x3ffu);
	EXPECT_EQ(r.stats().lost, 1u) << "the first page that did not come";
	ASSERT_EQ(k.asked.size(), 4u) << "those behind it are asked for again";
	EXPECT_EQ(k.asked[3].offset, 11 * page);
	EXPECT_TRUE(r.store->in_kernel().under_way(key, 0));
	k.loads.arrived(k.asked[3].cookie, {});
	EXPECT_EQ(r.stats().lost, 54u);
	EXPECT_EQ(r.store->in_kernel().noted(key, 0), 0x3ffu);
	EXPECT_FALSE(r.store->in_kernel().under_way(key, 0));
	k.loads.arrived(k.asked[1].cookie, {});
	EXPECT_TRUE(r.store->in_kernel().under_way(key, 1));
	EXPECT_FALSE(r.has(1));
	k.err = -ENOENT; // the kernel has forgotten the file
	r.left(2);
	k.wants(2);
	EXPECT_FALSE(r.store->in_kernel().under_way(key, 2));
	EXPECT_EQ(r.store->in_kernel().noted(key, 2), 0u);
}

TEST(KernelLoads, WhatHasComeFromElsewhereIsNotTouched)
{
	rig r;
	kernel k(r);
	r.left(0, 0xf);
	k.wants(0);
	const block_ref b = r.filled(0, 3);
	ASSERT_EQ(b->claim(4), 4u);
	k.loads.arrived(k.asked[0].cookie, kernel::cached(k.asked[0]));
	EXPECT_EQ(b->valid(), 0xbu);
	EXPECT_EQ(b->loading(), 4u) << "another's";
	b->abandon(4);
}

TEST(KernelLoads, ASmallPartOfTheStoreKeepsWhatCameBack)
{
	rig r;
	kernel k(r);
	for (std::uint64_t i = 0; i < 32; i++)
		r.left(i, 1);
	for (std::uint64_t i = 0; i < 32; i++) {
		k.wants(i, 1);
		k.loads.arrived(k.asked[i].cookie, kernel::cached(k.asked[i]));
	}
	EXPECT_EQ(r.store->stats().blocks, 4u);
	EXPECT_TRUE(r.has(31));
	EXPECT_EQ(r.stats().noted, 32u) << "the rest can come again";
}

TEST(KernelLoads, OnlySoManyAtATime)
{
	rig r;
	kernel k(r);
	for (std::uint64_t i = 0; i < 300; i++)
		r.left(i, 1);
	for (std::uint64_t i = 0; i < 300; i++)
		k.wants(i, 1);
	EXPECT_EQ(k.asked.size(), 256u);
	EXPECT_FALSE(r.store->in_kernel().under_way(key, 299));
}

} // namespace
