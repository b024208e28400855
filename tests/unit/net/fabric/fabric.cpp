// SPDX-License-Identifier: MIT
// fabric.cpp - the parts of the fabric transport that need no network.
#include <algorithm>
#include <gtest/gtest.h>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "userland/net/fabric/ports.hpp"
#include "userland/net/fabric/wire.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;

address at(const std::string &text)
{
	address a;
	EXPECT_EQ(parse(text, a), 0) << text;
	return a;
}

hello example()
{
	hello h;
	h.from = at("127.0.0.2@tcp1:12345:31:7");
	h.to = digest(at("inet6:tcp:::1@4000"));
	h.link = word::links - 1;
	h.cookie = 0xdeadbeef;
	h.window = 128;
	h.eager = 16384;
	return h;
}

TEST(fabric_wire, a_word_gives_back_what_was_put_in)
{
	const std::uint64_t base = word::base(word::links - 1, 0x12345678);
	const std::uint64_t w = word::with(base, kind::control, word::credits_most);
	EXPECT_EQ(word::kind(w), static_cast<unsigned>(kind::control));
	EXPECT_EQ(word::credits(w), word::credits_most);
	EXPECT_EQ(word::link(w), word::links - 1);
	EXPECT_EQ(word::cookie(w), 0x12345678u);
	const std::uint64_t l = word::landed(base, word::id_mask);
	EXPECT_EQ(word::kind(l), static_cast<unsigned>(kind::landed));
	EXPECT_EQ(word::id(l), word::id_mask);
	EXPECT_EQ(word::cookie(l), 0x12345678u);
}

TEST(fabric_wire, hello_there_and_back)
{
	const hello h = example();
	const auto text = encode(h);
	hello back;
	ASSERT_TRUE(decode(text, back));
	EXPECT_EQ(back.from, h.from);
	EXPECT_EQ(back.to, h.to);
	EXPECT_EQ(back.link, h.link);
	EXPECT_EQ(back.cookie, h.cookie);
	EXPECT_EQ(back.window, h.window);
	EXPECT_EQ(back.eager, h.eager);
	EXPECT_EQ(back.lends, h.lends);
	for (std::size_t n = 0; n < hello::least; n++)
		EXPECT_FALSE(decode({text.data(), n}, back)) << n;
	// An earlier release's: it does not lend.
	EXPECT_TRUE(decode({text.data(), hello::least}, back));
	EXPECT_EQ(back.eager, h.eager);
	EXPECT_FALSE(back.lends);
}

TEST(fabric_wire, digests_tell_addresses_apart)
{
	std::set<std::uint64_t> seen;
	for (const char *text :
	     {"127.0.0.2@tcp:12345:31:7", "127.0.0.2@tcp:12345:31:8", "127.0.0.2@tcp:12345:30:7",
	      "127.0.0.3@tcp:12345:31:7", "127.0.0.2@tcp1:12345:31:7", "127.0.0.2@o2ib:12345:31:7",
	      "inet:tcp:127.0.0.2@4000", "inet:tcp:127.0.0.2@4001", "inet6:tcp:::1@4000"})
		EXPECT_TRUE(seen.insert(digest(at(text))).second) << text;
}

TEST(fabric_wire, hello_of_nobody_is_refused)
{
	hello out;
	const auto refused = [&](auto change) {
		hello h = example();
		change(h);
		return !decode(encode(h), out);
	};
	EXPECT_FALSE(refused([](hello &) {}));
	EXPECT_TRUE(refused([](hello &h) { h.from.id = address::any; }));
	EXPECT_TRUE(refused([](hello &h) { h.from.portal = 64; }));
	EXPECT_TRUE(refused([](hello &h) { h.from.kind = address::form::none; }));
	EXPECT_TRUE(refused([](hello &h) { h.from.kind = static_cast<address::form>(99); }));
	EXPECT_TRUE(refused([](hello &h) { h.link = word::links; }));
	EXPECT_TRUE(refused([](hello &h) { h.window = 0; }));
	EXPECT_TRUE(refused([](hello &h) { h.eager = 0; }));
	EXPECT_TRUE(refused([](hello &h) { h.eager = 0xffffffff; }));
	auto text = encode(example());
	text[4] ^= std::byte{1}; // version
	EXPECT_FALSE(decode(text, out));
}

TEST(fabric_wire, control_there_and_back)
{
	control c, back;
	c.verb = control::verb::grant;
	c.id = 1;
	c.peer = word::id_mask;
	c.status = -ENOENT;
	c.length = ~0ull;
	c.token = 2;
	c.key = 3;
	c.count = control::regions_most;
	for (std::size_t n = 0; n < c.count; n++)
		c.regions[n] = {n, n + 1, ~n};
	std::byte text[control::size_most - 8]; // not ranged
	ASSERT_EQ(encode(c, text), sizeof(text));
	ASSERT_TRUE(decode(text, back));
	EXPECT_EQ(back.verb, c.verb);
	EXPECT_EQ(back.peer, c.peer);
	EXPECT_EQ(back.status, c.status);
	EXPECT_EQ(back.length, c.length);
	ASSERT_EQ(back.count, c.count);
	EXPECT_EQ(back.regions[127].key, ~127ull);
	for (std::size_t n = 0; n < sizeof(text); n++)
		EXPECT_FALSE(decode({text, n}, back)) << n;
	// Those for a range have an offset.
	c.verb = control::verb::put_at;
	c.offset = 0x123456789abcdefull;
	std::byte ranged[control::size_most];
	ASSERT_EQ(encode(c, ranged), sizeof(ranged));
	ASSERT_TRUE(decode(ranged, back));
	EXPECT_EQ(back.verb, c.verb);
	EXPECT_EQ(back.offset, c.offset);
	EXPECT_EQ(back.key, c.key);
	EXPECT_EQ(back.regions[127].key, ~127ull);
	for (std::size_t n = 0; n < sizeof(ranged); n++)
		EXPECT_FALSE(decode({ranged, n}, back)) << n;
}

TEST(fabric_wire, control_of_anybody_is_within_bounds)
{
	std::mt19937_64 random(1);
	std::byte text[control::size_most];
	control c;
	unsigned taken = 0;
	for (int i = 0; i < 20000; i++) {
		const std::size_t size = random() % sizeof(text);
		for (std::size_t n = 0; n < size; n++)
			text[n] = static_cast<std::byte>(random());
		text[0] = static_cast<std::byte>(random() % 16);
		text[3] = std::byte{0};
		text[2] = static_cast<std::byte>((size - std::min<std::size_t>(size, 40)) / 24);
		if (!decode({text, size}, c))
			continue;
		taken++;
		EXPECT_LT(static_cast<unsigned>(c.verb), control::verbs);
		EXPECT_LE(c.count, control::regions_most);
		EXPECT_LE(c.status, 0);
		EXPECT_GE(c.status, -4095);
	}
	control plain;
	EXPECT_TRUE(decode({text, encode(plain, text)}, c));
	plain.status = 1;
	EXPECT_FALSE(decode({text, encode(plain, text)}, c));
}

TEST(fabric_ports, inet_says_its_own)
{
	const port_list l = ports_of(at("inet:tcp:127.0.0.1@4000"));
	ASSERT_EQ(l.count, 1u);
	EXPECT_EQ(l.ports[0], 4000);
}

TEST(fabric_ports, lnet_is_the_same_for_everybody_and_spread)
{
	std::set<std::uint16_t> first;
	for (unsigned id = 0; id < 4096; id++) {
		const address a = at("127.0.0.1@tcp:12345:31:" + std::to_string(id));
		const port_list l = ports_of(a), again = ports_of(a);
		ASSERT_EQ(l.count, port_list::most);
		EXPECT_EQ(l.ports, again.ports);
		for (std::uint16_t p : l.ports) {
			EXPECT_GE(p, 1024);
			EXPECT_LT(p, 32768); // systems assign higher ones by themselves
		}
		first.insert(l.ports[0]);
	}
	EXPECT_EQ(first.size(), 4096u) << "machines of one portal do not meet";
	// Known values: machines of different builds must agree.
	EXPECT_NE(ports_of(at("127.0.0.1@tcp:12345:31:0")).ports[0],
		  ports_of(at("127.0.0.1@tcp1:12345:31:0")).ports[0]);
}

TEST(fabric_ports, an_ip_is_told_from_another)
{
	const address a = at("127.0.0.2@tcp:12345:31:7"), b = at("inet6:tcp:::1@4000");
	const socket_address sa = at_port(a, 9), sb = at_port(b, 9);
	const auto &ra = reinterpret_cast<const sockaddr &>(sa.storage);
	const auto &rb = reinterpret_cast<const sockaddr &>(sb.storage);
	EXPECT_TRUE(same_ip(a, ra));
	EXPECT_TRUE(same_ip(b, rb));
	EXPECT_FALSE(same_ip(a, rb));
	EXPECT_FALSE(same_ip(b, ra));
	EXPECT_FALSE(same_ip(at("127.0.0.3@tcp:12345:31:7"), ra));
	EXPECT_EQ(ip_text(a), "127.0.0.2");
	EXPECT_EQ(ip_text(b), "::1");
}

} // namespace
