// SPDX-License-Identifier: MIT
// page_memory.cpp - the sum of a page does not depend on the pieces that hold it.
#include "userland/fetch-host/page_memory.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace
{

using namespace coop;
using namespace coop::fetch_host;

constexpr std::uint32_t page_bytes = 4096;

struct memory_in_pieces final : page_memory {
	explicit memory_in_pieces(std::uint32_t n) : n_(n), bytes(page_bytes)
	{
		for (std::size_t i = 0; i < bytes.size(); i++)
			bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
	}
	std::uint32_t pieces(std::uint64_t, std::uint32_t, std::uint32_t offset,
			     std::uint32_t length, std::span<ud::sge> out) override
	{
		const std::uint32_t each = length / n_;
		for (std::uint32_t i = 0; i < n_; i++)
			out[i] = {&bytes[offset + i * each], i + 1 < n_ ? each : length - i * each};
		return n_;
	}
	const std::uint32_t n_;
	std::vector<std::byte> bytes;
};

TEST(page_sum, is_of_the_bytes_whatever_the_pieces)
{
	coop_engine_cfg cfg{};
	cfg.page_shift = 12;
	cfg.mtu = 4096;
	cfg.max_fetches = cfg.max_serves = cfg.max_queued = cfg.max_peers = 1;
	cfg.peer_timeout_us = 1000;
	cfg.window_bytes = 1 << 20;
	cfg.self.qpn = 1;
	std::vector<std::uint64_t> room((coop_engine_size(&cfg) + 7) / 8);
	coop_engine *const e = coop_engine_init(room.data(), room.size() * 8, &cfg, 1);
	ASSERT_NE(e, nullptr);
	for (const coop_sum kind : {COOP_SUM_CRC, COOP_SUM_TAG}) {
		coop_ev ev{};
		ev.sum = kind;
		memory_in_pieces whole(1);
		const std::uint64_t sum = page_sum(e, ev, whole, 0, 0, 12);
		for (const std::uint32_t n : {2u, 3u, 14u}) {
			memory_in_pieces cut(n);
			EXPECT_EQ(page_sum(e, ev, cut, 0, 0, 12), sum) << n << " pieces";
		}
		whole.bytes[4095] ^= std::byte{1};
		EXPECT_NE(page_sum(e, ev, whole, 0, 0, 12), sum);
	}
}

} // namespace
