// SPDX-License-Identifier: MIT
// tag.cpp - page tags against a reference as naive as the definition: 256-bit numbers
// as bytes, schoolbook multiplication, step by step. Also the inputs that must change a
// tag.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "rpc/fetch/tag.h"

namespace
{

using number = std::array<unsigned, 32>; // little endian, a byte each

number from(u64 v)
{
	number n{};
	for (unsigned i = 0; i < 8; ++i)
		n[i] = static_cast<unsigned>(v >> 8 * i & 255);
	return n;
}

u64 word_of(const number &n, unsigned at)
{
	u64 v = 0;
	for (unsigned i = 8; i-- > 0;)
		v = v << 8 | n[at + i];
	return v;
}

number plus(const number &a, const number &b)
{
	number sum{};
	unsigned carry = 0;
	for (unsigned i = 0; i < sum.size(); ++i) {
		carry += a[i] + b[i];
		sum[i] = carry & 255;
		carry >>= 8;
	}
	return sum;
}

number times(const number &a, const number &b)
{
	number product{};
	for (unsigned i = 0; i < 16; ++i)
		for (unsigned j = 0; j < 16; ++j) {
			number part{};
			part[i + j] = a[i] * b[j] & 255;
			part[i + j + 1] = a[i] * b[j] >> 8;
			product = plus(product, part);
		}
	return product;
}

number modulo(number n, unsigned bytes)
{
	std::fill(n.begin() + bytes, n.end(), 0);
	return n;
}

u64 load(const u8 *p)
{
	u64 v = 0;
	for (unsigned i = 8; i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

void append(std::vector<u8> &out, u64 v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; ++i)
		out.push_back(static_cast<u8>(v >> 8 * i));
}

u64 derive(const u8 *fabric, u64 n)
{
	std::vector<u8> text = {'p', 'a', 'g', 'e', 't', 'a', 'g', 0};
	append(text, n, 8);
	return coop_mac(fabric, text.data(), text.size());
}

u64 reference(const u8 *fabric, u64 id, u32 imm, u32 page, const std::vector<u8> &bytes)
{
	std::vector<u8> prf, text;
	append(prf, derive(fabric, 0), 8);
	append(prf, derive(fabric, 1), 8);
	append(text, id, 8);
	append(text, imm, 4);
	append(text, page, 4);
	append(text, bytes.size(), 8);
	for (std::size_t block = 0; block < bytes.size(); block += 1024) {
		number sum{};
		for (unsigned i = 0; i < 128; i += 2) {
			const u8 *p = &bytes[block + 8 * i];
			const number a = plus(from(load(p)), from(derive(fabric, 2 + i)));
			const number b = plus(from(load(p + 8)), from(derive(fabric, 3 + i)));
			sum = plus(sum, times(modulo(a, 8), modulo(b, 8)));
		}
		append(text, word_of(sum, 0), 8);
		append(text, word_of(sum, 8), 8);
	}
	return coop_mac(prf.data(), text.data(), text.size()) & 0xffffffffffff;
}

class tag : public testing::Test
{
protected:
	tag()
	{
		for (auto &b : fabric)
			b = static_cast<u8>(rng());
		coop_tag_derive(&key, fabric);
		for (auto &b : page)
			b = static_cast<u8>(rng());
	}
	u64 of(const std::vector<u8> &bytes) const
	{
		return coop_tag(&key, 1, 2, 3, bytes.data(), static_cast<u32>(bytes.size()));
	}
	std::mt19937_64 rng{20};
	u8 fabric[COOP_MAC_KEY];
	coop_tag_key key;
	std::vector<u8> page = std::vector<u8>(4096);
};

TEST_F(tag, is_the_references)
{
	for (std::size_t size : {0, 1024, 4096, 16384}) {
		std::vector<u8> odd(size + 1); // for an unaligned address
		for (const int fill : {0, 0xff, -1}) {
			for (auto &b : odd)
				b = static_cast<u8>(fill < 0 ? rng() : fill);
			const std::vector<u8> bytes(odd.begin() + 1, odd.end());
			const u64 id = rng();
			const u32 imm = static_cast<u32>(rng()), ordinal = rng() % 64;
			EXPECT_EQ(coop_tag(&key, id, imm, ordinal, odd.data() + 1,
					   static_cast<u32>(size)),
				  reference(fabric, id, imm, ordinal, bytes))
				<< size << " bytes of " << fill;
		}
	}
}

TEST_F(tag, stays_what_it_is)
{
	// Another program computed these once: nodes of all versions must agree on
	// them.
	u8 known[COOP_MAC_KEY];
	for (unsigned i = 0; i < sizeof(known); ++i)
		known[i] = static_cast<u8>(i);
	coop_tag_derive(&key, known);
	for (std::size_t i = 0; i < page.size(); ++i)
		page[i] = static_cast<u8>(i * 7 + i / 256);
	EXPECT_EQ(of(page), 0x90f1bb8e1e79u);
	page.resize(1024);
	EXPECT_EQ(of(page), 0x54d2598ccc5fu);
	EXPECT_EQ(of(page), reference(known, 1, 2, 3, page));
}

TEST_F(tag, every_bit_of_the_page_counts)
{
	const u64 whole = of(page);
	for (std::size_t bit = 0; bit < 8 * page.size(); ++bit) {
		page[bit / 8] ^= static_cast<u8>(1 << bit % 8);
		ASSERT_NE(of(page), whole) << "bit " << bit;
		page[bit / 8] ^= static_cast<u8>(1 << bit % 8);
	}
	EXPECT_EQ(of(page), whole);
}

TEST_F(tag, blocks_and_words_have_places)
{
	const u64 whole = of(page);
	std::vector<u8> other = page;
	std::swap_ranges(other.begin(), other.begin() + 1024, other.begin() + 2048);
	EXPECT_NE(of(other), whole);
	other = page;
	std::swap_ranges(other.begin(), other.begin() + 8, other.begin() + 8);
	EXPECT_NE(of(other), whole) << "swapped two words of a pair";
	other = page;
	std::swap_ranges(other.begin(), other.begin() + 16, other.begin() + 16);
	EXPECT_NE(of(other), whole) << "swapped two pairs";
	std::vector<u8> zeros(4096), fewer(2048);
	EXPECT_NE(of(zeros), of(fewer));
}

TEST_F(tag, is_of_one_attempt_and_one_page)
{
	const auto with = [&](u64 id, u32 imm, u32 ordinal) {
		return coop_tag(&key, id, imm, ordinal, page.data(), 4096);
	};
	const u64 own = with(1, 2, 3);
	EXPECT_EQ(with(1, 2, 3), own);
	EXPECT_NE(with(2, 2, 3), own);
	EXPECT_NE(with(1ull << 32 | 1, 2, 3), own);
	EXPECT_NE(with(1, 3, 3), own);
	EXPECT_NE(with(1, 2, 2), own);
	EXPECT_NE(with(1, 3, 2), own);
	EXPECT_EQ(own >> 48, 0u);
	fabric[15] ^= 128;
	coop_tag_derive(&key, fabric);
	EXPECT_NE(with(1, 2, 3), own);
}

TEST_F(tag, keys_are_no_macs_of_messages)
{
	// A message has at least 24 bytes before its MAC; a key is derived from 16.
	const u64 first = derive(fabric, 0);
	u64 prf;
	std::memcpy(&prf, key.prf, 8);
	EXPECT_EQ(le64toh(prf), first);
	EXPECT_EQ(key.nh[0], derive(fabric, 2));
	EXPECT_EQ(key.nh[127], derive(fabric, 129));
}

TEST(multiply, halves_are_a_whole)
{
	std::mt19937_64 rng(20);
	const u64 edges[] = {
		0,          1,         2,     0xffffffff,        1ull << 32, (1ull << 32) + 1,
		1ull << 63, ~0ull - 1, ~0ull, 0xffffffff00000000};
	std::vector<u64> values(std::begin(edges), std::end(edges));
	for (int i = 0; i < 100; ++i)
		values.push_back(rng() >> rng() % 64);
	for (u64 a : values)
		for (u64 b : values) {
			const number product = times(from(a), from(b));
			u64 low = 0;
			const u64 high = coop_multiply_halves(a, b, &low);
			ASSERT_EQ(low, word_of(product, 0)) << a << " * " << b;
			ASSERT_EQ(high, word_of(product, 8)) << a << " * " << b;
		}
}

} // namespace
