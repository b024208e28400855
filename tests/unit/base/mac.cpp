// SPDX-License-Identifier: MIT
// mac.cpp - SipHash-2-4 against the vectors of its reference implementation.
#include <gtest/gtest.h>

#include "rpc/base/mac.h"

namespace
{

// Key 00 01 .. 0f, input 00 01 .. n-1.
struct vector {
	std::size_t length;
	std::uint64_t hash;
};

constexpr vector vectors[] = {
	{0, 0x726fdb47dd0e0e31},  {1, 0x74f839c593dc67fd},  {2, 0x0d6c8009d9a94f5a},
	{3, 0x85676696d7fb7e2d},  {7, 0xab0200f58b01d137},  {8, 0x93f5f5799a932462},
	{15, 0xa129ca6149be45e5}, {16, 0x3f2acc7f57c29bdb}, {63, 0x958a324ceb064572},
};

TEST(mac, reference_vectors)
{
	u8 key[COOP_MAC_KEY], input[64];
	for (unsigned i = 0; i < sizeof(key); ++i)
		key[i] = static_cast<u8>(i);
	for (unsigned i = 0; i < sizeof(input); ++i)
		input[i] = static_cast<u8>(i);
	for (const vector &v : vectors)
		EXPECT_EQ(coop_mac(key, input, v.length), v.hash) << "length " << v.length;
}

TEST(mac, every_bit_of_key_and_input_counts)
{
	u8 key[COOP_MAC_KEY] = {}, input[40] = {};
	const u64 plain = coop_mac(key, input, sizeof(input));
	for (unsigned bit = 0; bit < 8 * sizeof(input); ++bit) {
		input[bit / 8] ^= static_cast<u8>(1 << bit % 8);
		EXPECT_NE(coop_mac(key, input, sizeof(input)), plain);
		input[bit / 8] ^= static_cast<u8>(1 << bit % 8);
	}
	for (unsigned bit = 0; bit < 8 * sizeof(key); ++bit) {
		key[bit / 8] ^= static_cast<u8>(1 << bit % 8);
		EXPECT_NE(coop_mac(key, input, sizeof(input)), plain);
		key[bit / 8] ^= static_cast<u8>(1 << bit % 8);
	}
}

} // namespace
