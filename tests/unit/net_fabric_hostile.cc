// SPDX-License-Identifier: MIT
// net_fabric_hostile.cc - operations with a peer that wants them never to end.
#include <atomic>
#include <gtest/gtest.h>
#include <system_error>
#include <unistd.h>

#include "coop/net.hpp"
#include "tests/conformance/fabric_enemy.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;
using namespace std::chrono_literals;

class ended final : public buffer_handler
{
public:
	void on_buffer(const buffer_event &e) override { status = e.status; }
	std::atomic<int> status{1}; // 1: not yet
};

std::string here(unsigned n)
{
	const auto pid = static_cast<unsigned>(::getpid());
	return "127." + std::to_string(1 + pid / 254 % 250) + '.' + std::to_string(1 + pid % 254) +
	       ".9@tcp:12345:31:" + std::to_string(n);
}

class fabric_hostile : public testing::TestWithParam<const char *>
{
};

// Memory that nobody can write to. tcp breaks the connection, after the last byte has gone well;
// shm tries at once, fails, and says so without saying what.
TEST_P(fabric_hostile, a_grant_that_cannot_be_used_ends_the_operation)
{
	address there;
	ASSERT_EQ(parse(here(1), there), 0);
	conformance::fabric_enemy enemy(GetParam(), there);
	domain d({"fabric", {{"provider", GetParam()}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(2)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	std::vector<std::byte> memory(100000);
	buffer b(d, memory.data(), memory.size());
	ended e;
	operation o;
	o.queue = queue_type::msg_send;
	o.length = memory.size();
	o.handler = &e;
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(there, to), 0);
	o.to = to.get();
	ASSERT_EQ(tm.add(b, o), 0);
	bool granted = false;
	for (const auto end = clock::now() + 30s; e.status == 1 && clock::now() < end;) {
		enemy.look();
		for (; !enemy.heard.empty(); enemy.heard.pop_front()) {
			const control offer = enemy.heard.front();
			if (offer.verb != control::verb::offer)
				continue;
			control c;
			c.verb = control::verb::grant;
			c.id = 77;
			c.peer = offer.id;
			c.count = 1;
			c.regions[0] = {16, memory.size(), 12345};
			enemy.say(c);
			granted = true;
		}
	}
	EXPECT_TRUE(granted);
	EXPECT_NE(e.status, 1) << "it is still queued";
	if (std::string(GetParam()) == "shm")
		EXPECT_LT(e.status, 0);
	EXPECT_EQ(tm.state(), tm_state::started);
}

INSTANTIATE_TEST_SUITE_P(over, fabric_hostile, testing::Values("tcp", "shm"),
			 [](const auto &i) { return std::string(i.param); });

} // namespace
