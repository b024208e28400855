// SPDX-License-Identifier: MIT
// values.cpp - addresses, descriptors, claims, the deadline heap and rosters by themselves.
//
// Conformance tests see these only from afar.
#include <cerrno>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <set>
#include <unistd.h>

#include "userland/net/claim.hpp"
#include "userland/net/deadlines.hpp"
#include "userland/net/descriptor.hpp"
#include "userland/net/number_runs.hpp"
#include "userland/net/roster.hpp"

using namespace coop::net;

namespace
{

address parsed(const std::string &text)
{
	address a;
	EXPECT_EQ(parse(text, a), 0) << text;
	return a;
}

TEST(address, text_and_value)
{
	for (const char *text :
	     {"10.72.49.14@o2ib0:12345:31:0", "192.168.96.128@tcp1:12345:32:*",
	      "1.2.3.4@tcp:12345:63:4095", "127.0.0.1@lo:12345:0:0", "inet:tcp:1.2.3.4@1",
	      "inet:o2ib7:1.2.3.4@65535", "inet6:tcp:::1@80", "inet6:tcp:fe80::1@*",
	      "inet6:tcp:::ffff:1.2.3.4@80",
	      "inet6:o2ib65535:1111:2222:3333:4444:5555:6666:7777:8888@65535"}) {
		const address a = parsed(text);
		EXPECT_EQ(format(a), text);
		EXPECT_TRUE(is_valid(a)) << text;
		EXPECT_LE(format(a).size(), address::text_max);
	}
	EXPECT_EQ(parsed("1.2.3.4@o2ib:12345:1:2"), parsed("1.2.3.4@o2ib0:12345:1:2"));
	EXPECT_NE(parsed("1.2.3.4@o2ib1:12345:1:2"), parsed("1.2.3.4@o2ib0:12345:1:2"));
	EXPECT_NE(parsed("inet:tcp:1.2.3.4@80"), parsed("inet6:tcp:::ffff:1.2.3.4@80"));
	EXPECT_EQ(format(address{}), "");
	EXPECT_FALSE(is_valid(address{}));
}

TEST(address, nid_is_type_instance_and_ip)
{
	EXPECT_EQ(parsed("10.72.49.14@o2ib3:12345:31:0").nid(), 0x000500030a48310eull);
	EXPECT_EQ(parsed("inet:tcp:10.72.49.14@3").nid(), 0u);
}

TEST(address, hash_spreads)
{
	std::set<std::size_t> low;
	for (unsigned tmid = 0; tmid < 4096; tmid++)
		low.insert(hash(parsed("1.2.3.4@tcp:12345:1:" + std::to_string(tmid))) & 8191);
	EXPECT_GT(low.size(), 3000u) << "4096 of 8192 buckets at random would be 3224";
}

TEST(descriptor, comes_back)
{
	const std::byte part[] = {std::byte{1}, std::byte{2}, std::byte{3}};
	core::descriptor d, e;
	d.transport = core::transport_id("mem");
	d.writable = true;
	d.size = 0x123456789aull;
	d.token = 0xfedcba9876543210ull;
	d.key = 42;
	d.machine = parsed("inet6:tcp:fe80::1@77");
	d.part = part;
	std::byte text[core::descriptor::fixed + 3];
	ASSERT_EQ(core::encode(d, text), sizeof(text));
	ASSERT_EQ(core::decode(text, e), 0);
	EXPECT_EQ(e.transport, d.transport);
	EXPECT_TRUE(e.writable);
	EXPECT_EQ(e.size, d.size);
	EXPECT_EQ(e.token, d.token);
	EXPECT_EQ(e.key, d.key);
	EXPECT_EQ(e.machine, d.machine);
	EXPECT_TRUE(std::equal(e.part.begin(), e.part.end(), part, part + 3));
	for (std::size_t n = 0; n < sizeof(text); n++)
		EXPECT_EQ(core::decode({text, n}, e), -EINVAL);
	text[8] ^= std::byte{1};
	EXPECT_EQ(core::decode(text, e), -EINVAL);
	d.key = 0;
	core::encode(d, text);
	EXPECT_EQ(core::decode(text, e), -EINVAL) << "no operation has it";
}

TEST(claim, one_at_a_time_and_gone_with_its_holder)
{
	for (bool within : {true, false}) {
		const std::string name = "test" + std::to_string(::getpid());
		const address a = parsed("127.0.0.1@tcp:12345:1:1");
		core::claim one, other;
		ASSERT_EQ(one.take(name, a, within), 0);
		EXPECT_EQ(other.take(name, a, within), -EADDRINUSE);
		EXPECT_EQ(other.take(name + "x", a, within), 0) << "of another transport";
		core::claim moved = std::move(one);
		one.release();
		EXPECT_EQ(other.take(name, a, within), -EADDRINUSE);
		moved.release();
		EXPECT_EQ(other.take(name, a, within), 0);
	}
}

TEST(claim, the_highest_that_this_process_does_not_hold)
{
	for (bool within : {true, false}) {
		const std::string name = "free" + std::to_string(::getpid());
		address a = parsed("127.0.0.1@tcp:12345:1:9");
		EXPECT_EQ(core::claim::highest_free(name, a), 9u);
		std::vector<core::claim> held(10);
		for (std::uint32_t n : {9u, 7u, 8u, 5u}) {
			a.id = n;
			ASSERT_EQ(held[n].take(name, a, within), 0);
		}
		a.id = 9;
		EXPECT_EQ(core::claim::highest_free(name, a), 6u);
		EXPECT_EQ(core::claim::highest_free(name + "x", a), 9u) << "of another transport";
		EXPECT_EQ(core::claim::highest_free(name, parsed("127.0.0.1@tcp:12345:2:9")), 9u)
			<< "of another portal";
		held[8].release();
		EXPECT_EQ(core::claim::highest_free(name, a), 8u) << "what is given back is free";
		a.id = 7;
		EXPECT_EQ(core::claim::highest_free(name, a), 6u);
		core::claim refused;
		EXPECT_EQ(refused.take(name, a, within), -EADDRINUSE);
		refused.release();
		EXPECT_EQ(core::claim::highest_free(name, a), 6u) << "it is still another's";
		for (std::uint32_t n : {6u, 4u, 3u, 2u, 1u, 0u}) {
			a.id = n;
			ASSERT_EQ(held[n].take(name, a, within), 0);
		}
		a.id = 7;
		EXPECT_FALSE(core::claim::highest_free(name, a));
	}
}

// Against the obvious: a sorted set.
TEST(number_runs, does_what_a_set_does)
{
	std::mt19937 random(1);
	core::number_runs runs;
	std::set<std::uint32_t> model;
	for (int step = 0; step < 20000; step++) {
		const std::uint32_t n = random() % 64, most = random() % 64;
		if (model.insert(n).second) {
			runs.insert(n);
		} else {
			model.erase(n);
			runs.erase(n);
		}
		std::optional<std::uint32_t> highest;
		for (std::uint32_t i = 0; i <= most; i++)
			if (!model.count(i))
				highest = i;
		ASSERT_EQ(runs.highest_missing(most), highest) << step;
		ASSERT_EQ(runs.empty(), model.empty());
	}
}

// Against the obvious: a sorted set.
TEST(deadlines, earliest_first)
{
	std::mt19937 random(1);
	std::vector<core::slot> slots(200);
	core::deadline_heap heap;
	std::set<std::pair<time_point, core::slot *>> model;
	for (int step = 0; step < 20000; step++) {
		core::slot &s = slots[random() % slots.size()];
		if (s.heap_at == core::no_slot) {
			s.deadline = time_point(std::chrono::nanoseconds(random()));
			heap.insert(s);
			model.insert({s.deadline, &s});
		} else {
			heap.erase(s);
			heap.erase(s); // of an absent one: no effect
			model.erase({s.deadline, &s});
		}
		ASSERT_EQ(heap.earliest(), model.empty() ? never : model.begin()->first);
		if (!model.empty()) {
			ASSERT_EQ(heap.first()->deadline, model.begin()->first);
		}
	}
}

TEST(roster, each_is_on_it_once_and_leaves_from_wherever_it_stands)
{
	struct thing {
		std::size_t place = 0;
		static std::size_t &of(thing *t) { return t->place; }
	} some[5];
	roster<thing *> on;
	const auto has = [&](std::initializer_list<unsigned> expected) {
		std::set<thing *> want;
		for (const unsigned i : expected)
			want.insert(&some[i]);
		return std::set<thing *>(on.begin(), on.end()) == want &&
		       static_cast<std::size_t>(on.end() - on.begin()) == want.size();
	};
	on.leave(&some[0], thing::of);
	for (thing &t : some)
		on.join(&t, thing::of);
	on.join(&some[2], thing::of);
	EXPECT_TRUE(has({0, 1, 2, 3, 4}));
	on.leave(&some[1], thing::of); // from the middle,
	on.leave(&some[1], thing::of);
	EXPECT_TRUE(has({0, 2, 3, 4}));
	on.leave(&some[4], thing::of); // the one that took its place,
	EXPECT_TRUE(has({0, 2, 3}));
	on.leave(&some[3], thing::of); // the last,
	EXPECT_TRUE(has({0, 2}));
	on.join(&some[1], thing::of); // and again
	for (const unsigned i : {0u, 2u, 1u})
		on.leave(&some[i], thing::of);
	EXPECT_TRUE(has({}));
	for (const thing &t : some)
		EXPECT_EQ(t.place, 0u);
}

} // namespace
