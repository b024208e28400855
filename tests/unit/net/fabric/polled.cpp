// SPDX-License-Identifier: MIT
// polled.cpp - a polling program goes to sleep: from then on the sockets are watched.
#include <atomic>
#include <gtest/gtest.h>
#include <poll.h>
#include <string>

#include "coop/net.hpp"
#include "tests/conformance/fabric_enemy.hpp"
#include "tests/lib/own_ip.hpp"

namespace
{

using namespace coop::net;
using namespace std::chrono_literals;

std::string here(unsigned n)
{
	return own_ip(8) + "@tcp:12345:31:" + std::to_string(n);
}

bool readable(int fd, std::chrono::milliseconds patience)
{
	pollfd p{fd, POLLIN, 0};
	return ::poll(&p, 1, static_cast<int>(patience.count())) > 0;
}

// Polls until there is no more work.
bool falls_asleep(conformance::fabric_enemy &e)
{
	const auto end = clock::now() + 30s;
	do
		e.look();
	while ((!e.arm() || readable(e.fd(), 0ms)) && clock::now() < end);
	return !readable(e.fd(), 0ms);
}

class fabric_polled_over : public testing::TestWithParam<bool>
{
};

TEST_P(fabric_polled_over, sleeps_until_something_comes)
{
	address there;
	ASSERT_EQ(parse(here(1), there), 0);
	conformance::fabric_enemy sleeper("tcp", there, GetParam());
	EXPECT_TRUE(falls_asleep(sleeper)) << "nobody is connected";
	domain d({"fabric", {{"provider", "tcp"}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(2)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	std::byte text[8]{};
	buffer b(d, text, sizeof(text));
	std::atomic<bool> sent = false;
	buffer_callback done([&](const buffer_event &) { sent = true; });
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(there, to), 0);
	operation o;
	o.queue = queue_type::msg_send;
	o.length = sizeof(text);
	o.handler = &done;
	o.to = to.get();
	ASSERT_EQ(tm.add(b, o), 0);
	EXPECT_TRUE(readable(sleeper.fd(), 30s)) << "somebody wants to connect";
	for (unsigned round = 0; round < 3; round++) {
		for (const auto end = clock::now() + 30s; !sent && clock::now() < end;)
			sleeper.look();
		ASSERT_TRUE(sent) << round; // the buffer is ours again, even on a slow machine
		ASSERT_TRUE(falls_asleep(sleeper)) << round;
		sent = false;
		ASSERT_EQ(tm.add(b, o), 0);
		EXPECT_TRUE(readable(sleeper.fd(), 30s)) << round;
		// It polls for long, and others no longer wait for it.
		for (unsigned n = 0; n < 100; n++)
			sleeper.look();
	}
	ASSERT_TRUE(falls_asleep(sleeper));
	EXPECT_EQ(tm.stop(true), 0);
	EXPECT_TRUE(readable(sleeper.fd(), 30s)) << "the peer has gone";
	bool woken = false;
	for (const auto end = clock::now() + 30s; clock::now() < end;) {
		ASSERT_TRUE(falls_asleep(sleeper));
		if (!sleeper.linked())
			return; // it was gone before the sleep
		EXPECT_TRUE(readable(sleeper.fd(), 30s));
		for (unsigned n = 0; n < 4 && sleeper.linked(); n++) {
			sleeper.look();
			woken |= sleeper.deadline() <= clock::now();
		}
		if (!sleeper.linked())
			break;
	}
	EXPECT_FALSE(sleeper.linked());
	EXPECT_TRUE(woken || !GetParam()) << "one who is asleep does not watch what has changed";
	ASSERT_TRUE(falls_asleep(sleeper));
	EXPECT_GT(sleeper.deadline(), clock::now());
}

INSTANTIATE_TEST_SUITE_P(, fabric_polled_over, testing::Bool());

} // namespace
