// SPDX-License-Identifier: MIT
// wire.cpp - every message encoded and decoded, cut at every length, with every bit flipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "rpc/base/mac.h"
#include "rpc/fetch/wire.h"

namespace
{

constexpr u8 key[16] = {1, 2, 3};

coop_addr address(u8 n)
{
	coop_addr a{};
	a.gid[0] = 0xfe;
	a.gid[15] = n;
	a.qpn = 0x1234u + n;
	a.qkey = 0x80010000u + n;
	a.lid = n;
	a.sl = 3;
	return a;
}

coop_msg blank(u8 command)
{
	coop_msg m;
	std::memset(&m, 0, sizeof(m));
	m.version = COOP_WIRE_VERSION;
	m.command = command;
	m.hops = COOP_WIRE_HOPS;
	m.id = 0x0123456789abcdef;
	return m;
}

coop_msg request(u32 pages, u32 mtu, u16 options)
{
	coop_msg m = blank(COOP_CMD_REQUEST);
	coop_msg_request &r = m.u.request;
	r.fid = {0x1111, 0x2222};
	r.version = 77;
	r.size = 1 << 30;
	r.data = address(1);
	r.reply = address(2);
	r.budget_us = 50000;
	r.mtu = static_cast<u16>(mtu);
	r.options = options;
	r.page_shift = 12;
	r.attempt = 3;
	r.n_ext = pages > 3 ? 4 : 1;
	for (u32 i = 0; i < r.n_ext; ++i)
		r.ext[i] = {(u64{1} << 40) + 1000 * i, i ? 1 : pages - (r.n_ext - 1), 0};
	coop_plan plan;
	EXPECT_EQ(coop_plan_init(&plan, 12, mtu, mtu, pages, options & COOP_OPT_PACKED), 0);
	m.n_segs = plan.n_segs;
	m.imm = 0xabcd0000;
	for (u32 s = 0; s < plan.n_segs; ++s)
		if (!(options & COOP_OPT_SELECTIVE) || s % 3 == 0)
			r.want[s / 64] |= u64{1} << s % 64;
	return m;
}

coop_msg commit(u32 n_sums, bool tags = false)
{
	coop_msg m = blank(COOP_CMD_COMMIT);
	coop_msg_commit &c = m.u.commit;
	c.fid = {5, 6};
	c.version = 7;
	c.size = 8;
	c.pages = 0x8000000000000001;
	c.source = address(4);
	c.source.qkey = 0; // not on the wire
	c.source.sl = 0;
	c.n_sums = n_sums;
	c.tags = tags;
	for (u32 i = 0; i < n_sums; ++i)
		c.sum[i] = (tags ? 0x010101010101ull : 0x01010101ull) * i;
	return m;
}

std::vector<coop_msg> samples()
{
	std::vector<coop_msg> v = {
		request(1, 4096, 0),
		request(64, 4096, COOP_OPT_CRC),
		request(64, 1024, COOP_OPT_SELECTIVE),
		request(7, 1500, COOP_OPT_SELECTIVE | COOP_OPT_PACKED | COOP_OPT_TAG),
		commit(0),
		commit(64),
		commit(1, true),
		commit(64, true),
		blank(COOP_CMD_QUERY),
		request(7, 1024, COOP_OPT_SELECTIVE),
		blank(COOP_CMD_OFFER),
		blank(COOP_CMD_PASSED),
	};
	v[v.size() - 3].command = COOP_CMD_FORWARD;
	v[v.size() - 2].u.offer = {{5, 6}, 7, 8, {(u64{1} << 51) + 64, 64, 0}, 2, 12};
	v[v.size() - 1].u.passed_to = address(9);
	for (u8 c :
	     {COOP_CMD_PING, COOP_CMD_PONG, COOP_CMD_BUSY, COOP_CMD_AGAIN, COOP_CMD_REFUSED}) {
		v.push_back(blank(c));
		v.back().value = 4096;
	}
	v.back().reason = COOP_REASON_MTU;
	return v;
}

std::vector<u8> encode(const coop_msg &m)
{
	std::vector<u8> out(COOP_CTRL_MAX);
	out.resize(coop_wire_encode(&m, key, out.data(), COOP_CTRL_MAX));
	return out;
}

// Decodes from memory that ends where the message ends, so that ASan sees a read past
// it.
coop_decode decode(coop_msg &m, const std::vector<u8> &bytes)
{
	std::unique_ptr<u8[]> tight(new u8[bytes.size() + 1]);
	std::copy(bytes.begin(), bytes.end(), tight.get() + 1);
	std::memset(&m, 0, sizeof(m));
	return coop_wire_decode(&m, key, tight.get() + 1, static_cast<u32>(bytes.size()));
}

void sign(std::vector<u8> &bytes)
{
	const u64 mac = coop_mac(key, bytes.data(), bytes.size() - 8);
	for (unsigned i = 0; i < 8; ++i)
		bytes[bytes.size() - 8 + i] = static_cast<u8>(mac >> 8 * i);
}

TEST(wire, round_trip)
{
	for (coop_msg m : samples()) {
		const std::vector<u8> bytes = encode(m);
		ASSERT_GT(bytes.size(), 0u) << "command " << int{m.command};
		coop_msg back;
		ASSERT_EQ(decode(back, bytes), COOP_DECODE_OK) << "command " << int{m.command};
		if (m.command != COOP_CMD_REQUEST && m.command != COOP_CMD_FORWARD)
			m.n_segs = 0;
		EXPECT_EQ(std::memcmp(&m, &back, sizeof(m)), 0) << "command " << int{m.command};
	}
}

TEST(wire, truncated_at_every_length)
{
	for (const coop_msg &m : samples()) {
		const std::vector<u8> whole = encode(m);
		for (std::size_t n = 0; n < whole.size(); ++n) {
			coop_msg back;
			std::vector<u8> cut(whole.begin(), whole.begin() + static_cast<long>(n));
			EXPECT_EQ(decode(back, cut), COOP_DECODE_SHORT);
			// The same cut by a sender with the key, who corrects the
			// length.
			if (n < COOP_WIRE_HEADER + COOP_WIRE_MAC)
				continue;
			cut[20] = static_cast<u8>(n);
			cut[21] = static_cast<u8>(n >> 8);
			sign(cut);
			EXPECT_EQ(decode(back, cut), COOP_DECODE_MALFORMED)
				<< "command " << int{m.command} << " length " << n;
		}
	}
}

TEST(wire, longer_than_it_says)
{
	for (const coop_msg &m : samples()) {
		std::vector<u8> bytes = encode(m);
		coop_msg back;
		bytes.push_back(0);
		EXPECT_EQ(decode(back, bytes), COOP_DECODE_SHORT);
		bytes.resize(bytes.size() + 3);
		if (bytes.size() > COOP_CTRL_MAX)
			continue;
		bytes[20] = static_cast<u8>(bytes.size());
		bytes[21] = static_cast<u8>(bytes.size() >> 8);
		sign(bytes);
		EXPECT_EQ(decode(back, bytes), COOP_DECODE_MALFORMED) << int{m.command};
	}
}

TEST(wire, every_flipped_bit_is_noticed)
{
	for (const coop_msg &m : samples()) {
		const std::vector<u8> whole = encode(m);
		for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
			std::vector<u8> bad = whole;
			bad[bit / 8] ^= static_cast<u8>(1 << bit % 8);
			coop_msg back;
			const coop_decode d = decode(back, bad);
			ASSERT_TRUE(d == COOP_DECODE_MAC || d == COOP_DECODE_SHORT)
				<< "bit " << bit;
		}
	}
}

// A sender with the key can say anything, but nothing may pass the bounds checks.
TEST(wire, every_signed_byte_is_within_bounds_or_refused)
{
	for (const coop_msg &m : samples()) {
		const std::vector<u8> whole = encode(m);
		for (std::size_t i = 0; i < whole.size() - COOP_WIRE_MAC; ++i) {
			for (int v : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
				std::vector<u8> bad = whole;
				bad[i] = static_cast<u8>(v);
				sign(bad);
				coop_msg back;
				if (decode(back, bad) != COOP_DECODE_OK ||
				    back.command != COOP_CMD_REQUEST)
					continue;
				const coop_msg_request &r = back.u.request;
				const u32 pages = coop_extents_pages(r.ext, r.n_ext);
				coop_plan plan;
				ASSERT_GE(pages, 1u);
				ASSERT_LE(pages, unsigned{COOP_MAX_PAGES});
				ASSERT_EQ(coop_plan_init(&plan, r.page_shift, r.mtu, r.mtu, pages,
							 r.options & COOP_OPT_PACKED),
					  0);
				ASSERT_EQ(back.imm & ((1u << plan.seg_bits) - 1), 0u);
				for (u32 s = plan.n_segs; s < COOP_MAX_SEGS; ++s)
					ASSERT_FALSE(r.want[s / 64] >> s % 64 & 1);
			}
		}
	}
}

TEST(wire, unknown_kinds_are_told_apart_from_damage)
{
	const std::vector<u8> ping = encode(samples()[9]);
	coop_msg back;
	std::vector<u8> x = ping;
	x[4] = COOP_WIRE_VERSION + 1;
	sign(x);
	EXPECT_EQ(decode(back, x), COOP_DECODE_VERSION);
	EXPECT_EQ(back.id, 0x0123456789abcdefu);
	x = ping;
	x[5] = 0x7e;
	sign(x);
	EXPECT_EQ(decode(back, x), COOP_DECODE_COMMAND);
	x = ping;
	x[7] = 1;
	sign(x);
	EXPECT_EQ(decode(back, x), COOP_DECODE_FLAGS);
	x = ping;
	sign(x);
	const u8 other[16] = {9};
	EXPECT_EQ(coop_wire_decode(&back, other, x.data(), static_cast<u32>(x.size())),
		  COOP_DECODE_MAC);
}

TEST(wire, every_shape_of_a_fetch_fits_the_smallest_mtu)
{
	for (u32 mtu = COOP_MTU_MIN; mtu <= COOP_MTU_MAX; mtu += 4) {
		const u32 room = coop_wire_room(mtu);
		const u32 per_page = (4096 + mtu - 1) / mtu;
		for (const bool tags : {false, true}) {
			const u32 pages = std::min(coop_wire_max_segs(mtu) / per_page,
						   coop_wire_max_pages(mtu, tags));
			ASSERT_GE(pages, 1u);
			std::vector<u8> buf(COOP_CTRL_MAX);
			coop_msg r =
				request(pages, mtu,
					COOP_OPT_SELECTIVE | (tags ? COOP_OPT_TAG : COOP_OPT_CRC));
			ASSERT_GT(coop_wire_encode(&r, key, buf.data(), room), 0u) << "mtu " << mtu;
			coop_msg c = commit(pages, tags);
			ASSERT_GT(coop_wire_encode(&c, key, buf.data(), room), 0u) << "mtu " << mtu;
		}
		if (mtu >= 480) {
			ASSERT_EQ(coop_wire_max_pages(mtu, true), unsigned{COOP_MAX_PAGES});
		}
		// The MTU also suffices for one page of 64 KiB.
		ASSERT_GE(coop_wire_max_segs(mtu), (65536 + mtu - 1) / mtu);
	}
}

TEST(wire, a_request_that_waits_has_a_level)
{
	coop_msg back;
	coop_msg m = request(2, 4096, COOP_OPT_WAIT);
	EXPECT_EQ(decode(back, encode(m)), COOP_DECODE_MALFORMED) << "WAIT without a level";
	m.u.request.level = 0x12345678;
	EXPECT_EQ(decode(back, encode(m)), COOP_DECODE_OK);
	EXPECT_EQ(back.u.request.level, 0x12345678u);
	m.u.request.options = COOP_OPT_LOAD;
	EXPECT_EQ(decode(back, encode(m)), COOP_DECODE_MALFORMED) << "LOAD without WAIT";
	m.u.request.options = 0;
	EXPECT_EQ(decode(back, encode(m)), COOP_DECODE_MALFORMED) << "a level without WAIT";
}

TEST(wire, sums_are_of_one_kind)
{
	coop_msg back;
	EXPECT_EQ(decode(back, encode(request(2, 4096, COOP_OPT_CRC | COOP_OPT_TAG))),
		  COOP_DECODE_MALFORMED);
	EXPECT_EQ(decode(back, encode(request(2, 4096, COOP_OPT_KNOWN + 1))),
		  COOP_DECODE_MALFORMED);
	EXPECT_EQ(decode(back, encode(commit(0, true))), COOP_DECODE_MALFORMED)
		<< "tags announced, none carried";
	std::vector<u8> other = encode(commit(2, true));
	ASSERT_EQ(other.size(), 96u + 2 * 6);
	other[87] = 2;
	sign(other);
	EXPECT_EQ(decode(back, other), COOP_DECODE_MALFORMED);
	other[87] = 0;
	sign(other);
	EXPECT_EQ(decode(back, other), COOP_DECODE_MALFORMED) << "12 bytes are not two CRCs";
}

TEST(wire, encode_does_not_write_past_the_room)
{
	const coop_msg m = request(64, 4096, 0);
	std::vector<u8> buf(100);
	EXPECT_EQ(coop_wire_encode(&m, key, buf.data(), 100), 0u);
}

} // namespace
