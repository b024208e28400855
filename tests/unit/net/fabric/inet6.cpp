// SPDX-License-Identifier: MIT
// inet6.cpp - machines of fabric with IPv6 addresses, and one with IPv4 as well.
//
// The conformance suite has IPv4 only: 127.0.0.0/8 has addresses for every process, ::1 is one.
#include <arpa/inet.h>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"

namespace
{

using namespace coop::net;
using namespace std::chrono_literals;

bool loopback_has_ipv6()
{
	sockaddr_in6 a{};
	a.sin6_family = AF_INET6;
	a.sin6_addr = in6addr_loopback;
	const int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
	const bool bound = fd >= 0 && !::bind(fd, reinterpret_cast<sockaddr *>(&a), sizeof(a));
	if (fd >= 0)
		::close(fd);
	return bound;
}

// A machine with one buffer, for one operation at a time.
struct station : buffer_handler {
	explicit station(const std::string &address)
	{
		EXPECT_EQ(tm.start(address), 0) << address;
		EXPECT_EQ(tm.wait(tm_state::started), 0);
		text = format(tm.address());
	}

	void on_buffer(const buffer_event &e) override
	{
		if (e.sender)
			sender = e.sender->text();
		status = e.status;
		done.signal();
	}

	// The message goes to `bytes`, its sender to `sender`.
	void receive()
	{
		operation o;
		o.queue = queue_type::msg_recv;
		o.min_receive_size = sizeof(bytes);
		o.max_receive_msgs = 1;
		o.handler = this;
		ASSERT_EQ(tm.add(letter, o), 0);
	}

	int send(const std::string &to)
	{
		endpoint_ptr e;
		if (const int error = tm.make_endpoint(to, e))
			return error;
		operation o;
		o.queue = queue_type::msg_send;
		o.to = e.get();
		o.length = sizeof(bytes);
		o.handler = this;
		if (const int error = tm.add(letter, o))
			return error;
		const int late = done.wait(clock::now() + 30s);
		return late ? late : status;
	}

	domain home{{"fabric", {{"provider", "tcp"}}}};
	std::byte bytes[16]{};
	buffer letter{home, bytes, sizeof(bytes)};
	channel done;
	int status = -EINPROGRESS;
	std::string sender, text;
	transfer_machine tm{home};
};

TEST(fabric_inet6, tells_and_is_told)
{
	if (!loopback_has_ipv6())
		GTEST_SKIP() << "the loopback device has no ::1";
	station a("inet6:tcp:::1@*"), b("inet6:tcp:::1@*");
	EXPECT_EQ(a.text.rfind("inet6:tcp:::1@", 0), 0u) << a.text;
	EXPECT_NE(a.text, b.text);
	b.receive();
	std::memcpy(a.bytes, "0123456789abcdef", 16);
	EXPECT_EQ(a.send(b.text), 0);
	ASSERT_EQ(b.done.wait(clock::now() + 30s), 0);
	EXPECT_EQ(b.status, 0);
	EXPECT_EQ(b.sender, a.text);
	EXPECT_EQ(std::memcmp(a.bytes, b.bytes, 16), 0);
	a.receive();
	EXPECT_EQ(b.send(b.sender), 0) << "who is told can answer";
	ASSERT_EQ(a.done.wait(clock::now() + 30s), 0);
	EXPECT_EQ(a.sender, b.text);
}

TEST(fabric_inet6, does_not_reach_the_other_family)
{
	if (!loopback_has_ipv6())
		GTEST_SKIP() << "the loopback device has no ::1";
	station a("inet6:tcp:::1@*"), b("inet:tcp:" + own_ip(9) + "@*");
	EXPECT_LT(a.send(b.text), 0);
	EXPECT_LT(b.send(a.text), 0);
}

TEST(fabric_inet6, ports_that_are_taken_are_said)
{
	if (!loopback_has_ipv6())
		GTEST_SKIP() << "the loopback device has no ::1";
	station a("inet6:tcp:::1@*");
	transfer_machine second(a.home);
	EXPECT_EQ(second.start(a.text), -EADDRINUSE);
}

} // namespace
