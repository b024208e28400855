// SPDX-License-Identifier: MIT
// reading.cpp - the requests of a buffer that is being read, when the engine fails them.
#include <cerrno>
#include <gtest/gtest.h>
#include <optional>
#include <vector>

#include "tests/lib/own_ip.hpp"
#include "tests/unit/net/kernel/core.hpp"
#include "userland/net/ud/reader.hpp"

using namespace coop::net;
using namespace coop::net::ud;

namespace
{

/// No peer has a session.
class no_sessions final : public message_engine
{
public:
	std::int64_t open(const coop_chan_peer_addr &, spi::peer_number, identity,
			  std::uint64_t) override
	{
		return -ENOSPC;
	}
	void admit(std::uint32_t, spi::peer_number, identity) override {}
	void close(std::uint32_t, std::uint64_t) override {}
	bool info(std::uint32_t, coop_chan_peer_info &) const override { return false; }
	std::uint32_t sessions() const override { return 0; }
	int send(const coop_chan_msg &, std::uint64_t, std::uint32_t &) override { return -ENOSYS; }
	void cancel(std::uint32_t, std::uint64_t) override {}
	std::uint32_t unit() const override { return 0; }
	std::byte *text(std::uint32_t) override { return nullptr; }
	int deliver_here(std::uint32_t, op &) override { return -ENOSYS; }
};

/// It takes requests, and the test ends them.
class listed final : public fetch_engine
{
public:
	std::uint32_t max_pages() const override { return 64; }
	std::uint32_t run() const override { return 0; }
	std::uint32_t peer(spi::peer_number, bool, std::uint64_t) override { return 1; }
	int submit(const reading &, const coop_fetch_req &q, const coop::fetch_host::page_list &,
		   std::uint64_t) override
	{
		requests++;
		under_way.push_back(static_cast<std::uint32_t>(q.cookie));
		return 0;
	}
	void cancel_fetch(std::uint32_t, std::uint64_t) override {}

	unsigned requests = 0;
	std::vector<std::uint32_t> under_way;
};

class readings : public testing::Test
{
protected:
	readings()
	{
		EXPECT_EQ(parse(own_ip(63) + "@tcp:12345:31:1", own_), 0);
		EXPECT_EQ(parse(own_ip(63) + "@tcp:12345:31:2", other_), 0);
		resolver_.emplace(options_.key, identity::of(own_));
		peers_.emplace(options_, identity::of(own_), own_, sessions_, *resolver_, core_);
		EXPECT_EQ(peers_->open(0, other_), 0);
		reader_.emplace(options_, engine_, *peers_);
		reading_.length = reading_.size = page_bytes;
		reading_.peer = 0;
		reader_->begin(reading_, 0);
	}
	// All requests end at this time, with this error.
	void end(int err, std::uint64_t now)
	{
		for (const std::uint32_t number : std::exchange(engine_.under_way, {}))
			reader_->finished(number, 0, err, false, now);
	}

	options options_;
	address own_, other_;
	kernel_test::core core_;
	no_sessions sessions_;
	listed engine_;
	std::optional<resolver> resolver_;
	std::optional<peers> peers_;
	std::optional<reader> reader_;
	reading reading_;
};

// As on a port that is down.
TEST_F(readings, do_not_repeat_at_once_what_fails_at_once)
{
	for (std::uint64_t now = 0; now < 50000; now++) {
		reader_->advance(now);
		end(-ENODEV, now);
	}
	EXPECT_EQ(engine_.requests, 10u);
	EXPECT_EQ(reader_->deadline(), 50000u);
	// The port is up again.
	reader_->advance(50000);
	ASSERT_EQ(engine_.under_way.size(), 1u);
	reader_->finished(engine_.under_way[0], 1, 0, true, 50100);
	reader_->advance(50100);
	EXPECT_EQ(reader_->next_over(), &reading_);
	EXPECT_EQ(reading_.status, 0);
}

// The wire has lost it.
TEST_F(readings, repeat_at_once_what_had_no_answer_in_time)
{
	reader_->advance(0);
	end(-ETIMEDOUT, 1000);
	reader_->advance(1000);
	EXPECT_EQ(engine_.requests, 2u);
}

} // namespace
