// SPDX-License-Identifier: MIT
// responder.cpp - a serve's memory stays until the device no longer reads it, and one peer's
// failure is not another's.
#include "userland/fetch-host/responder.hpp"

#include <cerrno>
#include <deque>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace
{

using namespace coop;
using namespace coop::fetch_host;

constexpr std::uint32_t page_bytes = 4096;
constexpr std::uint64_t now = 1000;

// Takes sends as told and completes them when told.
class device final : public ud::endpoint
{
public:
	device()
	{
		info_.mtu = page_bytes;
		info_.max_recv_wr = 256;
		info_.max_sge = 16;
		info_.name = "device";
	}
	const ud::endpoint_info &info() const override { return info_; }
	int register_memory(void *, std::size_t) override { return 0; }
	int create_qp(const ud::qp_attr &) override { return qps_++; }
	std::uint32_t qpn(std::uint32_t qp) const override { return 0x100 + qp; }
	std::uint32_t qkey(std::uint32_t) const override { return 1; }
	int modify_qp(std::uint32_t, ud::qp_state state) override
	{
		if (state != ud::qp_state::error && !owned.empty())
			return -EBUSY;
		states.push_back(state);
		return 0;
	}
	int post_recv(std::uint32_t, std::span<const ud::recv_wr> wrs) override
	{
		return static_cast<int>(wrs.size());
	}
	int post_send(std::uint32_t, const ud::address &, std::span<const ud::send_wr> wrs) override
	{
		posts++;
		if (error != 0)
			return error;
		const std::size_t n = std::min(wrs.size(), takes);
		for (const ud::send_wr &wr : wrs.first(n))
			owned.push_back(wr);
		return static_cast<int>(n);
	}
	std::size_t poll(std::span<ud::completion>) override { return 0; }
	int fd() const override { return -1; }
	bool arm() override { return true; }
	ud::endpoint_stats stats() const override { return {}; }
	void reset_stats() override {}

	int error = 0;          // of post_send
	std::size_t takes = 64; // of a batch
	int posts = 0;
	std::deque<ud::send_wr> owned;
	std::vector<ud::qp_state> states;

private:
	ud::endpoint_info info_{};
	int qps_ = 0;
};

struct pages final : served_pages {
	bool lookup(std::uint64_t cookie, const coop_ev &ev, found &out) override
	{
		held.insert(cookie);
		out.have = ev.pages;
		out.size = 1 << 20;
		return true;
	}
	std::uint64_t unchanged(std::uint64_t) override { return ~0ull; }
	void end(std::uint64_t cookie, std::uint64_t) override { held.erase(cookie); }
	std::uint32_t pieces(std::uint64_t, std::uint32_t, std::uint32_t offset,
			     std::uint32_t length, std::span<ud::sge> out) override
	{
		out[0] = {bytes.data() + offset, length};
		return 1;
	}
	std::set<std::uint64_t> held; // by cookie
	std::vector<std::byte> bytes = std::vector<std::byte>(page_bytes);
};

// A requester as an engine alone, and a responder with its engine over the device.
struct Responder : ::testing::Test {
	struct engine {
		explicit engine(std::uint8_t number)
		{
			cfg.seed = number;
			cfg.self.gid[0] = 0xfe;
			cfg.self.gid[15] = number;
			cfg.self.qpn = number * 0x1000u;
			cfg.page_shift = 12;
			cfg.mtu = page_bytes;
			cfg.max_fetches = cfg.max_serves = cfg.max_queued = cfg.max_peers = 8;
			cfg.peer_timeout_us = 100000;
			cfg.window_bytes = 1 << 22;
			memory.resize((coop_engine_size(&cfg) + 7) / 8);
			e = coop_engine_init(memory.data(), memory.size() * 8, &cfg, now);
			for (std::uint32_t i = 0; i < 8; i++)
				coop_engine_set_fetch_qp(e, i, number * 0x1000u + 0x10 + i, 1);
		}
		coop_engine_cfg cfg{};
		std::vector<std::uint64_t> memory;
		coop_engine *e;
	};

	Responder() : memory(page_bytes, page_bytes), r(dev, memory, pages_, what)
	{
		memory.make(dev);
		r.make(b.e);
		EXPECT_GT(coop_engine_peer_add(a.e, &b.cfg.self, COOP_PEER_BY_HAND, now), 0);
	}
	// A fetch of so many pages, as far as the REQUEST, and what the responder does about it.
	void ask(std::uint32_t n, std::uint64_t file)
	{
		coop_fetch_req req{};
		req.fid = {file, file};
		req.version = 1;
		req.size = 1 << 20;
		ASSERT_TRUE(coop_fetch_req_add(&req, 0, n));
		std::uint32_t id;
		ASSERT_EQ(coop_engine_submit(a.e, &req, now, &id), 0);
		for (coop_tx tx; coop_engine_next_tx(a.e, now, &tx);)
			if (tx.kind == COOP_TX_CTRL)
				coop_engine_rx_ctrl(b.e, tx.buf, tx.len, &a.cfg.self, now);
		work();
	}
	void work()
	{
		coop_ev ev;
		coop_tx tx;
		for (bool more = true; more;) {
			more = false;
			for (; r.has_room() ? coop_engine_next_tx(b.e, now, &tx)
					    : coop_engine_next_urgent_tx(b.e, now, &tx);
			     more = true)
				if (tx.kind == COOP_TX_DATA)
					r.send(tx, now);
			for (; coop_engine_next_event(b.e, now, &ev); more = true)
				if (ev.kind == COOP_EV_LOOKUP)
					r.lookup(ev, now);
				else if (ev.kind == COOP_EV_RECHECK)
					r.recheck(ev, now);
				else if (ev.kind == COOP_EV_SERVE_END)
					r.end(ev);
		}
	}
	// Completes the next n sends.
	void complete(std::size_t n, ud::wc_status status = ud::wc_status::success)
	{
		for (; n > 0; n--) {
			ud::completion c{};
			c.wr_id = dev.owned.front().wr_id;
			c.status = status;
			const bool tells =
				dev.owned.front().signaled || status != ud::wc_status::success;
			dev.owned.pop_front();
			if (tells)
				r.completed(0, c, now);
			work();
		}
	}

	static constexpr shape what{.page_shift = 12,
				    .fetches = 8,
				    .queued = 8,
				    .serves = 8,
				    .serve_qps = 1,
				    .serve_qkey = 1,
				    .max_sge = 16,
				    .bounded = true,
				    .fetches_option = "fetches=",
				    .serves_option = "serves="};
	device dev;
	slab memory;
	pages pages_;
	responder r;
	engine a{1}, b{2};
};

TEST_F(Responder, MemoryStaysUntilTheSendsHaveCompleted)
{
	ask(4, 1);
	ASSERT_EQ(dev.owned.size(), 4u);
	EXPECT_EQ(pages_.held.size(), 1u);
	complete(4);
	EXPECT_EQ(pages_.held.size(), 0u);
}

TEST_F(Responder, APeerWithoutAPathIsNoFailureOfOthers)
{
	ask(4, 1);
	dev.error = -EHOSTUNREACH;
	ask(4, 2);
	EXPECT_EQ(dev.posts, 2);
	EXPECT_TRUE(dev.states.empty()) << "the queue pair was stopped";
	EXPECT_EQ(pages_.held.size(), 1u);
	complete(4);
	EXPECT_EQ(pages_.held.size(), 0u);
}

TEST_F(Responder, MemoryStaysWhileTheDeviceHasAPartOfABatch)
{
	dev.takes = 3;
	ask(4, 1);
	ASSERT_EQ(dev.owned.size(), 3u);
	EXPECT_EQ(pages_.held.size(), 1u);
	complete(2, ud::wc_status::flushed);
	EXPECT_EQ(pages_.held.size(), 1u) << "the third send still reads it";
	complete(1, ud::wc_status::flushed);
	EXPECT_EQ(pages_.held.size(), 0u);
	EXPECT_EQ(dev.states.back(), ud::qp_state::ready);
	dev.takes = 64;
	ask(4, 2);
	EXPECT_EQ(dev.owned.size(), 4u) << "the queue pair works again";
	complete(4);
}

TEST_F(Responder, LittleIsPostedAtOnce)
{
	for (std::uint64_t file = 1; file <= 4; file++)
		ask(64, file);
	EXPECT_EQ(dev.owned.size() * page_bytes, responder::sending_max);
	EXPECT_EQ(pages_.held.size(), 4u);
	complete(63);
	EXPECT_EQ(dev.posts, 2) << "a batch ends with its last send";
	complete(1);
	EXPECT_EQ(dev.posts, 3);
	complete(64 * 3);
	EXPECT_EQ(dev.posts, 4);
	EXPECT_EQ(pages_.held.size(), 0u);
}

TEST_F(Responder, WhatWasFlushedMakesRoom)
{
	for (std::uint64_t file = 1; file <= 4; file++)
		ask(64, file);
	complete(64 * 2, ud::wc_status::flushed);
	EXPECT_EQ(pages_.held.size(), 0u);
	ask(64, 5);
	ask(64, 6);
	EXPECT_EQ(dev.posts, 4);
	complete(64 * 2);
	EXPECT_EQ(pages_.held.size(), 0u);
}

TEST_F(Responder, AStoppedQueuePairTakesNoMoreUntilItIsEmpty)
{
	ask(4, 1);
	ask(4, 2);
	complete(4, ud::wc_status::flushed);
	ask(4, 3);
	EXPECT_EQ(dev.posts, 2) << "it would never become empty";
	complete(4, ud::wc_status::flushed);
	EXPECT_EQ(pages_.held.size(), 0u);
	ask(4, 4);
	EXPECT_EQ(dev.posts, 3);
	complete(4);
}

} // namespace
