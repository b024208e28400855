// SPDX-License-Identifier: MIT
// The wire format against packets that hardware sent, and the ICRC against a second way to
// compute it.
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "userland/ud/grh.hpp"
#include "userland/ud/icrc.hpp"
#include "userland/ud/roce_wire.hpp"

namespace
{

using namespace coop::ud;

std::array<std::uint8_t, 16> mapped(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d)
{
	return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
}

std::uint32_t icrc_of(const flow &f, const std::vector<std::uint8_t> &udp_payload, std::uint16_t id)
{
	return icrc_begin(f, udp_payload.size(), id, udp_payload.data(),
			  udp_payload.size() - icrc_bytes);
}

// A SEND of an unreliable connection from a ConnectX, identification 1144, two pad bytes.
struct captured_send {
	flow from{mapped(192, 168, 0, 7), mapped(192, 168, 0, 7), 49152, false};
	std::vector<std::uint8_t> bytes{0x24, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00,
					0xcf, 0x17, 0x10, 0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89,
					0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe,
					0x88, 0x5e, 0x50, 0x00, 0x00, 0x78, 0xf3, 0x53, 0xf3};
	static constexpr std::uint16_t id = 1144;
};

// A congestion notification from a ConnectX-4 Lx: type of service 0xc2 and BECN set, both
// masked.
struct captured_notification {
	flow from{mapped(10, 0, 17, 1), mapped(10, 0, 18, 1), 0, false};
	std::vector<std::uint8_t> bytes{0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0, 0, 0, 0,
					0,    0,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0,
					0,    0,    0,    0,    0x82, 0xfd, 0x00, 0x2a};
	static constexpr std::uint16_t id = 0x718c;
};

template <typename T> class Captured : public testing::Test
{
};
using captures = testing::Types<captured_send, captured_notification>;
TYPED_TEST_SUITE(Captured, captures);

TYPED_TEST(Captured, IcrcIsTheHardwares)
{
	const TypeParam c;
	EXPECT_EQ(icrc_of(c.from, c.bytes, c.id), get_icrc(c.bytes.data() + c.bytes.size() - 4));
}

TYPED_TEST(Captured, IdentificationIsFound)
{
	const TypeParam c;
	id_solver solver;
	const std::uint32_t received = get_icrc(c.bytes.data() + c.bytes.size() - 4);
	const auto id = solver.solve(icrc_of(c.from, c.bytes, 0) ^ received, c.bytes.size());
	ASSERT_TRUE(id);
	EXPECT_EQ(*id, TypeParam::id);
}

TYPED_TEST(Captured, EveryFlippedBitIsNoticed)
{
	const TypeParam c;
	id_solver solver;
	for (std::size_t bit = 0; bit < c.bytes.size() * 8; bit++) {
		auto bytes = c.bytes;
		bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
		if (bit / 8 == 4)
			continue; // masked
		const std::uint32_t syndrome =
			icrc_of(c.from, bytes, 0) ^ get_icrc(bytes.data() + bytes.size() - 4);
		EXPECT_FALSE(solver.solve(syndrome, bytes.size())) << "bit " << bit;
	}
}

TEST(Icrc, SolverAgreesWithRecomputingForAnyLengthAndIdentification)
{
	std::mt19937 random(20240);
	id_solver solver;
	for (int i = 0; i < 3000; i++) {
		std::vector<std::uint8_t> bytes(28 + random() % 4200);
		for (auto &b : bytes)
			b = static_cast<std::uint8_t>(random());
		const flow f{mapped(127, 0, 0, 2), mapped(10, 9, 8, 7),
			     static_cast<std::uint16_t>(random()), false};
		const auto id = static_cast<std::uint16_t>(random());
		const std::uint32_t difference = icrc_of(f, bytes, 0) ^ icrc_of(f, bytes, id);
		ASSERT_EQ(icrc_of_id(id, bytes.size()), difference);
		const auto found = solver.solve(difference, bytes.size());
		ASSERT_TRUE(found);
		ASSERT_EQ(*found, id);
	}
}

// The cost of arbitrary identifications: noise passes once in 65536, not more often.
TEST(Icrc, NoisePassesAsSeldomAsDocumented)
{
	std::mt19937 random(7);
	id_solver solver;
	int passed = 0;
	for (int i = 0; i < 1 << 20; i++)
		passed += solver.solve(static_cast<std::uint32_t>(random()), 4124).has_value();
	EXPECT_LT(passed, 48); // 16 expected
}

TEST(Icrc, Ipv6IsMaskedAsTheStandardSays)
{
	// Written out: 8 x ff | version 6, class and label ones | length | 17 | ff | addresses |
	// UDP
	flow f{};
	f.v6 = true;
	f.src_port = 4791;
	for (std::uint8_t i = 0; i < 16; i++) {
		f.src[i] = i;
		f.dst[i] = static_cast<std::uint8_t>(0x80 + i);
	}
	std::vector<std::uint8_t> bytes(40, 0x5a);
	std::vector<std::uint8_t> pseudo;
	pseudo.reserve(128);
	pseudo.insert(pseudo.end(), 8, 0xff);
	pseudo.insert(pseudo.end(), {0x6f, 0xff, 0xff, 0xff, 0, 48, 17, 0xff});
	pseudo.insert(pseudo.end(), f.src.begin(), f.src.end());
	pseudo.insert(pseudo.end(), f.dst.begin(), f.dst.end());
	pseudo.insert(pseudo.end(), {0x12, 0xb7, 0x12, 0xb7, 0, 48, 0xff, 0xff});
	pseudo.insert(pseudo.end(), bytes.begin(), bytes.end() - 4);
	pseudo[8 + 40 + 8 + 4] = 0xff;

	std::uint32_t bitwise = ~0u;
	for (const std::uint8_t b : pseudo) {
		bitwise ^= b;
		for (int i = 0; i < 8; i++)
			bitwise = (bitwise >> 1) ^ (bitwise & 1 ? 0xedb88320u : 0);
	}
	EXPECT_EQ(icrc_of(f, bytes, 0), ~bitwise);
	EXPECT_EQ(icrc_of(f, bytes, 77), ~bitwise) << "IPv6 has no identification";
}

TEST(Head, IsWrittenByteByByteAsSpecified)
{
	datagram_head h{};
	h.dest_qp = 0x123456;
	h.src_qp = 0xabcdef;
	h.qkey = 0x80010203;
	h.psn = 0x0a0b0c;
	h.imm = 0xfeedf00d;
	h.has_imm = true;
	h.pad = 3;
	std::uint8_t out[head_imm];
	encode_head(out, h);
	const std::uint8_t want[] = {0x65, 0x70, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56,
				     0x00, 0x0a, 0x0b, 0x0c, 0x80, 0x01, 0x02, 0x03,
				     0x00, 0xab, 0xcd, 0xef, 0xfe, 0xed, 0xf0, 0x0d};
	EXPECT_EQ(std::memcmp(out, want, sizeof(want)), 0);

	const auto back = decode_head(out, sizeof(out), 24 + 8 + 4);
	ASSERT_TRUE(back);
	EXPECT_EQ(back->dest_qp, h.dest_qp);
	EXPECT_EQ(back->src_qp, h.src_qp);
	EXPECT_EQ(back->qkey, h.qkey);
	EXPECT_EQ(back->psn, h.psn);
	EXPECT_EQ(back->imm, h.imm);
	EXPECT_EQ(back->pad, 3);
}

TEST(Head, RefusesWhatIsNoUnreliableDatagram)
{
	std::uint8_t good[head_imm];
	encode_head(good, datagram_head{1, 2, 3, 4, 5, true, 0});
	ASSERT_TRUE(decode_head(good, sizeof(good), 28));
	const auto refused = [&](std::size_t byte, std::uint8_t value, std::size_t length = 28) {
		std::uint8_t bad[head_imm];
		std::memcpy(bad, good, sizeof(bad));
		bad[byte] = value;
		return !decode_head(bad, sizeof(bad), length);
	};
	EXPECT_TRUE(refused(0, 0x04)) << "opcode of a reliable connection";
	EXPECT_TRUE(refused(1, 0x41)) << "transport version";
	EXPECT_TRUE(refused(2, 0x12)) << "partition";
	EXPECT_FALSE(refused(2, 0x7f)) << "limited membership of the default partition";
	EXPECT_TRUE(refused(1, 0x50, 28)) << "pad without payload";
	EXPECT_TRUE(refused(0, 0x65, 24)) << "no room for the ICRC";
	EXPECT_TRUE(refused(0, 0x65, 29)) << "not a multiple of four";
	for (std::size_t n = 0; n < head_imm; n++)
		EXPECT_FALSE(decode_head(good, n, 28)) << n << " bytes";
}

TEST(Grh, Ipv4HeaderLiesAtOffset20AndItsChecksumHolds)
{
	std::uint8_t out[40];
	std::memset(out, 0xee, sizeof(out));
	write_grh(out, flow{mapped(10, 1, 2, 3), mapped(10, 4, 5, 6), 4791, false}, 4124, 7);
	const std::uint8_t want[] = {0x45, 0, 0x10, 0x38, 0, 7, 0x40, 0, 64, 17};
	EXPECT_EQ(std::memcmp(out + 20, want, sizeof(want)), 0);
	const std::uint8_t addresses[] = {10, 1, 2, 3, 10, 4, 5, 6};
	EXPECT_EQ(std::memcmp(out + 32, addresses, 8), 0);
	std::uint32_t sum = 0;
	for (int i = 20; i < 40; i += 2)
		sum += static_cast<std::uint32_t>(out[i] << 8 | out[i + 1]);
	EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffu);
}

TEST(Grh, Ipv6HeaderFillsIt)
{
	flow f{};
	f.v6 = true;
	f.src.fill(0x11);
	f.dst.fill(0x22);
	std::uint8_t out[40];
	write_grh(out, f, 28, 0);
	const std::uint8_t want[] = {0x60, 0, 0, 0, 0, 36, 17, 64};
	EXPECT_EQ(std::memcmp(out, want, sizeof(want)), 0);
	EXPECT_EQ(out[8], 0x11);
	EXPECT_EQ(out[39], 0x22);
}

} // namespace
