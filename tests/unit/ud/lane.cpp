// SPDX-License-Identifier: MIT
// lane.cpp - the lane: the connected socket of a soft RoCE endpoint for its busiest peer. It
// appears, changes peers and disappears, and the datagrams alone do not show that.
//
// Loopback loses nothing, so no datagram may be missing or out of order from one peer.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <memory>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/ud/pair.hpp"

namespace
{

using namespace ud_test;

constexpr std::uint32_t many = 300; // more sends in a row, and polls, than a lane needs to appear
constexpr std::uint32_t few = 20;

// Connected sockets of this process that are bound to that port.
std::vector<int> lanes_at(std::uint16_t port)
{
	std::vector<int> lanes;
	for (const auto &f : std::filesystem::directory_iterator("/proc/self/fd")) {
		const int fd = std::stoi(f.path().filename());
		sockaddr_storage own, peer;
		socklen_t a = sizeof(own), b = sizeof(peer);
		if (::getsockname(fd, reinterpret_cast<sockaddr *>(&own), &a) ||
		    ::getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &b))
			continue;
		const in_port_t p = own.ss_family == AF_INET6
					    ? reinterpret_cast<sockaddr_in6 &>(own).sin6_port
					    : reinterpret_cast<sockaddr_in &>(own).sin_port;
		if (ntohs(p) == port)
			lanes.push_back(fd);
	}
	return lanes;
}

// An endpoint with its own UDP port; it records the numbers that others send.
struct station {
	explicit station(const std::string &ip, std::uint16_t port = 0)
	{
		soft_roce_options o = options(ip);
		o.port = port;
		o.first_qpn = 0x4000;
		o.any_memory = true;
		ep = make_soft_roce(o);
		in = std::make_unique<inbox>(*ep, slots, 64);
		in->post(0, slots);
		listen(many);
	}

	address where() const
	{
		address a = in->where();
		a.lid = ep->info().lid;
		return a;
	}

	void say(const station &to, std::uint32_t first, std::uint32_t n)
	{
		for (std::uint32_t i = first; i < first + n; i++) {
			std::uint8_t text[48] = "a number";
			const sge one{text, sizeof(text)};
			const send_wr wr{0, &one, 1, i, true, false};
			ASSERT_EQ(ep->post_send(in->qp, to.where(), {&wr, 1}), 1);
		}
	}

	// Polls n times; `rest` arms the endpoint after each empty poll, as a host does before
	// it sleeps.
	void listen(std::uint32_t n, bool rest = false)
	{
		while (n--) {
			completion c[8];
			const std::size_t k = ep->poll(c);
			for (std::size_t i = 0; i < k; i++) {
				heard.push_back({c[i].src_lid, c[i].imm});
				in->post(c[i].wr_id, 1);
			}
			if (rest && !k)
				(void)ep->arm();
		}
	}

	std::vector<std::uint32_t> from(const station &peer) const
	{
		std::vector<std::uint32_t> n;
		for (const auto &h : heard)
			if (h.lid == peer.ep->info().lid)
				n.push_back(h.number);
		return n;
	}

	// Polls until all numbers from 0 to n - 1 are here.
	void expect(const station &peer, std::uint32_t n)
	{
		const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
		while (from(peer).size() < n && std::chrono::steady_clock::now() < end)
			listen(4);
		std::vector<std::uint32_t> all(n);
		std::iota(all.begin(), all.end(), 0u);
		EXPECT_EQ(from(peer), all);
	}

	bool has_lane() const { return !lanes_at(ep->info().lid).empty(); }

	struct word {
		std::uint16_t lid;
		std::uint32_t number;
	};
	static constexpr std::size_t slots = 32;
	std::unique_ptr<endpoint> ep;
	std::unique_ptr<inbox> in;
	std::vector<word> heard;
};

class lane : public testing::TestWithParam<bool>
{
protected:
	// All tests share the few IPv6 addresses that every machine has; each has its own
	// ports.
	const std::string ip = GetParam() ? "::1" : loopback_address();
};

TEST_P(lane, comes_with_many_and_goes_before_sleep)
{
	station a(ip), b(ip);
	std::uint32_t said = 0;
	for (; said < few; said++) {
		a.say(b, said, 1);
		b.listen(4);
	}
	EXPECT_FALSE(a.has_lane()) << "too few sends";
	for (; said < many; said++) {
		a.say(b, said, 1);
		b.listen(4);
	}
	EXPECT_TRUE(a.has_lane());
	EXPECT_FALSE(b.has_lane()) << "it has sent nothing";
	for (; said < 2 * many; said++) {
		a.say(b, said, 1);
		b.say(a, said - many, 1);
		a.listen(4);
		b.listen(4);
	}
	EXPECT_TRUE(b.has_lane());
	b.expect(a, said);
	a.expect(b, many);

	EXPECT_TRUE(b.ep->arm()) << "nothing has arrived";
	EXPECT_FALSE(b.has_lane());
	pollfd p{b.ep->fd(), POLLIN, 0};
	EXPECT_EQ(::poll(&p, 1, 0), 0);
	a.say(b, said++, 1);
	EXPECT_EQ(::poll(&p, 1, 20000), 1) << "the one descriptor wakes";
	b.expect(a, said);
}

TEST_P(lane, what_is_in_it_keeps_its_owner_awake)
{
	station a(ip), b(ip);
	a.say(b, 0, few);
	b.expect(a, few);
	b.say(a, 0, many);
	ASSERT_TRUE(b.has_lane());
	b.listen(1); // what arrived before the lane
	a.say(b, few, few);
	pollfd p{lanes_at(b.ep->info().lid)[0], POLLIN, 0};
	ASSERT_EQ(::poll(&p, 1, 20000), 1);
	EXPECT_FALSE(b.ep->arm());
	// Later datagrams wake the descriptor.
	a.say(b, 2 * few, 1);
	p.fd = b.ep->fd();
	EXPECT_EQ(::poll(&p, 1, 20000), 1);
	b.listen(4 * few, true);
	std::sort(b.heard.begin(), b.heard.end(),
		  [](auto x, auto y) { return x.number < y.number; });
	b.expect(a, 2 * few + 1);
	EXPECT_FALSE(b.has_lane());
	EXPECT_TRUE(b.ep->arm());
}

TEST_P(lane, others_are_heard_beside_it)
{
	station a(ip), b(ip), c(ip);
	for (std::uint32_t i = 0; i < many; i++) {
		a.say(b, i, 1);
		b.say(a, i, 1);
		c.say(a, i, 1);
		a.listen(4);
		b.listen(4);
	}
	EXPECT_TRUE(a.has_lane());
	a.expect(b, many);
	b.expect(a, many);
	a.expect(c, many);
}

TEST_P(lane, is_for_those_who_poll)
{
	station a(ip), b(ip);
	a.say(b, 0, few);
	ASSERT_TRUE(a.ep->arm());
	// Another thread may send while one sleeps.
	a.say(b, few, many);
	EXPECT_FALSE(a.has_lane());
	b.say(a, 0, few);
	pollfd p{a.ep->fd(), POLLIN, 0};
	EXPECT_EQ(::poll(&p, 1, 20000), 1);
	a.expect(b, few);
	a.listen(many);
	a.say(b, many, many);
	EXPECT_TRUE(a.has_lane());
}

TEST_P(lane, goes_when_nothing_comes)
{
	station a(ip), b(ip);
	a.say(b, 0, many);
	ASSERT_TRUE(a.has_lane());
	a.listen(1u << 17);
	EXPECT_FALSE(a.has_lane());
}

TEST_P(lane, is_not_kept_waiting_by_others)
{
	station a(ip), b(ip), c(ip);
	a.say(b, 0, many);
	ASSERT_TRUE(a.has_lane());
	b.say(a, 0, few);
	c.say(a, 0, 1);
	for (std::uint32_t i = 1; i < 10 * many; i++) {
		c.say(a, i, 1); // one more is always waiting
		a.listen(1);
	}
	EXPECT_EQ(a.from(b).size(), few);
}

TEST_P(lane, others_have_been_looked_at_when_nothing_is_there)
{
	station a(ip), b(ip), c(ip);
	a.say(b, 0, many);
	ASSERT_TRUE(a.has_lane());
	a.listen(4);
	c.say(a, 0, 1);
	pollfd p{a.ep->fd(), POLLIN, 0};
	ASSERT_EQ(::poll(&p, 1, 20000), 1);
	// A poll of the other socket more than 100 us ago does not count for this poll.
	std::this_thread::sleep_for(std::chrono::milliseconds(1));
	completion k[8];
	EXPECT_EQ(a.ep->poll(k), 1u);
}

TEST_P(lane, last_words_are_heard_though_the_peer_has_gone)
{
	for (const bool sleep : {true, false}) {
		station a(ip);
		auto b = std::make_unique<station>(ip);
		const address where = b->where();
		a.say(*b, 0, many);
		ASSERT_TRUE(a.has_lane());
		a.listen(1);
		b->say(a, 0, few);
		pollfd p{lanes_at(a.ep->info().lid)[0], POLLIN, 0};
		ASSERT_EQ(::poll(&p, 1, 20000), 1);
		b.reset();
		std::uint8_t text[48] = "is anybody there?";
		const sge one{text, sizeof(text)};
		const send_wr wr{0, &one, 1, 0, true, false};
		ASSERT_EQ(a.ep->post_send(a.in->qp, where, {&wr, 1}), 1);
		if (sleep) {
			EXPECT_FALSE(a.ep->arm());
		}
		completion k[8];
		EXPECT_GT(a.ep->poll(k), 0u);
		a.listen(4 * few);
		EXPECT_EQ(a.heard.size() + 1, few);
	}
}

TEST_P(lane, carries_batches)
{
	constexpr std::size_t n = 8;
	station a(ip), b(ip);
	inbox in(*b.ep, n, 4096);
	in.post(0, n);
	outbox out(*a.ep);
	address where = in.where();
	where.lid = b.ep->info().lid;
	b.listen(many);
	a.say(b, 0, many);
	b.say(a, 0, many);
	ASSERT_TRUE(a.has_lane() && b.has_lane());
	b.listen(2 * many);
	std::vector<std::vector<std::uint8_t>> pages;
	for (unsigned i = 0; i < n; i++)
		pages.push_back(pattern(1024, i));
	const auto calls = a.ep->stats().tx_calls;
	ASSERT_EQ(out.send(where, pages), static_cast<int>(n));
	EXPECT_EQ(a.ep->stats().tx_calls, calls + 1);
	EXPECT_TRUE(a.has_lane() && b.has_lane());
	std::size_t got = 0;
	const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
	while (got < n && std::chrono::steady_clock::now() < end) {
		completion k[n];
		got += b.ep->poll(k);
	}
	ASSERT_EQ(got, n);
	for (unsigned i = 0; i < n; i++)
		EXPECT_TRUE(std::equal(pages[i].begin(), pages[i].end(), in.payload(i))) << i;
}

TEST_P(lane, moves_to_who_is_spoken_with_now)
{
	station a(ip), b(ip), c(ip);
	std::uint32_t to_b = 0, to_c = 0, back = 0;
	for (int turn = 0; turn < 3; turn++) {
		for (std::uint32_t i = 0; i < many; i++) {
			a.say(b, to_b++, 1);
			b.say(a, back, 1);
			c.say(a, back++, 1);
			a.listen(3);
			b.listen(3);
		}
		EXPECT_TRUE(a.has_lane());
		for (std::uint32_t i = 0; i < many; i++) {
			a.say(c, to_c++, 1);
			a.listen(3);
			c.listen(3);
		}
		EXPECT_TRUE(a.has_lane());
	}
	b.expect(a, to_b);
	c.expect(a, to_c);
	a.expect(b, back);
	a.expect(c, back);
	EXPECT_EQ(lanes_at(a.ep->info().lid).size(), 1u);
}

TEST_P(lane, a_peer_that_comes_again_is_reached)
{
	station a(ip);
	auto b = std::make_unique<station>(ip);
	const std::uint16_t port = b->ep->info().lid;
	const address where = b->where();
	a.say(*b, 0, many);
	b->listen(station::slots);
	ASSERT_TRUE(a.has_lane());
	b.reset();
	// The port is free now, and the kernel reports that to connected sockets.
	std::uint8_t text[48] = "is anybody there?";
	const sge one{text, sizeof(text)};
	const send_wr wr{0, &one, 1, 0, true, false};
	for (std::uint32_t i = 0; i < few; i++)
		ASSERT_EQ(a.ep->post_send(a.in->qp, where, {&wr, 1}), 1);
	a.listen(4);
	EXPECT_EQ(a.ep->stats().tx_errors, 0u);
	b = std::make_unique<station>(ip, port);
	a.say(*b, 0, few);
	b->say(a, 0, few);
	b->expect(a, few);
	a.expect(*b, few);
}

TEST_P(lane, the_port_is_still_nobody_elses)
{
	station a(ip), b(ip);
	a.say(b, 0, many);
	ASSERT_TRUE(a.has_lane());
	const int on = 1, family = GetParam() ? AF_INET6 : AF_INET;
	for (const int share : {SO_REUSEADDR, SO_REUSEPORT}) {
		const int fd = ::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		ASSERT_GE(fd, 0);
		ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, share, &on, sizeof(on)), 0);
		sockaddr_storage own;
		socklen_t size = sizeof(own);
		ASSERT_EQ(::getsockname(a.ep->fd(), reinterpret_cast<sockaddr *>(&own), &size), 0);
		EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr *>(&own), size), -1);
		EXPECT_EQ(errno, EADDRINUSE);
		::close(fd);
	}
}

TEST(Lane, IsNotForPeersThatMayBeDevices)
{
	auto a = make_soft_roce(options()), b = make_soft_roce(options());
	completion none[1];
	for (std::uint32_t i = 0; i < many; i++)
		ASSERT_EQ(a->poll(none), 0u);
	outbox out(*a);
	inbox in(*b, 1, 64);
	for (std::uint32_t i = 0; i < many; i++)
		ASSERT_EQ(out.send(in.where(), {pattern(48, i)}), 1);
	EXPECT_TRUE(lanes_at(4791).empty());
}

INSTANTIATE_TEST_SUITE_P(over, lane, testing::Bool(), [](const auto &info) {
	return std::string(info.param ? "ipv6" : "ipv4");
});

} // namespace
