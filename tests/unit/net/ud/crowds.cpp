// SPDX-License-Identifier: MIT
// crowds.cpp - what many peers that are silent, or one that asks for much, cost the others.
#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <list>
#include <thread>
#include <vector>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"
#include "tests/unit/net/ud/greedy.hpp"
#include "tests/unit/net/ud/waiting.hpp"
#include "userland/net/ud/bulk_message.hpp"

using namespace coop::net;
using namespace std::chrono_literals;

namespace
{

// Holds the ports of machines on an address, and answers nothing: 32 portals have the same ports.
class silent_host
{
public:
	static constexpr unsigned portals = 32;

	silent_host(const std::string &ip, unsigned ids) : ip_(ip), ids_(ids)
	{
		for (unsigned id = 1; id <= ids; id++) {
			address a;
			EXPECT_EQ(parse(name(0, id), a), 0);
			held_.emplace_back(std::array<std::uint8_t, 16>{}, ud::identity::of(a));
		}
	}
	unsigned machines() const { return portals * ids_; }
	std::string machine(unsigned n) const { return name(n % portals, 1 + n / portals); }

private:
	std::string name(unsigned portal, unsigned id) const
	{
		return ip_ + "@tcp:12345:" + std::to_string(2 * portal) + ':' + std::to_string(id);
	}

	const std::string ip_;
	const unsigned ids_;
	std::list<ud::resolver> held_;
};

// A machine, and room for its messages.
struct side {
	static constexpr std::size_t size = 1u << 16;

	side(const std::string &address,
	     const std::vector<std::pair<std::string, std::string>> &parameters) :
		d({"ud", parameters})
	{
		EXPECT_EQ(tm.start(address), 0);
		EXPECT_EQ(tm.wait(tm_state::started), 0);
	}
	int send(buffer &b, const auto &there, std::size_t length = 8)
	{
		endpoint_ptr to;
		EXPECT_EQ(tm.make_endpoint(there, to), 0);
		operation o;
		o.queue = queue_type::msg_send;
		o.length = length;
		o.to = to.get();
		o.handler = &sent;
		return tm.add(b, o);
	}
	void receive(std::size_t least = 8, std::uint32_t most = 100)
	{
		operation o;
		o.queue = queue_type::msg_recv;
		o.min_receive_size = least;
		o.max_receive_msgs = most;
		o.handler = &received;
		EXPECT_EQ(tm.add(in, o), 0);
	}

	buffer &one_more() { return more.emplace_back(d, memory.data(), 8); }

	domain d;
	std::vector<std::byte> memory = std::vector<std::byte>(2 * size);
	buffer in{d, memory.data(), size}, out{d, memory.data() + size, size};
	std::list<buffer> more;
	noting sent, received;
	transfer_machine tm{d};
};

} // namespace

// The packets of soft RoCE prove the host of a stranger, so it needs no question.
TEST(UdCrowd, SilentHostsKeepNoStrangerOut)
{
	const silent_host silence(own_ip(90), 9);
	side asks(own_ip(91) + "@tcp:12345:31:1", {}), comes(own_ip(92) + "@tcp:12345:31:1", {});
	asks.receive();
	for (unsigned n = 0; n < silence.machines(); n++)
		ASSERT_EQ(asks.send(asks.one_more(), silence.machine(n)), 0);
	ASSERT_EQ(comes.send(comes.out, asks.tm.address()), 0);
	ASSERT_TRUE(until([&] { return comes.sent.ended == 1; }));
	EXPECT_EQ(comes.sent.status, 0);
}

// Each gives up before the question does, so that only the messages' records could run out.
TEST(UdCrowd, MessagesThatWereGivenUpLeaveRoomForOthers)
{
	const silent_host silence(own_ip(93), 1);
	side sends(own_ip(94) + "@tcp:12345:31:1", {{"operations", "16"}}),
		hears(own_ip(95) + "@tcp:12345:31:1", {});
	hears.receive();
	endpoint_ptr held; // so its number stays
	ASSERT_EQ(sends.tm.make_endpoint(silence.machine(0), held), 0);
	for (unsigned n = 0; n < 1200; n++) {
		ASSERT_EQ(sends.send(sends.out, silence.machine(0)), 0) << n;
		ASSERT_TRUE(sends.tm.del(sends.out));
		ASSERT_TRUE(until([&] { return sends.sent.ended == n + 1; }));
		ASSERT_EQ(sends.sent.status, -ECANCELED) << n;
	}
	ASSERT_EQ(sends.send(sends.out, hears.tm.address()), 0);
	ASSERT_TRUE(until([&] { return sends.sent.ended == 1201; }));
	EXPECT_EQ(sends.sent.status, 0);
}

// It asks about reads that never were, and takes no answer. Others write to our memory meanwhile.
TEST(UdCrowd, OneThatTakesNoAnswersLeavesRecordsForOthers)
{
	const std::string address = own_ip(96) + "@tcp:12345:31:1";
	side offers(address, {{"operations", "16"}});
	ud_test::greedy enemy(own_ip(97), '1');
	ASSERT_TRUE(enemy.find(address));
	enemy.turn_deaf();
	constexpr unsigned asks = 700; // more than there are records for strangers
	for (unsigned n = 0; n < asks; n++) {
		std::vector<std::uint8_t> text(ud::bulk_message::bytes);
		ud::bulk_message{ud::bulk_kind::ask, ud::outcome::good, 0, 0, n + 1, 1}.write(
			text.data());
		enemy.send(ud::tag_kind::bulk, text);
	}
	ASSERT_TRUE(until([&] {
		enemy.turn();
		return enemy.taken() + enemy.refused() >= asks;
	}));
	EXPECT_GT(enemy.taken(), 0u);
	operation p;
	p.queue = queue_type::passive_bulk_recv;
	p.length = side::size;
	p.handler = &offers.received;
	ASSERT_EQ(offers.tm.add(offers.in, p), 0);
	const std::vector<std::byte> text(offers.in.descriptor().begin(),
					  offers.in.descriptor().end());
	side writes(own_ip(98) + "@tcp:12345:31:1", {});
	operation o;
	o.queue = queue_type::active_bulk_send;
	o.length = side::size;
	o.descriptor = text;
	o.handler = &writes.sent;
	ASSERT_EQ(writes.tm.add(writes.out, o), 0);
	ASSERT_TRUE(until([&] {
		enemy.turn();
		return writes.sent.ended == 1;
	}));
	EXPECT_EQ(writes.sent.status, 0);
}

// Two that have many answers for each other take them, however many questions wait.
TEST(UdCrowd, ManyAnswersPassInBothDirections)
{
	constexpr unsigned writes = 600;
	side one(own_ip(99) + "@tcp:12345:31:1", {}), other(own_ip(99) + "@tcp:12345:31:2", {});
	const auto stale = [](side &s) {
		operation p;
		p.queue = queue_type::passive_bulk_recv;
		p.length = 8;
		p.handler = &s.received;
		EXPECT_EQ(s.tm.add(s.in, p), 0);
		const std::vector<std::byte> text(s.in.descriptor().begin(),
						  s.in.descriptor().end());
		EXPECT_TRUE(s.tm.del(s.in));
		return text;
	};
	const std::vector<std::byte> texts[] = {stale(other), stale(one)};
	for (unsigned n = 0; n < writes; n++)
		for (side *s : {&one, &other}) {
			operation o;
			o.queue = queue_type::active_bulk_send;
			o.length = 8;
			o.descriptor = texts[s == &other];
			o.handler = &s->sent;
			ASSERT_EQ(s->tm.add(s->one_more(), o), 0);
		}
	EXPECT_TRUE(until([&] { return one.sent.ended == writes && other.sent.ended == writes; }));
	EXPECT_EQ(one.sent.ended, writes);
	EXPECT_EQ(other.sent.ended, writes);
	EXPECT_EQ(one.sent.status, -ENOENT);
	EXPECT_EQ(other.sent.status, -ENOENT);
}

// It begins messages that it never ends, into all the room that there is.
TEST(UdCrowd, MessagesThatStopHalfwayLeaveRoomForOthers)
{
	const std::string address = own_ip(88) + "@tcp:12345:31:1";
	side hears(address, {{"tries", "250"}}), sends(own_ip(89) + "@tcp:12345:31:1", {});
	hears.receive(side::size / 4, 4);
	ud_test::greedy enemy(own_ip(87), '1');
	ASSERT_TRUE(enemy.find(address));
	enemy.stop_short();
	for (unsigned n = 0; n < 5; n++) // four have begun if one is refused
		enemy.send(ud::tag_kind::message, std::vector<std::uint8_t>(side::size / 4));
	ASSERT_TRUE(until([&] {
		enemy.turn();
		return enemy.refused() > 0;
	}));
	unsigned n = 0;
	EXPECT_TRUE(until([&] {
		enemy.turn();
		if (sends.sent.ended == n && (n == 0 || sends.sent.status)) {
			n++;
			EXPECT_EQ(sends.send(sends.out, address, side::size / 4), 0);
		}
		return n && sends.sent.ended == n && !sends.sent.status;
	}));
	EXPECT_EQ(enemy.taken(), 0u);
}
