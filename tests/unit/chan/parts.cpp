// SPDX-License-Identifier: MIT
// parts.cpp - the parts of rpc/chan: the timing wheel against a search, datagrams encoded and
// decoded, the MAC in pieces, sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "rpc/base/mac.h"
#include "rpc/chan/wheel.h"
#include "tests/unit/chan/lab.hpp"

namespace
{

using namespace coop::test;

constexpr u64 unset = ~u64{0};

TEST(chan_wheel, agrees_with_a_search)
{
	constexpr u32 n = 40;
	std::mt19937_64 dice(11);
	std::vector<coop_wheel_node> memory(n);
	std::vector<u64> naive(n, unset);
	auto wheel = std::make_unique<coop_wheel>();
	u64 now = 123456789;
	coop_wheel_init(wheel.get(), memory.data(), n, now);
	for (int step = 0; step < 100000; ++step) {
		const u32 i = static_cast<u32>(dice() % n);
		switch (dice() % 4) {
		case 0:
		case 1: {
			// From the current tick to years ahead.
			const u64 when = now + (dice() >> (dice() % 50 + 14));
			coop_wheel_set(wheel.get(), i, when);
			naive[i] = (when + 7) / 8 * 8;
			EXPECT_EQ(coop_wheel_when(wheel.get(), i), naive[i]);
			break;
		}
		case 2:
			coop_wheel_clear(wheel.get(), i);
			naive[i] = unset;
			EXPECT_FALSE(coop_wheel_is_set(wheel.get(), i));
			break;
		default: {
			// To the next deadline of the wheel, or not quite as far.
			const u64 first = coop_wheel_first(wheel.get());
			const u64 least = *std::min_element(naive.begin(), naive.end());
			ASSERT_LE(first, least);
			if (first == unset)
				break;
			now = std::max(now, dice() % 2 ? first : now + dice() % 1000);
			for (;;) {
				const u32 due = coop_wheel_due(wheel.get(), now);
				if (due == COOP_NONE)
					break;
				ASSERT_LE(naive[due], now);
				naive[due] = unset;
			}
			ASSERT_GT(*std::min_element(naive.begin(), naive.end()), now / 8 * 8);
		}
		}
	}
}

TEST(chan_wheel, first_comes_to_the_earliest_in_few_steps)
{
	std::vector<coop_wheel_node> memory(1);
	auto wheel = std::make_unique<coop_wheel>();
	coop_wheel_init(wheel.get(), memory.data(), 1, 1);
	coop_wheel_set(wheel.get(), 0, 10000000);
	u32 steps = 0;
	u64 now = 1;
	while (coop_wheel_due(wheel.get(), now) == COOP_NONE) {
		now = coop_wheel_first(wheel.get());
		ASSERT_LT(++steps, 8u); // at most one slot per level
	}
	EXPECT_EQ(now, 10000000u);
}

TEST(chan_mac, pieces_make_the_whole)
{
	std::mt19937 dice(3);
	std::vector<u8> bytes(300);
	for (u8 &b : bytes)
		b = static_cast<u8>(dice());
	for (int round = 0; round < 500; ++round) {
		const std::size_t len = dice() % (bytes.size() + 1);
		coop_mac_state s;
		coop_mac_begin(&s, lab_key);
		for (std::size_t at = 0; at < len;) {
			const std::size_t n = std::min<std::size_t>(dice() % 20, len - at);
			coop_mac_add(&s, bytes.data() + at, n);
			at += n;
		}
		ASSERT_EQ(coop_mac_end(&s), coop_mac(lab_key, bytes.data(), len));
	}
}

coop_chan_packet sample(u8 type, bool open, u32 n_map)
{
	coop_chan_packet p{};
	p.version = COOP_CHAN_VERSION;
	p.type = type;
	p.flags = COOP_CHAN_W_ACK | (open ? COOP_CHAN_W_OPEN : 0);
	p.src_session = 0x1122334455667788;
	p.dst_session = 0x99aabbccddeeff01;
	p.dst_id = 7;
	p.seq = 0xfffffffe;
	p.ack = 12;
	p.held = 3;
	p.sack = 5;
	p.stamp = 77;
	p.echo = 66;
	p.hello = {3, 9, 0x11, 0x12, 0x13, 0x14, {512, 1024}, 4096, 2};
	p.n_map = n_map;
	for (u32 i = 0; i < n_map; ++i)
		p.map[i] = ~u64{i};
	p.first = 0xfffffffd;
	p.tag = 42;
	p.offset = 100;
	p.length = 200;
	p.unit = 100;
	p.size = 100;
	p.reason = 2;
	p.session = 0x55;
	p.payload_len = type == COOP_CHAN_T_MESSAGE || type == COOP_CHAN_T_CHUNK ? 100 : 0;
	return p;
}

const u8 types[] = {COOP_CHAN_T_MESSAGE, COOP_CHAN_T_CHUNK,     COOP_CHAN_T_VOID,
		    COOP_CHAN_T_PROBE,   COOP_CHAN_T_ACK,       COOP_CHAN_T_RNR,
		    COOP_CHAN_T_RESET,   COOP_CHAN_T_CHALLENGE, COOP_CHAN_T_VERSION};

TEST(chan_wire, what_is_encoded_is_decoded)
{
	for (const u8 type : types)
		for (const bool open : {false, true}) {
			coop_chan_packet p = sample(type, open, type == COOP_CHAN_T_ACK ? 9 : 0),
					 d{};
			std::vector<u8> out(COOP_CHAN_COMMAND_MTU), again(COOP_CHAN_COMMAND_MTU);
			out.resize(coop_chan_encode(&p, lab_key, out.data()) + p.payload_len);
			ASSERT_EQ(p.header_len, coop_chan_header_len(type, open, p.n_map));
			if (p.payload_len) {
				ASSERT_LE(p.header_len, u32{COOP_CHAN_HEADER_MOST});
			}
			ASSERT_EQ(coop_chan_decode(&d, lab_key, out.data(),
						   static_cast<u32>(out.size()), false),
				  COOP_CHAN_D_OK)
				<< u32{type};
			EXPECT_EQ(d.seq, p.seq);
			EXPECT_EQ(d.sack, p.sack);
			EXPECT_EQ(d.payload_len, p.payload_len);
			d.length = p.length; // a MESSAGE has the payload's length
			again.resize(coop_chan_encode(&d, lab_key, again.data()) + d.payload_len);
			EXPECT_EQ(out, again) << u32{type};
		}
}

TEST(chan_wire, no_length_but_the_right_one_is_taken)
{
	for (const u8 type : types) {
		coop_chan_packet p = sample(type, true, type == COOP_CHAN_T_ACK ? 2 : 0), d{};
		std::vector<u8> out(COOP_CHAN_COMMAND_MTU);
		out.resize(coop_chan_encode(&p, lab_key, out.data()) + p.payload_len);
		const std::vector<u8> whole = out;
		for (std::size_t len = 0; len < whole.size(); ++len)
			EXPECT_NE(coop_chan_decode(&d, lab_key, whole.data(), static_cast<u32>(len),
						   false),
				  COOP_CHAN_D_OK);
		// Any bit of the header: the MAC fails, or the lengths.
		for (std::size_t bit = 0; bit < p.header_len * 8; ++bit) {
			out = whole;
			out[bit / 8] ^= static_cast<u8>(1u << bit % 8);
			EXPECT_NE(coop_chan_decode(&d, lab_key, out.data(),
						   static_cast<u32>(out.size()), false),
				  COOP_CHAN_D_OK)
				<< u32{type} << " bit " << bit;
		}
	}
}

TEST(chan_shape, ten_thousand_idle_peers_are_a_few_megabytes)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.max_peers = 10000;
	cfg.max_active = 256;
	cfg.max_reorder = 64;
	const std::size_t size = coop_chan_size(&cfg);
	cfg.max_peers = 20000;
	const std::size_t twice = coop_chan_size(&cfg);
	ASSERT_GT(size, 0u);
	const double each = static_cast<double>(twice - size) / 10000;
	RecordProperty("bytes_per_idle_peer", static_cast<int>(each));
	EXPECT_LT(each, 640);
	EXPECT_NEAR(each, coop_chan_peer_bytes() + 16, 32); // plus its share of the address index
}

TEST(chan_shape, what_is_out_of_range_is_refused)
{
	const auto size = [](auto &&change) {
		coop_chan_cfg cfg = lab_cfg(0);
		change(cfg);
		return coop_chan_size(&cfg);
	};
	EXPECT_GT(size([](auto &) {}), 0u);
	EXPECT_EQ(size([](auto &c) { c.mtu[0] = 248; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.mtu[0] = 776; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.mtu[1] = 4104; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.mtu[1] = 1025; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.credits[1] = 3; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.max_peers = 0; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.max_active = 9; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.window = 100; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.window = 8192; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.max_length = 64u << 20; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.max_segments = 500; }), 0u); // less than one message
	EXPECT_EQ(size([](auto &c) { c.rto_min_us = 2000000; }), 0u);
	EXPECT_EQ(size([](auto &c) { c.max_tries = 1; }), 0u);
	coop_chan_cfg cfg = lab_cfg(0);
	std::vector<u64> memory(coop_chan_size(&cfg) / 8);
	EXPECT_EQ(coop_chan_create(memory.data(), memory.size() * 8 - 8, &cfg, 1), nullptr);
}

TEST(chan_peers, are_found_by_address_and_by_id)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.max_peers = 3000;
	cfg.max_active = 4;
	chan_lab lab(cfg);
	coop_chan *e = lab.a().e;
	std::vector<u32> ids;
	for (u32 i = 0; i < 3000; ++i) {
		coop_chan_peer_addr addr{};
		addr.command = chan_address(i + 10, 5);
		const s64 id = coop_chan_open(e, &addr, i, 1);
		ASSERT_GT(id, 0);
		ids.push_back(static_cast<u32>(id));
		EXPECT_EQ(coop_chan_open(e, &addr, i, 1), id);
	}
	coop_chan_peer_addr more{};
	more.command = chan_address(3010, 5);
	EXPECT_EQ(coop_chan_open(e, &more, 0, 1), -ENOSPC);
	for (u32 i = 0; i < 3000; ++i) {
		const coop_addr a = chan_address(i + 10, 5);
		coop_chan_peer_info info;
		EXPECT_EQ(coop_chan_find(e, &a), ids[i]);
		EXPECT_EQ(coop_chan_peer_get(e, ids[i], &info), 0);
		EXPECT_EQ(info.cookie, i);
	}
	EXPECT_EQ(coop_chan_close(e, ids[7], 2), 0);
	EXPECT_EQ(coop_chan_close(e, ids[7], 2), -ENOENT);
	const coop_addr gone = chan_address(17, 5);
	EXPECT_EQ(coop_chan_find(e, &gone), COOP_NONE);
	const s64 again = coop_chan_open(e, &more, 0, 3);
	EXPECT_GT(again, 0);
	EXPECT_NE(static_cast<u32>(again), ids[7]); // the same slot, another id
	u32 cursor = 0, n = 0;
	for (coop_chan_peer_info info; coop_chan_peer_next(e, &cursor, &info);)
		++n;
	EXPECT_EQ(n, 3000u);
	coop_chan_peer_addr self{};
	self.command = chan_address(0, lab_command);
	EXPECT_EQ(coop_chan_open(e, &self, 0, 1), -EINVAL);
	self.command.qpn = 0xff000000;
	EXPECT_EQ(coop_chan_open(e, &self, 0, 1), -EINVAL);
}

} // namespace
