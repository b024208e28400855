// SPDX-License-Identifier: MIT
// operations.cpp - each operation over a link that works, at sizes of every way to travel.
#include <gtest/gtest.h>
#include <numeric>

#include "tests/unit/ntrdma/lagging.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace coop::ntrdma::test;

// Within the entry, in the stream, more than the stream holds, pulled in several pieces.
constexpr std::uint32_t sizes[] = {0, 1, 32, 33, 160, 161, 4096, 16384, 300000, 524288};

struct ways : testing::TestWithParam<bool> {
	ways()
	{
		std::iota(l.a.memory.begin(), l.a.memory.end(), 1);
		std::fill(l.b.memory.begin(), l.b.memory.end(), 0xee);
	}
	joined l{GetParam()};
	completion one(side &s, completion_queue &q)
	{
		l.settle();
		auto got = s.poll(q);
		EXPECT_EQ(got.size(), 1u);
		return got.empty() ? completion{} : got[0];
	}
	bool arrived(std::uint32_t n)
	{
		bool same = !std::memcmp(l.a.memory.data(), l.b.memory.data() + 64, n);
		return same && l.b.memory[63] == 0xee && l.b.memory[64 + n] == 0xee;
	}
};
INSTANTIATE_TEST_SUITE_P(pull_or_stream, ways, testing::Bool());

TEST_P(ways, send)
{
	for (std::uint32_t n : sizes) {
		std::fill(l.b.memory.begin(), l.b.memory.end(), 0xee);
		ASSERT_EQ(l.b.receive(l.b.at(64, n + 5)), 0);
		auto r = l.a.request(operation::send_imm, l.a.at(0, n));
		r.imm = 0x1234 + n;
		ASSERT_EQ(l.a.send(r), 0);
		completion c = one(l.b, l.b.recvs);
		EXPECT_EQ(c.result, status::success);
		EXPECT_EQ(c.bytes, n);
		EXPECT_EQ(c.imm, 0x1234 + n);
		EXPECT_EQ(c.op, operation::send_imm);
		EXPECT_TRUE(arrived(n)) << n;
		EXPECT_EQ(one(l.a, l.a.sends).result, status::success);
	}
}

TEST_P(ways, write)
{
	for (std::uint32_t n : sizes) {
		std::fill(l.b.memory.begin(), l.b.memory.end(), 0xee);
		l.a.send(l.a.request(operation::write, l.a.at(0, n), l.b.base() + 64, l.b.key));
		EXPECT_EQ(one(l.a, l.a.sends).result, status::success);
		EXPECT_TRUE(arrived(n)) << n;
		EXPECT_TRUE(l.b.poll(l.b.recvs).empty());
	}
}

TEST_P(ways, write_with_immediate_takes_a_receive_and_leaves_its_memory)
{
	l.b.receive(l.b.at(1000000, 8));
	auto r = l.a.request(operation::write_imm, l.a.at(0, 20000), l.b.base() + 64, l.b.key);
	r.imm = 9;
	l.a.send(r);
	completion c = one(l.b, l.b.recvs);
	EXPECT_EQ(c.op, operation::write_imm);
	EXPECT_EQ(c.imm, 9u);
	EXPECT_TRUE(arrived(20000));
	EXPECT_EQ(l.b.memory[1000000], 0xee);
}

TEST_P(ways, read)
{
	for (std::uint32_t n : sizes) {
		std::fill(l.b.memory.begin(), l.b.memory.end(), 0xee);
		l.b.send(l.b.request(operation::read, l.b.at(64, n), l.a.base(), l.a.key));
		EXPECT_EQ(one(l.b, l.b.sends).result, status::success);
		EXPECT_TRUE(arrived(n)) << n;
	}
	EXPECT_EQ(l.a.regions.find(l.a.key)->grants, 0u);
}

TEST_P(ways, atomics)
{
	std::uint64_t word = 40;
	std::memcpy(l.b.memory.data() + 8, &word, 8);
	auto r = l.a.request(operation::fetch_add, l.a.at(0, 8), l.b.base() + 8, l.b.key);
	r.compare_add = 2;
	l.a.send(r);
	EXPECT_EQ(one(l.a, l.a.sends).result, status::success);
	r.op = operation::cmp_swap;
	for (std::uint64_t expected : {41, 42}) { // the first compares wrongly
		r.compare_add = expected;
		r.swap = 99;
		l.a.send(r);
		one(l.a, l.a.sends);
		std::uint64_t old;
		std::memcpy(&old, l.a.memory.data(), 8);
		std::memcpy(&word, l.b.memory.data() + 8, 8);
		EXPECT_EQ(old, 42u);
		EXPECT_EQ(word, expected == 42 ? 99u : 42u);
	}
}

TEST_P(ways, segments_differ_on_the_two_sides)
{
	recv_request into{};
	into.segments = 3;
	into.at = {l.b.at(100, 10), l.b.at(300, 0), l.b.at(500, 40000)};
	l.b.pair->post_recv(into);
	auto r = l.a.request(operation::send, l.a.at(0, 20000));
	r.segments = 2;
	r.at[1] = l.a.at(50000, 7);
	l.a.send(r);
	EXPECT_EQ(one(l.b, l.b.recvs).bytes, 20007u);
	EXPECT_EQ(std::memcmp(l.b.memory.data() + 100, l.a.memory.data(), 10), 0);
	EXPECT_EQ(std::memcmp(l.b.memory.data() + 500, l.a.memory.data() + 10, 19990), 0);
	EXPECT_EQ(std::memcmp(l.b.memory.data() + 500 + 19990, l.a.memory.data() + 50000, 7), 0);
	EXPECT_EQ(l.b.memory[110], 0xee);
	EXPECT_EQ(l.b.memory[300], 0xee);
}

TEST(operations, inline_data_are_taken_when_posted)
{
	joined l;
	std::vector<std::uint8_t> bytes(200, 5);
	l.b.receive(l.b.at(0, 256));
	auto r = l.a.request(operation::send, {0, 200, 0}); // no key: it is not looked at
	r.flags |= inlined;
	ASSERT_EQ(l.a.pair->post_send(r, bytes.data()), 0);
	std::fill(bytes.begin(), bytes.end(), 9);
	l.a.pair->flush_posts();
	l.settle();
	EXPECT_EQ(l.b.poll(l.b.recvs).size(), 1u);
	EXPECT_EQ(l.b.memory[199], 5);
	r.at[0].length = 257;
	EXPECT_EQ(l.a.pair->post_send(r, bytes.data()), -EINVAL);
}

TEST(operations, a_send_without_a_receive_waits_and_keeps_its_order)
{
	joined l;
	l.a.send(l.a.request(operation::send, l.a.at(0, 10)));
	l.a.send(l.a.request(operation::write, l.a.at(0, 10), l.b.base(), l.b.key));
	l.settle();
	EXPECT_TRUE(l.a.poll(l.a.sends).empty());
	EXPECT_EQ(l.b.pair->counts().waits, 1u);
	EXPECT_TRUE(l.b.pair->starved());
	l.b.receive(l.b.at(100, 10));
	l.settle();
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 2u);
}

TEST(operations, a_receive_is_with_the_peer_before_the_call_returns)
{
	joined l;
	l.b.receive(l.b.at(0, 1));
	l.b.receive(l.b.at(0, 1));
	EXPECT_EQ(l.halves[1].recv_post.load(), 2u);
}

TEST(operations, an_answer_goes_along_with_a_reply)
{
	joined l;
	l.b.pair->answers_wait = true;
	l.a.receive(l.a.at(0, 8));
	l.b.receive(l.b.at(0, 8));
	l.settle();
	l.a.send(l.a.request(operation::send, l.a.at(100, 8)));
	EXPECT_EQ(l.b.poll(l.b.recvs).size(), 1u);
	EXPECT_TRUE(l.a.poll(l.a.sends).empty());
	std::uint32_t bell = l.halves[1].bell;
	l.b.send(l.b.request(operation::send, l.b.at(100, 8)));
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 1u);
	EXPECT_EQ(l.a.poll(l.a.recvs).size(), 1u);
	EXPECT_EQ(l.halves[1].bell, bell) << "more than one cache line";
}

TEST(operations, an_answer_without_a_reply_goes_out_with_the_next_progress)
{
	joined l;
	l.b.pair->answers_wait = true;
	l.b.receive(l.b.at(0, 8));
	l.a.send(l.a.request(operation::send, l.a.at(100, 8)));
	EXPECT_EQ(l.b.poll(l.b.recvs).size(), 1u);
	EXPECT_TRUE(l.a.poll(l.a.sends).empty());
	EXPECT_TRUE(l.b.poll(l.b.recvs).empty());
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 1u);
}

// Its sender waits for room.
TEST(operations, the_rest_of_a_message_waits_for_no_reply)
{
	joined l{false};
	l.b.pair->answers_wait = true;
	l.b.receive(l.b.at(0, 2 * stream_bytes));
	l.a.send(l.a.request(operation::send, l.a.at(0, 2 * stream_bytes)));
	unsigned rings = l.pb.rings;
	l.b.pair->progress();
	EXPECT_GT(l.pb.rings, rings);
	l.settle();
	EXPECT_EQ(l.b.poll(l.b.recvs).size(), 1u);
}

// The entry that carries the answer waits behind one that waits for a receive.
TEST(operations, an_answer_is_seen_while_messages_wait_for_a_receive)
{
	joined l;
	l.b.pair->answers_wait = true;
	l.b.receive(l.b.at(0, 8));
	l.b.send(l.b.request(operation::send, l.b.at(100, 8)));
	l.a.pair->progress();
	EXPECT_TRUE(l.a.pair->starved());
	l.a.send(l.a.request(operation::send, l.a.at(100, 8)));
	EXPECT_EQ(l.b.poll(l.b.recvs).size(), 1u);
	l.b.send(l.b.request(operation::send, l.b.at(100, 8)));
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 1u);
}

// Its bytes have an index of their own, which an entry does not carry.
TEST(operations, a_read_is_not_answered_before_its_bytes)
{
	joined l;
	l.b.pair->answers_wait = true;
	l.a.receive(l.a.at(0, 8));
	std::fill_n(l.b.memory.begin() + 1000, 64, 0x5a);
	l.a.send(l.a.request(operation::read, l.a.at(0, 64), l.b.base() + 1000, l.b.key));
	l.b.pair->progress();
	l.b.pair->post_send(l.b.request(operation::send, l.b.at(100, 8)));
	l.b.pair->store_posts();
	l.a.pair->progress();
	EXPECT_EQ(l.a.pair->state(), pair_state::sends);
	EXPECT_TRUE(l.a.poll(l.a.sends).empty());
	l.b.pair->flush_posts();
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 1u);
	EXPECT_EQ(l.a.memory[63], 0x5a);
}

// The entry that acknowledges a read may come while its reader is at work, and after the bell that
// told of the bytes.
TEST(operations, a_bell_is_heard_before_the_entries_behind_it)
{
	joined l{false};
	l.b.pair->answers_wait = true;
	l.a.receive(l.a.at(0, 8));
	l.a.receive(l.a.at(100000, 40000));
	std::fill_n(l.b.memory.begin() + 1000, 4096, 0x5a);
	l.a.send(l.a.request(operation::read, l.a.at(50000, 4096), l.b.base() + 1000, l.b.key));
	l.b.pair->progress();
	std::uint32_t before = l.halves[1].bell;
	l.b.send(l.b.request(operation::send, l.b.at(200000, 8)));
	std::uint32_t after = l.halves[1].bell.exchange(before);
	ASSERT_NE(after, before);
	l.pa.on_ring = [&] {
		l.halves[1].bell = after;
		l.b.send(l.b.request(operation::send, l.b.at(200000, 8)));
	};
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	ASSERT_FALSE(l.pa.on_ring);
	l.settle();
	EXPECT_EQ(l.a.pair->state(), pair_state::sends);
	ASSERT_EQ(l.a.poll(l.a.sends).size(), 1u);
	EXPECT_EQ(l.a.memory[50000 + 4095], 0x5a);
}

/// The peer has carried out one request and granted the read behind it, and tells of both at once.
/// Whichever indices this side sees of that, it takes the grant for the read.
void see_a_grant(operation first, std::size_t some)
{
	constexpr std::uint32_t length = 20000;
	lagging l;
	std::fill_n(l.b.memory.begin(), length, std::uint8_t{42});
	l.b.receive(l.b.at(1 << 18, 8));
	l.b.receive(l.b.at(1 << 18, 8));
	auto settle = [&] {
		for (bool found = true; found;) {
			l.show();
			found = l.a.pair->progress();
			found |= l.b.pair->progress();
		}
	};
	settle();
	// A bell that this side has not looked at yet.
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	l.show();
	l.b.pair->progress();
	l.show();
	l.a.store(l.a.request(first, l.a.at(0, 8), l.b.base(), l.b.key));
	l.a.store(l.a.request(operation::read, l.a.at(8, length), l.b.base(), l.b.key));
	l.of_a.move(4);
	l.b.pair->progress();
	l.of_b.move(2, some);
	l.a.pair->progress();
	EXPECT_TRUE(l.a.pair->linked());
	settle();
	EXPECT_TRUE(l.a.pair->linked());
	EXPECT_EQ(l.pa.pulls, 1u);
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 3u);
	EXPECT_EQ(l.a.memory[8 + length - 1], 42);
}

TEST(operations, a_grant_is_not_seen_before_what_was_carried_out_ahead_of_it)
{
	for (operation first : {operation::send, operation::read})
		for (std::size_t some = 0; some <= late_view::indices_stored; some++) {
			SCOPED_TRACE(some);
			see_a_grant(first, some);
		}
}

TEST(operations, unsignalled_requests_complete_silently_and_give_their_place_back)
{
	joined l{true, depth(4)};
	for (int i = 0; i < 40; i++) {
		auto r = l.a.request(operation::write, l.a.at(0, 8), l.b.base(), l.b.key);
		r.flags = 0;
		ASSERT_EQ(l.a.send(r), 0) << i;
		l.settle();
	}
	EXPECT_TRUE(l.a.poll(l.a.sends).empty());
	EXPECT_EQ(l.a.pair->counts().sent, 40u);
}

TEST(operations, a_full_queue_refuses_and_takes_again_after_polling)
{
	joined l{true, depth(4)};
	auto r = l.a.request(operation::send, l.a.at(0, 1));
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(l.a.send(r), 0);
	EXPECT_EQ(l.a.send(r), -ENOMEM);
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(l.b.receive(l.b.at(0, 1)), 0);
	EXPECT_EQ(l.b.receive(l.b.at(0, 1)), -ENOMEM); // taken, but not polled
	l.settle();
	EXPECT_EQ(l.a.send(r), -ENOMEM); // completed, but not polled
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 4u);
	EXPECT_EQ(l.a.send(r), 0);
}

TEST(operations, notices_are_given_once_and_to_solicited_messages_only_if_asked_so)
{
	joined l;
	for (int i = 0; i < 4; i++)
		l.b.receive(l.b.at(0, 8));
	auto r = l.a.request(operation::send, l.a.at(0, 8));
	l.b.recvs.request_notice(completion_queue::arm::solicited);
	l.a.send(r);
	l.settle();
	EXPECT_EQ(l.b.seen.notices, 0u);
	r.flags |= solicited;
	l.a.send(r);
	l.a.send(r);
	l.settle();
	EXPECT_EQ(l.b.seen.notices, 1u);
	l.b.recvs.request_notice(completion_queue::arm::any);
	r.flags = 0;
	l.a.send(r);
	l.settle();
	EXPECT_EQ(l.b.seen.notices, 2u);
}

// UCX arms after its last poll, and waits.
TEST(operations, a_completion_that_was_not_polled_is_an_event_when_the_queue_is_armed)
{
	joined l;
	for (int i = 0; i < 2; i++)
		l.b.receive(l.b.at(0, 8));
	auto r = l.a.request(operation::send, l.a.at(0, 8));
	r.flags = 0; // no completion of its own
	l.a.send(r);
	l.settle();
	l.a.sends.request_notice(completion_queue::arm::any);
	EXPECT_EQ(l.a.seen.notices, 0u);
	l.b.recvs.request_notice(completion_queue::arm::solicited);
	EXPECT_EQ(l.b.seen.notices, 0u);
	l.b.recvs.request_notice(completion_queue::arm::any);
	EXPECT_EQ(l.b.seen.notices, 1u);
	EXPECT_FALSE(l.b.recvs.armed());
	r.flags = solicited;
	l.a.send(r);
	l.settle();
	l.b.recvs.request_notice(completion_queue::arm::solicited);
	EXPECT_EQ(l.b.seen.notices, 2u);
	EXPECT_EQ(l.b.poll(l.b.recvs).size(), 2u);
	l.b.recvs.request_notice(completion_queue::arm::any);
	EXPECT_EQ(l.b.seen.notices, 2u);
}

TEST(operations, a_fenced_request_waits_for_the_read_before_it)
{
	joined l;
	l.b.memory[0] = 77;
	l.a.memory[0] = 0;
	l.b.receive(l.b.at(100, 1));
	auto read = l.a.request(operation::read, l.a.at(0, 1), l.b.base(), l.b.key);
	auto send = l.a.request(operation::send, l.a.at(0, 1));
	send.flags |= fenced;
	l.a.pair->post_send(read);
	l.a.pair->post_send(send);
	l.a.pair->flush_posts();
	l.settle();
	EXPECT_EQ(l.b.memory[100], 77);
}

TEST(operations, a_batch_rings_once)
{
	joined l;
	unsigned before = l.pa.rings;
	for (int i = 0; i < 8; i++)
		l.a.pair->post_send(
			l.a.request(operation::write, l.a.at(0, 8), l.b.base(), l.b.key));
	l.a.pair->flush_posts();
	EXPECT_EQ(l.pa.rings, before + 1);
}

TEST(operations, shared_receives_serve_in_order_and_tell_when_few_are_left)
{
	notes seen;
	shared_receives shared{seen, 7, 4};
	joined l{true, depth(16), &shared};
	for (std::uint64_t i = 0; i < 4; i++) {
		recv_request r{};
		r.id = 50 + i;
		r.segments = 1;
		r.at[0] = l.b.at(i * 10, 10);
		ASSERT_EQ(shared.post(r), 0);
	}
	EXPECT_EQ(shared.post({}), -ENOMEM);
	shared.set_limit(3);
	EXPECT_EQ(seen.few, 0u);
	for (int i = 0; i < 3; i++)
		l.a.send(l.a.request(operation::send, l.a.at(0, 10)));
	l.settle();
	EXPECT_EQ(seen.few, 1u);
	auto got = l.b.poll(l.b.recvs);
	ASSERT_EQ(got.size(), 3u);
	EXPECT_EQ(got[2].id, 52u);
}

TEST(operations, the_rings_go_round_many_times)
{
	joined l{false, depth(64)};
	for (std::uint32_t i = 0; i < 5000; i++) {
		l.a.memory[0] = static_cast<std::uint8_t>(i);
		l.b.receive(l.b.at(0, 1000));
		l.a.send(l.a.request(operation::send, l.a.at(0, 1 + i % 1000)));
		l.settle();
		auto got = l.b.poll(l.b.recvs);
		ASSERT_EQ(got.size(), 1u);
		ASSERT_EQ(got[0].bytes, 1 + i % 1000);
		ASSERT_EQ(l.b.memory[0], static_cast<std::uint8_t>(i));
		ASSERT_EQ(l.a.poll(l.a.sends).size(), 1u);
	}
}

} // namespace
