// SPDX-License-Identifier: MIT
// reads.cpp - bulk data that the receiver reads by RDMA, and that the sender writes: with peers of
// either kind, and with one that does what the test says.
#include <array>
#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coop/net.hpp"
#include "tests/conformance/fabric_enemy.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/descriptor.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;
using namespace std::chrono_literals;

constexpr std::size_t size = 300000;

struct ended final : buffer_handler {
	void on_buffer(const buffer_event &e) override
	{
		if (!e.queued)
			status = e.status;
	}
	int wait() const
	{
		const auto end = coop::net::clock::now() + 30s;
		while (status == 1 && coop::net::clock::now() < end)
			std::this_thread::sleep_for(1ms);
		return status;
	}
	std::atomic<int> status{1};
};

// Two domains: who fetches may read, or not; a peer that cannot lend is an earlier release.
class fabric_fetch : public testing::TestWithParam<const char *>
{
};

TEST_P(fabric_fetch, moves_the_data_between_different_segments)
{
	const std::string address = own_ip(12) + "@tcp:12345:31:";
	for (const char *read : {"1", "0"}) {
		domain there({"fabric", {{"provider", GetParam()}}}),
			here({"fabric", {{"provider", GetParam()}, {"read", read}}});
		std::vector<std::byte> from(size), to(size);
		for (std::size_t i = 0; i < size; i++)
			from[i] = std::byte(i * 7 + i / 256);
		std::vector<segment> pieces;
		for (std::size_t at = 0, n = 1; at < size; at += n, n = n * 3 % 40009 + 1)
			if (pieces.size() < 127)
				pieces.push_back({from.data() + at, std::min(n, size - at)});
			else if (pieces.size() == 127)
				pieces.push_back({from.data() + at, size - at});
		const segment other[] = {{to.data(), 100000}, {to.data() + 100000, size - 100000}};
		buffer shown(there, pieces), taken(here, other);
		ended gave, got;
		transfer_machine one(there), two(here);
		ASSERT_EQ(one.start(address + '1'), 0);
		ASSERT_EQ(two.start(address + '2'), 0);
		for (transfer_machine *tm : {&one, &two})
			ASSERT_EQ(tm->wait(tm_state::started), 0);
		operation o;
		o.queue = queue_type::passive_bulk_send;
		o.handler = &gave;
		ASSERT_EQ(one.add(shown, o), 0);
		operation a;
		a.queue = queue_type::active_bulk_recv;
		a.descriptor = shown.descriptor();
		a.handler = &got;
		ASSERT_EQ(two.add(taken, a), 0);
		EXPECT_EQ(got.wait(), 0) << read;
		EXPECT_EQ(gave.wait(), 0) << read;
		EXPECT_EQ(from, to) << read;
		// The descriptor is stale: no byte moves.
		to.assign(size, std::byte{9});
		got.status = 1;
		const std::vector<std::byte> text(shown.descriptor().begin(),
						  shown.descriptor().end());
		a.descriptor = text;
		ASSERT_EQ(two.add(taken, a), 0);
		EXPECT_EQ(got.wait(), -ENOENT);
		EXPECT_EQ(to, std::vector<std::byte>(size, std::byte{9}));
	}
}

INSTANTIATE_TEST_SUITE_P(over, fabric_fetch, testing::Values("tcp", "tcp;ofi_rxm"),
			 [](const auto &i) { return std::string(i.index ? "rxm" : "tcp"); });

// A machine, and a peer that does what the test says.
class fabric_lends : public testing::Test
{
protected:
	const std::string address_ = own_ip(13) + "@tcp:12345:31:";
	domain d_{{"fabric", {{"provider", "tcp"}}}};
	std::vector<std::byte> memory_ = std::vector<std::byte>(100000, std::byte{1});
	buffer buffer_{d_, memory_.data(), memory_.size()};
	ended event_;
	transfer_machine tm_{d_};
	std::unique_ptr<conformance::fabric_enemy> peer_;

	void SetUp() override
	{
		address own;
		ASSERT_EQ(parse(address_ + '1', own), 0);
		ASSERT_EQ(tm_.start(address_ + '2'), 0);
		ASSERT_EQ(tm_.wait(tm_state::started), 0);
		peer_ = std::make_unique<conformance::fabric_enemy>("tcp", own);
	}
	void connect(bool lends)
	{
		address there;
		ASSERT_EQ(parse(address_ + '2', there), 0);
		hello h = peer_->greeting_of(there);
		h.lends = lends;
		ASSERT_TRUE(peer_->connect(there, h));
	}
	control next()
	{
		const auto end = coop::net::clock::now() + 30s;
		while (peer_->heard.empty() && peer_->linked() && coop::net::clock::now() < end)
			peer_->look();
		if (peer_->heard.empty())
			return {};
		const control c = peer_->heard.front();
		peer_->heard.pop_front();
		return c;
	}
	void offer(queue_type q, core::descriptor &what)
	{
		operation o;
		o.queue = q;
		o.handler = &event_;
		ASSERT_EQ(tm_.add(buffer_, o), 0);
		ASSERT_EQ(core::decode(buffer_.descriptor(), what), 0);
	}
	control get(const core::descriptor &what) const
	{
		control c;
		c.verb = control::verb::get;
		c.id = 7;
		c.token = what.token;
		c.key = what.key;
		c.length = memory_.size();
		return c;
	}
	control lent()
	{
		core::descriptor what;
		offer(queue_type::passive_bulk_send, what);
		EXPECT_TRUE(peer_->say(get(what)));
		const control c = next();
		EXPECT_EQ(c.verb, control::verb::lend);
		EXPECT_EQ(c.peer, 7u);
		EXPECT_EQ(c.count, 1u);
		return c;
	}
	// Fetches from the peer, which has not offered anything: it sees how the machine asks.
	control asked()
	{
		core::descriptor what;
		what.transport = core::transport_id("fabric");
		what.size = memory_.size();
		what.token = 1234;
		what.key = 5678;
		EXPECT_EQ(parse(address_ + '1', what.machine), 0);
		std::array<std::byte, core::descriptor::fixed> text;
		EXPECT_EQ(core::encode(what, text.data()), text.size());
		operation o;
		o.queue = queue_type::active_bulk_recv;
		o.descriptor = text;
		o.handler = &event_;
		EXPECT_EQ(tm_.add(buffer_, o), 0);
		return next();
	}
	bool say_done(const control &to, int status)
	{
		control c;
		c.verb = control::verb::done;
		c.peer = to.id;
		c.status = status;
		return peer_->say(c);
	}
};

TEST_F(fabric_lends, and_ends_when_the_reader_has_done)
{
	connect(true);
	const control lend = lent();
	EXPECT_EQ(event_.status, 1);
	ASSERT_TRUE(say_done(lend, 0));
	EXPECT_EQ(event_.wait(), 0);
}

// A reader that stands still keeps the memory for half a second; then its connection is closed, so
// that no byte is read from memory that is used again.
TEST_F(fabric_lends, and_waits_for_the_reader_for_a_moment)
{
	connect(true);
	(void)lent();
	ASSERT_TRUE(tm_.del(buffer_));
	EXPECT_EQ(event_.wait(), -ECANCELED);
	const auto end = coop::net::clock::now() + 30s;
	while (peer_->linked() && coop::net::clock::now() < end)
		peer_->look();
	EXPECT_FALSE(peer_->linked());
}

TEST_F(fabric_lends, and_a_reader_that_gives_up_has_not_asked)
{
	connect(true);
	const control lend = lent();
	control cancel;
	cancel.verb = control::verb::cancel;
	cancel.id = 7;
	cancel.peer = lend.id;
	ASSERT_TRUE(peer_->say(cancel));
	core::descriptor what;
	ASSERT_EQ(core::decode(buffer_.descriptor(), what), 0);
	ASSERT_TRUE(peer_->say(get(what)));
	const control again = next();
	EXPECT_EQ(again.verb, control::verb::lend);
	EXPECT_NE(again.regions[0].key, lend.regions[0].key);
	EXPECT_EQ(event_.status, 1);
	ASSERT_TRUE(say_done(again, 0));
	EXPECT_EQ(event_.wait(), 0);
}

TEST_F(fabric_lends, and_does_not_write_as_well)
{
	connect(true);
	const control lend = lent();
	control grant;
	grant.verb = control::verb::grant;
	grant.id = 8;
	grant.peer = lend.id;
	grant.count = 1;
	grant.regions[0] = {0, memory_.size(), 12345};
	ASSERT_TRUE(peer_->say(grant));
	ASSERT_TRUE(say_done(lend, 0));
	EXPECT_EQ(event_.wait(), 0);
	// Such a write would break the connection.
	core::descriptor what;
	ASSERT_EQ(core::decode(buffer_.descriptor(), what), 0);
	ASSERT_TRUE(peer_->say(get(what)));
	const control answer = next();
	EXPECT_EQ(answer.verb, control::verb::done);
	EXPECT_EQ(answer.status, -ENOENT);
}

TEST_F(fabric_lends, and_the_end_of_the_reader_ends_it)
{
	connect(true);
	(void)lent();
	peer_.reset();
	EXPECT_EQ(event_.wait(), -ECONNRESET);
}

// An earlier release does not say that it lends.
TEST_F(fabric_lends, what_an_earlier_release_has_it_writes)
{
	connect(false);
	const control get = asked();
	EXPECT_EQ(get.verb, control::verb::get);
	EXPECT_EQ(get.count, 1u);
	ASSERT_TRUE(say_done(get, -ENOENT));
	EXPECT_EQ(event_.wait(), -ENOENT);
}

TEST_F(fabric_lends, what_a_peer_lends_is_read)
{
	connect(true);
	const control get = asked();
	EXPECT_EQ(get.verb, control::verb::get);
	EXPECT_EQ(get.count, 0u);
	// It lends memory that is not there: the connection breaks, and no byte arrives.
	control lend;
	lend.verb = control::verb::lend;
	lend.id = 5;
	lend.peer = get.id;
	lend.count = 1;
	lend.regions[0] = {0, memory_.size(), 12345};
	ASSERT_TRUE(peer_->say(lend));
	const auto end = coop::net::clock::now() + 30s;
	while (event_.status == 1 && coop::net::clock::now() < end)
		peer_->look();
	EXPECT_EQ(event_.status, -ECONNRESET);
	EXPECT_EQ(memory_, std::vector<std::byte>(100000, std::byte{1}));
}

TEST_F(fabric_lends, too_little_and_is_left)
{
	connect(true);
	const control get = asked();
	control lend;
	lend.verb = control::verb::lend;
	lend.id = 5;
	lend.peer = get.id;
	lend.count = 1;
	lend.regions[0] = {0, memory_.size() - 1, 12345};
	ASSERT_TRUE(peer_->say(lend));
	EXPECT_EQ(event_.wait(), -EPROTO);
}

} // namespace
