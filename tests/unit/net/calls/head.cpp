// SPDX-License-Identifier: MIT
// head.cpp - the head of the messages of calls: the bytes of the table, and what is refused.
#include "userland/net/calls/head.hpp"

#include "lab.hpp"

using coop::net::core::call_head;
using coop::net::core::call_kind;

namespace
{

std::vector<std::byte> made(const call_head &h, std::size_t body)
{
	std::vector<std::byte> m(call_head::size + body);
	h.put(m.data());
	return m;
}

call_head example()
{
	call_head h;
	h.kind = call_kind::request;
	h.call = 0x1122334455667788;
	h.method = 0x01020304;
	h.time = 5000;
	h.length = 3;
	return h;
}

TEST(net_call_head, is_as_the_table_says)
{
	const unsigned char want[] = {'C',  'o',  'R',  'P',  1,    1, 0, 0, 0x88, 0x77, 0x66,
				      0x55, 0x44, 0x33, 0x22, 0x11, 4, 3, 2, 1,    0x88, 0x13,
				      0,    0,    3,    0,    0,    0, 0, 0, 0,    0};
	const auto m = made(example(), 0);
	ASSERT_EQ(m.size(), sizeof(want));
	EXPECT_EQ(std::memcmp(m.data(), want, sizeof(want)), 0);
}

TEST(net_call_head, there_and_back)
{
	const auto m = made(example(), 3);
	std::span<const std::byte> rest(m);
	call_head h;
	ASSERT_TRUE(call_head::get(rest, h));
	EXPECT_EQ(rest.size(), 3u);
	EXPECT_EQ(h.kind, call_kind::request);
	EXPECT_EQ(h.call, example().call);
	EXPECT_EQ(h.method, example().method);
	EXPECT_EQ(h.time, 5000u);
	EXPECT_EQ(h.length, 3u);
}

TEST(net_call_head, others_are_refused)
{
	struct row {
		const char *why;
		std::size_t at;
		int value;
		std::size_t body;
	};
	for (const row &r :
	     {row{"magic", 3, 'Q', 3}, row{"version", 4, 2, 3}, row{"kind 0", 5, 0, 3},
	      row{"kind 7", 5, 7, 3}, row{"kind 255", 5, 255, 3}, row{"an unknown flag", 6, 2, 3},
	      row{"an unknown flag", 7, 1, 3}, row{"a body that is shorter", 24, 4, 3},
	      row{"a body that is longer", 24, 2, 3}, row{"a length beyond all", 31, 0xff, 3}}) {
		auto m = made(example(), r.body);
		m[r.at] = std::byte(r.value);
		std::span<const std::byte> rest(m);
		call_head h;
		EXPECT_FALSE(call_head::get(rest, h)) << r.why;
	}
	for (std::size_t length = 0; length < call_head::size; length++) {
		const auto m = made(example(), 0);
		std::span<const std::byte> rest(m.data(), length);
		call_head h;
		EXPECT_FALSE(call_head::get(rest, h)) << length;
	}
}

TEST(net_call_head, only_requests_and_answers_have_descriptors)
{
	call_head h = example();
	h.flags = call_head::bulk;
	h.length = 1 << 20;
	for (int kind = 1; kind <= 6; kind++) {
		h.kind = static_cast<call_kind>(kind);
		const auto m = made(h, 40), bare = made(h, 0);
		std::span<const std::byte> rest(m), none(bare);
		call_head out;
		EXPECT_EQ(call_head::get(rest, out), kind <= 2) << kind;
		EXPECT_FALSE(call_head::get(none, out)) << kind;
	}
	h.kind = call_kind::request;
	h.length = 0;
	const auto m = made(h, 40);
	std::span<const std::byte> rest(m);
	call_head out;
	EXPECT_FALSE(call_head::get(rest, out)) << "nothing is not read by bulk";
}

} // namespace
