// SPDX-License-Identifier: MIT
// checks.cpp - the holder's tables: each way a request may be wrong, and that it moves no byte.

#include <algorithm>
#include <array>
#include <functional>
#include <gtest/gtest.h>
#include <set>

#include "tests/unit/ntrdma/sides.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace coop::ntrdma::test;

TEST(tables, bounds_are_exact)
{
	region_table t;
	std::array<std::uint8_t, 100> memory{};
	auto key = *t.add(memory.data(), 100, 5000, 1, local_write);
	EXPECT_EQ(t.check(key, 1, 5000, 100, 0)->at, memory.data());
	EXPECT_EQ(t.check(key, 1, 5099, 1, local_write)->at, memory.data() + 99);
	EXPECT_TRUE(t.check(key, 1, 5100, 0, 0));
	EXPECT_FALSE(t.check(key, 1, 4999, 1, 0));
	EXPECT_FALSE(t.check(key, 1, 5000, 101, 0));
	EXPECT_FALSE(t.check(key, 1, 5100, 1, 0));
	EXPECT_FALSE(t.check(key, 1, 5001, UINT64_MAX, 0)); // the sum overflows
	EXPECT_FALSE(t.check(key, 1, UINT64_MAX, 2, 0));
	EXPECT_FALSE(t.check(key, 2, 5000, 1, 0));
	EXPECT_FALSE(t.check(key, 1, 5000, 1, remote_read));
	EXPECT_FALSE(t.check(0, 1, 0, 0, 0));
}

TEST(tables, a_key_dies_with_its_region)
{
	region_table t;
	std::uint8_t byte;
	std::set<std::uint32_t> keys;
	for (int i = 0; i < 5000; i++) {
		auto key = *t.add(&byte, 1, 0, 1, 0);
		EXPECT_TRUE(keys.insert(key).second);
		EXPECT_TRUE(t.remove(key));
		EXPECT_FALSE(t.remove(key));
		EXPECT_FALSE(t.check(key, 1, 0, 1, 0));
	}
	EXPECT_EQ(t.size(), 0u);
}

/// A side's memory, filled with one value.
std::vector<std::uint8_t> filled(std::uint8_t value)
{
	return std::vector<std::uint8_t>(1u << 20, value);
}

struct wrong {
	const char *name;
	std::function<void(joined &, send_request &)> how;
	status at_requester;
	bool asks_peer; // the peer refuses, and fails too
};

struct refusals : testing::TestWithParam<wrong> {
};

const wrong remote_faults[] = {
	{"key", [](joined &, send_request &r) { r.rkey ^= 1; }, status::remote_access, true},
	{"slot", [](joined &, send_request &r) { r.rkey = 0xffff0001; }, status::remote_access,
	 true},
	{"below", [](joined &, send_request &r) { r.remote -= 8; }, status::remote_access, true},
	{"above",
	 [](joined &l, send_request &r) { r.remote += l.b.memory.size() - r.at[0].length + 8; },
	 status::remote_access, true},
	{"pair_rights", [](joined &l, send_request &) { l.b.pair->set_rights(local_write); },
	 status::remote_access, true},
	{"region_rights",
	 [](joined &l, send_request &r) {
		 r.rkey = *l.b.regions.add(l.b.memory.data(), l.b.memory.size(), l.b.base(), 7,
					   local_write);
	 },
	 status::remote_access, true},
	{"domain",
	 [](joined &l, send_request &r) {
		 r.rkey = *l.b.regions.add(l.b.memory.data(), l.b.memory.size(), l.b.base(), 8,
					   all_rights);
	 },
	 status::remote_access, true},
	{"deregistered", [](joined &l, send_request &) { l.b.regions.remove(l.b.key); },
	 status::remote_access, true},
	{"own_key", [](joined &, send_request &r) { r.at[0].lkey ^= 1; }, status::local_protection,
	 false},
	{"own_bounds", [](joined &l, send_request &r) { r.at[0].addr += l.a.memory.size(); },
	 status::local_protection, false},
};
INSTANTIATE_TEST_SUITE_P(each, refusals, testing::ValuesIn(remote_faults),
			 [](const auto &info) { return info.param.name; });

TEST_P(refusals, end_the_queue_pair_with_one_reason_and_move_nothing)
{
	for (operation op : {operation::write, operation::read, operation::fetch_add})
		for (std::uint32_t n : {8u, 1000u, 40000u}) {
			if (is_atomic(op) && n != 8)
				continue;
			joined l;
			l.a.memory.assign(l.a.memory.size(), 1);
			std::fill(l.b.memory.begin(), l.b.memory.end(), 2);
			l.b.receive(l.b.at(0, 8));
			auto r = l.a.request(op, l.a.at(0, n), l.b.base(), l.b.key);
			r.compare_add = 1;
			GetParam().how(l, r);
			l.a.send(r);
			l.a.send(l.a.request(operation::write, l.a.at(0, 8), l.b.base(), l.b.key));
			l.settle();
			auto got = l.a.poll(l.a.sends);
			ASSERT_EQ(got.size(), 2u);
			EXPECT_EQ(got[0].result, GetParam().at_requester);
			EXPECT_EQ(got[1].result, status::flushed);
			EXPECT_EQ(l.a.pair->state(), pair_state::error);
			EXPECT_EQ(l.b.pair->state(), pair_state::error);
			EXPECT_EQ(l.a.memory, filled(1));
			EXPECT_EQ(l.b.memory, filled(2));
			auto flushed = l.b.poll(l.b.recvs);
			ASSERT_EQ(flushed.size(), 1u);
			EXPECT_EQ(flushed[0].result, status::flushed);
			event expected = GetParam().asks_peer ? event::refused_access : event::lost;
			EXPECT_EQ(l.b.seen.events.back(), expected);
		}
}

TEST(checks, an_atomic_at_an_odd_address_is_invalid)
{
	joined l;
	l.a.send(l.a.request(operation::fetch_add, l.a.at(0, 8), l.b.base() + 4, l.b.key));
	l.settle();
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::remote_invalid);
}

TEST(checks, a_receive_that_is_too_small_ends_both_sides)
{
	for (bool pulls : {true, false})
		for (std::uint32_t n : {9u, 20000u}) {
			joined l{pulls};
			std::fill(l.b.memory.begin(), l.b.memory.end(), 2);
			l.b.receive(l.b.at(0, n - 1));
			l.a.send(l.a.request(operation::send, l.a.at(0, n)));
			l.settle();
			EXPECT_EQ(l.b.poll(l.b.recvs).at(0).result, status::local_length);
			EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::remote_invalid);
			EXPECT_EQ(l.b.memory[0], 2);
		}
}

TEST(checks, a_receive_with_a_wrong_key_is_the_receivers_fault)
{
	joined l;
	segment s = l.b.at(0, 100);
	s.lkey++;
	l.b.receive(s);
	l.a.send(l.a.request(operation::send, l.a.at(0, 10)));
	l.settle();
	EXPECT_EQ(l.b.poll(l.b.recvs).at(0).result, status::local_protection);
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::remote_operation);
}

// As the specification says: the queue pairs of a shared receive queue may be of other domains.
TEST(checks, keys_of_shared_receives_are_of_the_domain_of_their_queue)
{
	constexpr std::uint32_t domain = 9; // sides have 7
	for (bool of_queue : {true, false}) {
		notes seen;
		shared_receives shared{seen, domain, 4};
		joined l{true, depth(16), &shared};
		recv_request r{};
		r.segments = 1;
		r.at[0] = l.b.at(0, 100);
		if (of_queue)
			r.at[0].lkey = *l.b.regions.add(l.b.memory.data(), l.b.memory.size(),
							l.b.base(), domain, local_write);
		ASSERT_EQ(shared.post(r), 0);
		l.a.send(l.a.request(operation::send, l.a.at(0, 10)));
		l.settle();
		EXPECT_EQ(l.b.poll(l.b.recvs).at(0).result,
			  of_queue ? status::success : status::local_protection);
	}
}

TEST(checks, what_was_posted_before_an_own_fault_completes_first)
{
	joined l;
	auto good = l.a.request(operation::write, l.a.at(0, 8), l.b.base(), l.b.key);
	auto bad = good;
	bad.at[0].lkey++;
	l.a.pair->post_send(good);
	l.a.pair->post_send(bad);
	l.a.pair->post_send(good);
	l.a.pair->flush_posts();
	l.settle();
	auto got = l.a.poll(l.a.sends);
	ASSERT_EQ(got.size(), 3u);
	EXPECT_EQ(got[0].result, status::success);
	EXPECT_EQ(got[1].result, status::local_protection);
	EXPECT_EQ(got[2].result, status::flushed);
}

TEST(checks, a_region_that_goes_while_a_stream_arrives_gets_no_further_byte)
{
	joined l{false};
	std::fill(l.b.memory.begin(), l.b.memory.end(), 2);
	l.a.memory.assign(l.a.memory.size(), 1);
	l.a.send(l.a.request(operation::write, l.a.at(0, 1 << 20), l.b.base(), l.b.key));
	l.b.pair->progress(); // the part that fits into the stream
	auto before = std::count(l.b.memory.begin(), l.b.memory.end(), 1);
	ASSERT_EQ(before, static_cast<long>(stream_bytes));
	l.b.regions.remove(l.b.key);
	l.settle();
	EXPECT_EQ(std::count(l.b.memory.begin(), l.b.memory.end(), 1), before);
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::remote_access);
}

TEST(checks, posting_needs_the_right_state_and_shape)
{
	joined l;
	auto r = l.a.request(operation::send, l.a.at(0, 8));
	r.segments = max_segments + 1;
	EXPECT_EQ(l.a.pair->post_send(r), -EINVAL);
	r = l.a.request(operation::fetch_add, l.a.at(0, 16), l.b.base(), l.b.key);
	EXPECT_EQ(l.a.pair->post_send(r), -EINVAL);
	r = l.a.request(operation::send, l.a.at(0, 8));
	l.a.pair->set_state(pair_state::reset);
	EXPECT_EQ(l.a.pair->post_send(r), -EINVAL);
	EXPECT_EQ(l.a.receive(l.a.at(0, 8)), -EINVAL);
	l.a.pair->set_state(pair_state::init);
	EXPECT_EQ(l.a.pair->post_send(r), -EINVAL);
	EXPECT_EQ(l.a.receive(l.a.at(0, 8)), 0);
}

} // namespace
